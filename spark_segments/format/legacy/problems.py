"""What can be wrong with messages of magic 0 and 1."""

from __future__ import annotations

GOOD = 0
BAD_SIZE = 1
BAD_MAGIC = 2
BAD_KEY = 3
BAD_VALUE = 4
NESTED = 5
BAD_OFFSET = 6
PROBLEMS = {
    BAD_SIZE: "the size of a message is impossible",
    BAD_MAGIC: "a message inside has a magic byte that is neither 0 nor 1",
    BAD_KEY: "a key reaches over the end of its message",
    BAD_VALUE: "a value reaches over the end of its message",
    NESTED: "a compressed message lies inside a compressed one",
    BAD_OFFSET: "the offsets of messages do not rise",
}
