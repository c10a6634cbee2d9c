"""The files of a segment: writing them, walking their batches, copying them.

manifest/ says which segments are the log.
"""
