"""Rebuild of a manifest that is lost or damaged, from its recovery copies and from the files of the log."""
