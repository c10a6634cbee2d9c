"""Records on their way out: which byte ranges hold the wanted offsets, and reading one range."""
