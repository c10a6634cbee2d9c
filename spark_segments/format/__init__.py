"""Kafka's bytes and Arrow's: record batches of magic 2, here, and what is around them, in the rooms below.

No file is opened here, and nothing here knows of topics or manifests.
"""
