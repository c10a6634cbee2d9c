"""Kafka's bytes and Arrow's: the layout of record batches (magic 2), and rooms for reading, writing and cleaning them.

This layer opens no file and knows neither topics nor manifests.
"""

from spark_segments.format.built import check

check()
