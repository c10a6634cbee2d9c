"""Kafka's protocol: topics of a log directory for Kafka's own clients. Messages are kio's; framing is ours.

No record is decoded here, and no file is opened: partitions give record batches as they lie in the log.
"""
