"""What leaves the storage, and what is taken back before it does: vacuum and restore."""
