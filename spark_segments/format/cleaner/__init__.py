"""Key-based cleaning of record batches in memory: the offset map, and which records stay.

maintenance/compaction/ decides which segments are cleaned, and when.
"""
