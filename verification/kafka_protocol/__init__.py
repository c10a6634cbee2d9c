"""Kafka's protocol: brokers that are played, other clients, malformed requests and answers, and killed processes."""
