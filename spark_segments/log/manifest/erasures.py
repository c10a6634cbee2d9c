"""The erasures that a topic's row remembers: when, as which version, of how many keys; never the keys.

A restore asks for them, since the files of before an erasure stay until vacuum takes them. A mirror brings them, so
that a follower's bytes go when the leader's do.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import ERASURES
from spark_segments.log.manifest.topic_row import FIRST_FORMAT_VERSION, TopicRow

MOST_ERASURES = 100
"""How many a topic remembers. Beyond that the two oldest count as one, whose version is the later one's."""


@dataclass(frozen=True, slots=True)
class Erasure:
    """An erasure of `keys` keys (None: nobody knows how many), whose last commit in this manifest made `version`.

    `erasure_id` is the same at the leader and at its followers. `history`: the files of earlier versions that have the
    keys were deleted with it.
    """

    erasure_id: str
    version: int
    committed_ms: int
    keys: int | None
    history: bool = False

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.committed_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        return f"version {self.version} of {when} UTC ({'unknown' if self.keys is None else f'{self.keys:,}'} keys)"


def erasures_of(snapshot: Snapshot) -> list[Erasure]:
    """The erasures that the topic remembers, by version."""
    found = [Erasure(**one) for one in json.loads(snapshot.states.get(ERASURES, "[]"))]
    return sorted(found, key=lambda one: one.version)


def noted(erasures: Iterable[Erasure]) -> dict[str, str]:
    """The entry of the topic's states for these erasures; of those with the same id the last counts."""
    kept = sorted({one.erasure_id: one for one in erasures}.values(), key=lambda one: one.version)
    while len(kept) > MOST_ERASURES:
        first, second = kept[:2]
        keys = None if first.keys is None or second.keys is None else first.keys + second.keys
        kept[:2] = [dataclasses.replace(second, keys=keys, history=first.history or second.history)]
    return {ERASURES: json.dumps([dataclasses.asdict(one) for one in kept])} if kept else {}


def with_erasure(snapshot: Snapshot, erasure: Erasure) -> TopicRow | None:
    """The topic's row for the commit on top of `snapshot` that is part of an erasure. None in format version 1, which
    has no place for it: there the commit's operation alone says that it erased.
    """
    if snapshot.format_version == FIRST_FORMAT_VERSION:
        return None
    erasure = dataclasses.replace(erasure, version=snapshot.version + 1)
    states: Mapping[str, str] = snapshot.states
    return dataclasses.replace(snapshot.topic_row, states={**states, **noted([*erasures_of(snapshot), erasure])})
