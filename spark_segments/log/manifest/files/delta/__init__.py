"""Delta's log of a manifest: what the manifest asks of it, and delta-rs, which answers."""
