"""How far a partition is behind the cluster that it is captured from: an entry `captured.<partition>` of the map
`states` in the topic's row.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass

from spark_segments.log.manifest.topic_row import TopicRow

_PREFIX = "captured."

GOES_ON_IN = "capture_goes_on_in"
"""The state of a topic that is captured no more: the topic here that is, from the same topic of the cluster."""

SOURCE_TOPIC_ID = "source_topic_id"
"""The state of a topic that goes on for another: the id of the cluster's topic, where the cluster tells it."""


@dataclass(frozen=True, slots=True)
class Captured:
    """`at_ms`: when all that the cluster had of the partition was here last, at first when its capture began, in ms
    since 1970; `high_watermark`: the cluster's, as it was seen last; `late`: whether a compacted partition was ever
    away for longer than delete.retention.ms; `stable_end`: then, the first offset of a transaction that was open, None
    where none was: its marker may be missing, so that the last stable offset stays here.
    """

    at_ms: int
    high_watermark: int
    late: bool = False
    stable_end: int | None = None

    def lag(self, log_end_offset: int) -> int:
        """Offsets that the cluster had and that are not here."""
        return max(0, self.high_watermark - log_end_offset)


def captured_of(states: Mapping[str, str]) -> dict[int, Captured]:
    """What was captured of partitions. `states`: of the topic's row, or of its snapshot."""
    return {
        int(name.removeprefix(_PREFIX)): Captured(**json.loads(value))
        for name, value in states.items()
        if name.startswith(_PREFIX)
    }


def captured_end(states: Mapping[str, str], partition: int) -> int:
    """The offset below which a partition's batches are as a cluster sent them; 0 where it was not captured."""
    value = states.get(f"{_PREFIX}{partition}")
    return 0 if value is None else Captured(**json.loads(value)).high_watermark


def is_captured(name: str) -> bool:
    """Whether a state of this name is of a capture."""
    return name.startswith(_PREFIX) or name in (GOES_ON_IN, SOURCE_TOPIC_ID)


def with_captured(row: TopicRow, new: Mapping[int, Captured]) -> TopicRow:
    """The topic's row with these entries."""
    entries = {
        f"{_PREFIX}{number}": json.dumps(dataclasses.asdict(one), separators=(",", ":")) for number, one in new.items()
    }
    return dataclasses.replace(row, states={**row.states, **entries})
