"""Appending rows to a topic: columns, partitions, chunks, and the offsets that the commit assigns."""
