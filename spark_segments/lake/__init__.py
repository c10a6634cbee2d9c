"""Delta and Iceberg tables beside topics: records as plain columns, for every program that reads Parquet.

What leaves a topic, and which of its records are the newest, is decided elsewhere: a table follows.
"""
