"""Settings that a server of this package answers to, and no broker: what a capture asks of a log directory."""

ERASED_OFFSETS = "segments.erased.offsets"
"""By partition, the offsets whose batches an erasure may have rewritten. No setting of a topic has this name, and a
client that does not ask for it by name does not get it.
"""
