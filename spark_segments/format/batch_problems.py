"""What can be wrong with the header of a batch: numbers that kernels return."""

GOOD = 0
BAD_LENGTH = 1
BAD_MAGIC = 2
BAD_CRC = 3
BAD_COUNT = 4
BAD_OFFSET = 5
BAD_LAST_OFFSET = 6
ZEROS = 7
