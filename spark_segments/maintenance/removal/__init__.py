"""Vacuum, which deletes the files that have left the log, and restore, which takes them back before that."""
