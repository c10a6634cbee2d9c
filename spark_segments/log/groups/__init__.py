"""Positions of readers: a small Delta table a group in `_groups/`. How a reader reads is not its business."""
