"""Commands that speak Kafka's protocol."""
