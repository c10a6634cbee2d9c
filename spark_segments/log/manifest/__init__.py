"""The manifest of a topic: its rows, its versions, and the commit protocol. Nothing here opens a segment."""
