"""What the cleaner's kernels are given, and what they give back: columns, bits of flags, and places in memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# A key is its hash, two int64. Of a slot of the offset map, int64 each: the key, and its offset plus 1; 0: none.
KEY_HIGH = 8
SLOT_NEXT = 16
BYTES_PER_SLOT = 24

# What is known of a record that was read, int64 each: its address, its offset, its key, its flags.
ROW_OFFSET = 8
ROW_KEY = 16
ROW_FLAGS = 32
KEY_ROW_BYTES = 40
HAS_KEY = 1
TOMBSTONE = 2

# A key of an Arrow column, int64 each: the key, and whether there is one.
HASHED_FLAG = 16
HASHED_BYTES = 24

GROUP = 256  # records that are read before the first of them is looked up
LOOK_AHEAD = 16  # slots are asked for so many look-ups ahead

# What happens to a batch (bits of `action`).
READ = 1  # its records are read; without this bit no record stays
KEEP_EMPTY = 2  # its header stays if no record does
SET_HORIZON = 4  # it holds a marker whose transaction has no data left
KEEP_WHOLE = 8  # all its records stay, and its bytes do not change; with it, there is no READ
LIVE_KNOWN = 16  # its live records are known: no key is looked up. None is a tombstone, and offsets have no gaps

BATCH_BYTES = 88  # of a line of `Batches`
SPAN_BYTES = 24

# A rewritten record may be this much longer: 9 bytes for its timestamp delta, 4 for its length.
RECORD_SLACK = 13


class Batches(NamedTuple):
    """n batches, an array each; addresses of their bytes and of their uncompressed records."""

    address: np.ndarray  # int64
    size: np.ndarray  # int64
    start: np.ndarray  # int64
    end: np.ndarray  # int64
    base_offset: np.ndarray  # int64, of the log
    records: np.ndarray  # int64: how many; 0 if they are not read
    attributes: np.ndarray  # int64
    base_timestamp: np.ndarray  # int64
    max_timestamp: np.ndarray  # int64
    action: np.ndarray  # int64: bits, as above
    codec: np.ndarray  # int64: of the rebuilt batch


class Rules(NamedTuple):
    """The offset map and the moment of the cleaning. `keep_without_key`: records without a key stay."""

    slots: np.ndarray
    seed: int
    secret: np.ndarray
    map_end_offset: int
    now_ms: int
    new_horizon_ms: int  # of batches that get one now; negative: no batch gets one
    keep_without_key: bool
    live_start_offset: int  # of the first bit of `live`
    live: np.ndarray  # uint8: see LiveRecords
    held: np.ndarray  # slots of a map, as `slots`: keys whose tombstones stay


def key_rows(largest_batch: int, rows: np.ndarray | None = None) -> np.ndarray:
    """uint8[]: the `rows` of kernels, room for GROUP records and for a batch of so many; `rows` where they suffice."""
    size = KEY_ROW_BYTES * max(GROUP, largest_batch)
    return np.empty(size, np.uint8) if rows is None or len(rows) < size else rows


class Counts(NamedTuple):
    """Records by what became of them, and batches that did not change."""

    kept: int
    superseded: int
    tombstones_expired: int
    no_key: int
    kept_tombstones: int  # among those kept
    batches_unchanged: int


class Cleaned(NamedTuple):
    """How many spans of output there are, the bytes of rebuilt batches, the batch of a bad record and its address or
    -1, and the fields of `Counts`.
    """

    spans: int
    rebuilt_bytes: int
    bad_row: int
    bad_at: int
    kept: int
    superseded: int
    tombstones_expired: int
    no_key: int
    kept_tombstones: int
    batches_unchanged: int

    @property
    def counts(self) -> Counts:
        """What may be added to that of other parts. Spans and positions are of this part alone."""
        return Counts(*self[-len(Counts._fields) :])
