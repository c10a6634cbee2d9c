"""Rows on their way into a topic: columns, partitions, chunks, and the offsets that the commit gives them."""
