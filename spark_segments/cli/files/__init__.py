"""Commands whose noun is a file: verify, dump, and Kafka's directories in and out (`import`, `export`)."""
