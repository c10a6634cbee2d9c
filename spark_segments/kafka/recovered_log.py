"""The recovery of a partition that Kafka wrote: its input, the log that it recovers, and what it leaves out.

`RecoveredLog` grows with the recovery: each segment that is scanned adds to it. All else here are values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_segments.format.sidecars.producer_state import ProducerEntry
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.log import Segment
from spark_segments.storage import FileInfo

CUT_SHORT = "the last record batch is cut"
"""The reason of a cut where the file ends before a batch does, as after a write that was interrupted."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What lies behind the end of the log: `bytes` from `byte_position` of `path` on, and the `dropped` segments."""

    topic: str
    partition: int
    path: str
    byte_position: int
    bytes: int
    reason: str
    dropped: tuple[str, ...] = ()
    dropped_bytes: int = 0

    def __str__(self) -> str:
        text = f"{self.path}: {self.bytes} bytes from position {self.byte_position} are not in the log: {self.reason}"
        if self.dropped:
            text += (
                f"; nor are {len(self.dropped)} later segments ({self.dropped_bytes} bytes) from {self.dropped[0]} on"
            )
        return text


@dataclass(frozen=True, slots=True)
class Note:
    """A file that recovery repaired or left out, and why. No record is lost. `partition` None: the log directory."""

    topic: str
    partition: int | None
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(frozen=True, slots=True)
class Overlap:
    """Offsets of a segment (both inclusive) that are not in the log: reads of these offsets use `served` instead.

    A broker that was killed while it swapped files leaves a compacted segment beside a segment that it was made from.
    `problem`: why a segment that is left out as a whole cannot be read to its end.
    """

    topic: str
    partition: int
    path: str
    first_offset: int
    last_offset: int
    served: str
    problem: str | None = None

    def __str__(self) -> str:
        text = (
            f"{self.path}: its offsets {self.first_offset} to {self.last_offset} overlap {self.served} and are not in "
            "the log: a broker reads a segment to its end, then goes on in the one that holds the next offset"
        )
        return text if self.problem is None else f"{text}; the file is damaged, too: {self.problem}"


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """Input of recovery: the .log files by base offset, and by path every file that may be a sidecar of them."""

    topic: str
    topic_id: str
    partition: int
    logs: tuple[tuple[int, FileInfo], ...]
    sidecars: dict[str, FileInfo]
    has_active: bool = True  # in tiered storage no segment is active
    end_offset: int | None = None  # of the log: what the last segment holds from there on is none of it
    is_sealed: bool = False  # whether later segments were left out: what a cleaner replaced is below the end offset


@dataclass
class RecoveredLog:
    """The log as far as segments were scanned. Offsets are as in the files; `log_end_offset` is the next offset to be
    assigned.

    `gaps`: (first offset, offset after the last) between two segments, in neither of them. `was_cleaned`: whether any
    batch shows that a cleaner has run, which leaves such gaps.
    """

    segments: list[Segment] = field(default_factory=list)
    log_end_offset: int = 0
    last_stable_offset: int = 0
    leader_epochs: tuple[tuple[int, int], ...] = ()  # (epoch, start offset)
    producers: list[ProducerEntry] = field(default_factory=list)
    offset_indexes: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    aborted: dict[str, AbortedTransactions] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)
    overlaps: list[Overlap] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    was_cleaned: bool = False


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The parts of files that are not in the log (`cuts`, `overlaps`), and files that recovery repaired or left out
    (`notes`).
    """

    cuts: tuple[Cut, ...] = ()
    notes: tuple[Note, ...] = ()
    overlaps: tuple[Overlap, ...] = ()

    @classmethod
    def of(cls, logs: Sequence[RecoveredLog], notes: Sequence[Note]) -> RecoveryReport:
        """The report of the logs of a topic; `notes` are of the directory above them."""
        cuts = [cut for log in logs for cut in log.cuts]
        overlaps = [overlap for log in logs for overlap in log.overlaps]
        return cls(tuple(cuts), (*notes, *(note for log in logs for note in log.notes)), tuple(overlaps))
