"""A run of an index as a list names it, and the records of a range by the hashes of their keys: values only."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Run:
    """A run as a list names it. `version`: of the topic, of which it has all records in [base_offset, end_offset).

    These are the records with a key that a reader with read_uncommitted finds in that version: of aborted and of open
    transactions, too. Control records are not among them, nor what had left the log by then: records below the log
    start, which is at or below `base_offset`, and records that compaction, retention or an erasure took, wherever their
    bytes still are. Later versions have no other records there, as long as the run is believed (`belief.py`).

    `entry_bytes`: of one entry, and `fan_out`: of the 2^b parts of all hashes by their highest b bits, how many entries
    lie before each but the first. By these a look-up reads the pages of a hash together with the footer. 0 and none in
    lists of before: the footer is read first. `undecodable`: how many records could not be decoded when they were
    indexed, in the index of a field.
    """

    path: str
    partition: int
    base_offset: int
    end_offset: int
    version: int
    records: int
    entries: int
    size_bytes: int
    footer_bytes: int
    entry_bytes: int = 0
    fan_out: tuple[int, ...] = ()
    undecodable: int = 0

    def overlaps(self, partition: int, base_offset: int, end_offset: int) -> bool:
        """Whether it has any of these offsets."""
        return self.partition == partition and self.base_offset < end_offset and base_offset < self.end_offset

    @staticmethod
    def new_path(directory: str, partition: int, base_offset: int, end_offset: int) -> str:
        """A path that no other run ever has, in the directory of an index."""
        return f"{directory}/runs/{partition}-{base_offset:020d}-{end_offset:020d}.{uuid.uuid4().hex}.run"


@dataclass(frozen=True, slots=True)
class HashedRecords:
    """Records of a range by the hashes of their keys: all records that the range has of any of these hashes.

    `hashes`: uint64[n], sorted. `offsets`: int64[n], less the base offset of the range, which rise within a hash.
    `scattered`: (uint64[m], int64[m]), sorted: further hashes, or further records of these, that can be anywhere, and
    how many they are.
    """

    hashes: np.ndarray
    offsets: np.ndarray
    scattered: tuple[np.ndarray, np.ndarray] = (np.zeros(0, np.uint64), np.zeros(0, np.int64))

    @classmethod
    def sorted(cls, hashes: np.ndarray, offsets: np.ndarray) -> HashedRecords:
        """The records in the order of their hashes, which come in the order of their offsets."""
        order = _stable_order(hashes)
        return cls(hashes[order], offsets[order])

    @property
    def count(self) -> int:
        """How many records they are."""
        return len(self.hashes) + int(self.scattered[1].sum())


def _stable_order(hashes: np.ndarray) -> np.ndarray:
    """int64[n]: the order of hashes, by 16 bits after another from the lowest: numpy sorts these alone by radix, which
    takes half of the time of its stable sort of 64 bits.
    """
    order = np.argsort((hashes & np.uint64(0xFFFF)).astype(np.uint16), kind="stable")
    for shift in range(16, int(hashes.max(initial=0)).bit_length(), 16):
        digits = ((hashes[order] >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.uint16)
        order = order[np.argsort(digits, kind="stable")]
    return order
