"""Retention: segments leave a partition's head by time, by size, or below the log start."""
