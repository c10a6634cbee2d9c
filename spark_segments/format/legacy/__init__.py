"""Message sets of magic 0 and 1: reading them, and writing them again as record batches of magic 2."""
