"""What every check is made of: clocks, topics and rows, a log directory opened with parts that can fail, plain models.

`kafka_bytes` has bytes that Kafka wrote or could have written, `stores` file systems and stores that fail.
"""
