"""Kernels that other kernels are made of: raw memory, checksums, hashes and block codecs.

No Kafka record is known here.
"""
