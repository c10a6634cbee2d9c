"""Spark: kills of queries and of spark-submit, other releases of PySpark, Sail, and imitated managed platforms."""
