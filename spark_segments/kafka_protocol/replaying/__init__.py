"""`segments replay`: records of topics, produced into a running cluster by librdkafka."""
