"""A module for each API of Kafka's protocol that is served: its key, its versions, and its answer."""
