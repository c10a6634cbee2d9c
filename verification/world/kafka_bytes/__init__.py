"""Bytes of segments: those that Kafka wrote (tests/golden), and a slow second encoder beside the package's own."""
