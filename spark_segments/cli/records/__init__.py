"""Commands whose noun is a record: offsets, append, consume and delete-records, and records as text."""
