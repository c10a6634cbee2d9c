"""Avro: schemas, its binary encoding column by column, and the resolution of a writer's schema with a reader's."""
