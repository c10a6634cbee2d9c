"""How far a topic has come: the condition that the sensor and its trigger wait for. Needs no Airflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_segments.errors import InvalidOptionError
from spark_segments.face.logdir import LogDir
from spark_segments.log import Snapshot


@dataclass(frozen=True, slots=True)
class TopicCondition:
    """Holds once a topic has come so far. Just one of `end_offsets` and `timestamp_ms` is given.

    `end_offsets`: {partition: log end offset}; every log end is at least that. `timestamp_ms`: every partition (with
    `every_partition`), or any, has a record of that time or a later one.
    """

    log_dir: str
    topic: str
    end_offsets: Mapping[int, int] | None = None
    timestamp_ms: int | None = None
    every_partition: bool = True
    storage_options: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if (self.end_offsets is None) == (self.timestamp_ms is None):
            raise InvalidOptionError(
                "A sensor waits for offsets or for a time",
                expected="end_offsets or timestamp",
                found="neither" if self.end_offsets is None else "both",
            )

    def open(self) -> LogDir:
        """The log directory."""
        return LogDir.open(self.log_dir, self.storage_options)

    def met(self, log: LogDir) -> dict[int, int] | None:
        """{partition: log end offset} once the condition holds, else None.

        Offsets are read from the manifest's partition rows; only a time needs its segment rows. No segment is opened.
        Raises UnknownTopicError for a topic or a partition that is not there.
        """
        snapshot = log.topic(self.topic).snapshot
        ends = dict(
            zip(
                snapshot.partitions.column("partition").to_pylist(),
                snapshot.partitions.column("log_end_offset").to_pylist(),
                strict=True,
            )
        )
        if self.end_offsets is not None:
            reached = all(snapshot.partition(one).log_end_offset >= end for one, end in self.end_offsets.items())
        else:
            reached = self._time_reached(snapshot)
        return ends if reached else None

    def _time_reached(self, snapshot: Snapshot) -> bool:
        newest = np.full(snapshot.partitions.num_rows, -1, np.int64)
        np.maximum.at(
            newest, snapshot.live.column("partition").to_numpy(), snapshot.live.column("max_timestamp_ms").to_numpy()
        )
        reached = newest >= self.timestamp_ms
        return bool(reached.all() if self.every_partition else reached.any())

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON keeps them: a trigger is stored so, with partition numbers as text. What opens the storage
        is not among them: it may be a credential.
        """
        offsets = None if self.end_offsets is None else {str(one): end for one, end in self.end_offsets.items()}
        return {
            "log_dir": self.log_dir,
            "topic": self.topic,
            "end_offsets": offsets,
            "timestamp_ms": self.timestamp_ms,
            "every_partition": self.every_partition,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], storage_options: Mapping[str, str] | None = None) -> TopicCondition:
        """The inverse of `to_dict`, with storage options."""
        offsets = fields["end_offsets"]
        ends = None if offsets is None else {int(number): end for number, end in offsets.items()}
        return cls(**{**fields, "end_offsets": ends}, storage_options=storage_options)
