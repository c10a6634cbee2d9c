"""Positions of readers: numbered files of a group in `_groups/`. How a reader reads is not its business."""
