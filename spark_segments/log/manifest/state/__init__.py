"""What a version of the manifest says: its snapshot, the states in the topic's row, versions and their copies."""
