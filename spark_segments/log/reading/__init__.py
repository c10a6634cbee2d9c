"""Reading records: which byte ranges hold the wanted offsets, and reading a range."""
