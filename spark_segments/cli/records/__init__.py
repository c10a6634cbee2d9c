"""Commands whose noun is a record: offsets, produce, append, consume and delete-records, and records as text."""
