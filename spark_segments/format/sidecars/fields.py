"""The state of a segment and its indexes: numbers that kernels share with their callers."""

# A segment between appends: slots of an int64 array. The last three are used where a segment rolls.
STATE_SLOTS = 9
BYTES_SINCE_ENTRY, MAX_TIMESTAMP, OFFSET_OF_MAX, LAST_ENTRY_TIMESTAMP, OFFSET_ENTRIES, TIME_ENTRIES = range(6)
BASE_OFFSET, SIZE_BYTES, FIRST_TIMESTAMP = range(6, STATE_SLOTS)
ADDED_OFFSET_ENTRY = 1
ADDED_TIME_ENTRY = 2

# What bounds a segment and its indexes: slots of an int64 array. The last three say when it rolls.
INTERVAL_BYTES, MOST_OFFSET_ENTRIES, MOST_TIME_ENTRIES, SEGMENT_BYTES, ROLL_MS, WAITED_MS = range(6)

# The columns of batches, int64[4, batches].
SIZE, LAST_OFFSET, LARGEST_TIMESTAMP, POSITION = range(4)

MAX_RELATIVE_OFFSET = 2**31 - 1
