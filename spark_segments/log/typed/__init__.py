"""Keys and values of a log's topics as typed columns, and the registries that are in a log."""
