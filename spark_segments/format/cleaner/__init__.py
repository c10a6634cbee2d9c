"""Key-based cleaning of record batches in memory: the offset map, and the records that stay.

Which segments are cleaned, and when, is decided in maintenance/compaction/.
"""
