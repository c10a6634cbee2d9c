"""Kafka's protocol: topics of a log directory for Kafka's own clients, and the capture of a running cluster. The
server's messages are kio's, its framing is ours; the client is kafka-python's.

No record is decoded here, and no file is opened: partitions give record batches as they lie in the log.
"""
