"""Formats that are text: JSON, plain or as Kafka Connect has it, JSON Schema's types, and CSV."""
