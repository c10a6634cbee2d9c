"""Log directories that Kafka wrote: recovering them in memory, importing from them, and exporting to them."""
