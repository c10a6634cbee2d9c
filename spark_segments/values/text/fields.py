"""The members of a record that is an object of JSON: numbers shared by kernels and their callers."""

KEY, KEY_BASE64, VALUE, VALUE_BASE64, TIMESTAMP, PARTITION, HEADERS = range(7)
TEXTS = 4  # members that are text come first
MEMBERS = 7

# The words of JSON as little-endian numbers of four bytes; of false, the first four.
NULL_WORD = 0x6C6C756E
TRUE_WORD = 0x65757274
FALSE_WORD = 0x736C6166
