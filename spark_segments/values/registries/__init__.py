"""Schema registries: over HTTP, in a directory, and as the records of the topic `_schemas`."""
