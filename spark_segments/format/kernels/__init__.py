"""Kernels for use in other kernels: raw memory, checksums, hashes and block codecs.

They know nothing of Kafka's records.
"""
