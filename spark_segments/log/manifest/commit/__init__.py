"""How a version of the manifest becomes the next: changes, commits, the upkeep of the table."""
