"""Kafka's internal topics, read from their records: the cluster's metadata, and the positions of groups."""
