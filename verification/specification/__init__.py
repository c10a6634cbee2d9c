"""The format a second time: a reader and a writer from the specification alone, and what wrote the golden vectors."""
