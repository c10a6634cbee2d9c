"""Compaction: which partitions are cleaned, in which rounds, by how many tasks.

The cleaning of bytes is format/cleaner/.
"""
