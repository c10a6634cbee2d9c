"""What the manifest is on storage: the Delta table, its files of rows, notes of commits."""
