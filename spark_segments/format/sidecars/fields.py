"""The state of a segment's indexes: numbers that kernels share with their callers."""

# State of an index under construction between appends: slots of an int64 array.
STATE_SLOTS = 6
BYTES_SINCE_ENTRY, MAX_TIMESTAMP, OFFSET_OF_MAX, LAST_ENTRY_TIMESTAMP, OFFSET_ENTRIES, TIME_ENTRIES = range(STATE_SLOTS)
ADDED_OFFSET_ENTRY = 1
ADDED_TIME_ENTRY = 2

MAX_RELATIVE_OFFSET = 2**31 - 1
