"""Mirroring: a topic here becomes, version by version, what its leader in another log directory is.

The plan, the copies, their commits, the lag, and lists of checksums. Promotion and fences live elsewhere.
"""
