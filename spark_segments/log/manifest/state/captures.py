"""What a capture notes in the map `states` of a topic's row: how far each partition is behind the cluster.

`captured.<partition>` has the cluster's high watermark, `captured_batch.<partition>` the last batch that came.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from spark_segments.log.manifest.state.states import of_partitions, other_states, reading
from spark_segments.log.manifest.topic_row import TopicRow

_CAPTURED = "captured."

_LAST_BATCH = "captured_batch."


@dataclass(frozen=True, slots=True)
class Captured:
    """`at_ms`: when all that the cluster had of the partition was here last, at first when its capture began, in ms
    since 1970; `high_watermark`: the cluster's, as it was seen last; `late`: whether a compacted partition was ever
    away for longer than delete.retention.ms; `stable_end`: where captures up to 0.2.0 then held the last stable offset,
    at a transaction that was open.
    """

    at_ms: int
    high_watermark: int
    late: bool = False
    stable_end: int | None = None

    GOES_ON_IN: ClassVar = "capture_goes_on_in"
    """The state of a topic that is captured no more: the topic here that is, from the same topic of the cluster."""

    SOURCE_TOPIC_ID: ClassVar = "source_topic_id"
    """The state of a topic that goes on for another: the id of the cluster's topic, where the cluster has topic ids."""

    SOURCE_CLUSTER_ID: ClassVar = "source_cluster_id"
    """The state of a topic that is captured: the id of the cluster that it was captured from last."""

    def lag(self, log_end_offset: int) -> int:
        """Offsets that the cluster had and that are not here."""
        # The copy can be ahead: records that were captured may have been lost in the cluster since.
        return max(0, self.high_watermark - log_end_offset)

    @staticmethod
    def of(states: Mapping[str, str]) -> dict[int, Captured]:
        """What was captured of partitions. `states`: of the topic's row, or of its snapshot."""
        return of_partitions(states, _CAPTURED, lambda _, fields: Captured(**fields))

    @staticmethod
    def end(states: Mapping[str, str], partition: int) -> int:
        """The offset below which a partition's batches are as a cluster sent them; 0 where it was not captured."""
        value = states.get(f"{_CAPTURED}{partition}")
        if value is None:
            return 0
        with reading(f"{_CAPTURED}{partition}"):
            return Captured(**json.loads(value)).high_watermark

    @staticmethod
    def others(states: Mapping[str, str]) -> dict[str, str]:
        """The entries of `states` that tell neither of the log itself nor of a capture: what the topic is among its
        copies.
        """
        return {name: value for name, value in other_states(states).items() if not is_of_capture(name)}

    @staticmethod
    def topic_row(
        row: TopicRow,
        new: Mapping[int, Captured],
        batches: Mapping[int, CapturedBatch] | None = None,
        cluster_id: str | None = None,
    ) -> TopicRow:
        """The topic's row with these entries. `cluster_id`: None where the cluster does not say it."""
        entries = {
            f"{prefix}{number}": json.dumps(dataclasses.asdict(entry), separators=(",", ":"))
            for prefix, ones in ((_CAPTURED, new), (_LAST_BATCH, batches or {}))
            for number, entry in ones.items()
        }
        if cluster_id is not None:
            entries[Captured.SOURCE_CLUSTER_ID] = cluster_id
        return dataclasses.replace(row, states={**row.states, **entries})


def is_of_capture(name: str) -> bool:
    """Whether a state of this name is of a capture."""
    is_of_partition = name.startswith((_CAPTURED, _LAST_BATCH))
    return is_of_partition or name in (Captured.GOES_ON_IN, Captured.SOURCE_TOPIC_ID, Captured.SOURCE_CLUSTER_ID)


@dataclass(frozen=True, slots=True)
class CapturedBatch:
    """The last batch of a partition that was captured, as the cluster gave it."""

    base_offset: int
    crc: int

    @staticmethod
    def of(states: Mapping[str, str]) -> dict[int, CapturedBatch]:
        """The last batches of partitions that were captured."""
        return of_partitions(states, _LAST_BATCH, lambda _, fields: CapturedBatch(**fields))

    @staticmethod
    def topic_row_without(row: TopicRow, partitions: Iterable[int]) -> TopicRow:
        """The topic's row without the last captured batches of these partitions: an import has gone on behind them."""
        names = {f"{_LAST_BATCH}{number}" for number in partitions}
        return dataclasses.replace(row, states={name: text for name, text in row.states.items() if name not in names})
