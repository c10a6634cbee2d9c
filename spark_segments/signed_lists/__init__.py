"""Lists of checksums of a log directory's files, signed or not, and what they show later: an add-on beside `verify`."""
