"""The files of one segment: writing them, walking their batches, copying them.

Which segments are the log is manifest/'s to say.
"""
