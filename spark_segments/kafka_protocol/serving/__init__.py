"""`segments serve`: topics of a log directory for Kafka's own clients. The messages are kio's, the framing is here.

No record is decoded and no file is opened here: partitions give record batches as they lie in the log.
"""
