"""Checks of every invariant of a log directory, and the repair of sidecar files. Only repair writes."""
