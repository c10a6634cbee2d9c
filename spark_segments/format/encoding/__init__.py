"""From Arrow columns to record batches of magic 2, and the partition that each row goes to."""
