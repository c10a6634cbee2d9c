"""The fields of a section, and the faults of a record: numbers that kernels share with their callers."""

# Columns of the int64[n, 11] that describes n sections to a kernel.
ADDRESS = 0
END = 1  # address behind the last byte
COUNT = 2  # records
BASE_OFFSET = 3
LAST_OFFSET_DELTA = 4
BASE_TIMESTAMP = 5
TIMESTAMP_STEP = 6  # 1, or 0 where all records have BASE_TIMESTAMP
# The buffer that holds the section, for columns of views: its number among its group's, and the address of its first
# byte.
BUFFER = 7
BUFFER_ADDRESS = 8
# Used by batch_groups.py, not by readers of records.
POSITION = 9  # of the batch in its file
CODEC = 10
SECTION_FIELDS = 11

OPENED = -1  # the codec of a section once it has been decompressed

# length, attributes, timestampDelta, offsetDelta, keyLength, valueLength, headersCount: at least a byte each.
SMALLEST_RECORD = 7

# Problems of a record.
GOOD = 0
CUT = 1
BAD_LENGTH = 2
BAD_OFFSET = 3
BAD_KEY = 4
BAD_VALUE = 5
BAD_HEADER_COUNT = 6
BAD_HEADER_KEY = 7
BAD_HEADER_VALUE = 8
BAD_SIZE = 9
TRAILING = 10
UNUSUAL = 11

# Problems of batches of which sections are to be made.
FOREIGN = 1
BAD_OFFSETS = 2

# Why a group of sections ends.
FULL = 0
COMPRESSED = 1
LYING = 2

# Timestamps become microseconds in an int64: milliseconds beyond these limits do not fit.
LAST_MS = (2**63 - 1) // 1000
FIRST_MS = -LAST_MS

MOST_INLINE_BYTES = 12  # of a value in an Arrow view

# Bytes of a varint that is read quickly at most, and bytes up to the key at most: four of them and the attributes.
MOST_SHORT_BYTES = 3
MOST_HEAD_BYTES = 4 * MOST_SHORT_BYTES + 1
