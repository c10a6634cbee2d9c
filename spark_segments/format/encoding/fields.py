"""The fields of a batch that was written, and why a kernel ends early: numbers shared by kernels and their callers."""

# Columns of the table that kernels fill, one row a batch. FIRST is the number of its first record, OFFSET its offset.
POSITION, SIZE, FIRST, OFFSET, COUNT, BASE_TIMESTAMP, MAX_TIMESTAMP, MIN_TIMESTAMP, ATTRIBUTES, CRC = range(10)
TABLE_COLUMNS = 10

# The reason why a kernel call ended early.
NOTHING = 0
NO_ROOM = 1
NULL_TIMESTAMP = 2
NEGATIVE_TIMESTAMP = 3
NULL_HEADER_KEY = 4
TOO_LARGE = 5

# Largest sizes of length, attributes, timestamp delta, offset delta, key length, value length and header count.
RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 5
HEADER_OVERHEAD = 5 + 5

# The rows of a partition lie scattered among other rows. Kernels prefetch two cache lines of the row this far ahead.
PREFETCH_RECORDS = 16
CACHE_LINE = 64

NO_PARTITION = -1
# Of murmur2, as Kafka's clients have it.
MURMUR_SEED = 0x9747B28C
MURMUR_FACTOR = 0x5BD1E995
