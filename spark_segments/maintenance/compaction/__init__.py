"""Compaction: which partitions are cleaned, by one task or by many, round by round, and the commit of each round.

The cleaning of bytes is format/cleaner/.
"""
