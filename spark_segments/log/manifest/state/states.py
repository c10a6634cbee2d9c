"""The map `states` of a topic's row: what no setting says of the topic, and every writer keeps.

Its role among its copies (role.py).

The erasures that it remembers: when, as which version, of how many keys; never the keys. A restore asks for them, since
the files of before an erasure stay until vacuum takes them. A mirror brings them, so that a follower's bytes go when
the leader's do.

Its holes (`holes.<partition>`): offsets that are missing though no policy took them. Whatever copies records from
somewhere else can come too late, or find that records are missing there; the commit that takes the log over the missing
offsets records them. So are transactions whose end came too late (`undecided.<partition>`).

Where the tombstones of erasures are, until they go (`erased_tombstones.<partition>`): a key that was erased must not
stay in the log until somebody else appends. Where they ever were (`erasure_appends.<partition>`): these offsets are no
record of the log that a copy was made from, which gives them to other records.

Where the last import or capture left the log end (`copied_end.<partition>`): what lies beyond was appended here.

captures.py has what a capture notes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from spark_segments.errors import LogDirError
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.topic_row import TopicRow
from spark_segments.quantities import moment

T = TypeVar("T")
Offsets = tuple[int, int]
"""[start, end) of a partition."""

ERASURES = "erasures"  # of any topic: the erasures that it remembers

MOST_RANGES = 100
"""How many ranges of offsets a partition remembers of erasures. Beyond that the two with the least between are one."""

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
        keys = "unknown" if self.keys is None else f"{self.keys:,}"
        return f"version {self.version} of {moment(self.committed_ms)} ({keys} keys)"

    @classmethod
    def of(cls, snapshot: Snapshot) -> list[Erasure]:
        """The erasures that the topic remembers, by version."""
        with reading(ERASURES):
            erasures = [cls(**fields) for fields in json.loads(snapshot.states.get(ERASURES, "[]"))]
            return sorted(erasures, key=lambda erasure: erasure.version)

    @staticmethod
    def topic_row(
        snapshot: Snapshot, erasure: Erasure, rewritten: Mapping[int, Iterable[Offsets]] = MappingProxyType({})
    ) -> TopicRow:
        """The topic's row for the commit on top of `snapshot` that is part of an erasure. `rewritten`: by partition,
        the offsets of the segments that the commit writes again.
        """
        erasure = dataclasses.replace(erasure, version=snapshot.version + 1)
        states = {**snapshot.states, **erasures_entry([*Erasure.of(snapshot), erasure])}
        rewritten_before = rewritten_offsets(snapshot.states)
        for partition, ranges in rewritten.items():
            kept = _joined([*rewritten_before.get(partition, ()), *ranges])
            states[f"{_REWRITTEN}{partition}"] = json.dumps(kept, separators=(",", ":"))
        return dataclasses.replace(snapshot.topic_row, states=states)

    @staticmethod
    def rewritten(snapshot: Snapshot) -> dict[int, list[Offsets]]:
        """As `rewritten_offsets`; all offsets of the log where an earlier version of this package erased, which noted
        none.
        """
        offsets = rewritten_offsets(snapshot.states)
        if not offsets and Erasure.of(snapshot):
            offsets = {partition: [bounds] for partition, bounds in snapshot.offset_bounds().items()}
        return offsets

    @staticmethod
    def appends(states: Mapping[str, str]) -> dict[int, list[Offsets]]:
        """{partition: the offsets that erasures gave to tombstones}, in order, also of tombstones that have gone."""
        appends = of_partitions(states, _APPENDED, _ranges)
        for tombstones in ErasedTombstones.of(states):  # an earlier version of this package noted these alone
            ranges = appends.get(tombstones.partition, [])
            appends[tombstones.partition] = _joined([*ranges, (tombstones.start_offset, tombstones.end_offset)])
        return appends


def erasures_entry(erasures: Iterable[Erasure]) -> dict[str, str]:
    """The entry of the topic's states for these erasures; of erasures with the same id the last counts."""
    by_id = {erasure.erasure_id: erasure for erasure in erasures}
    kept = sorted(by_id.values(), key=lambda erasure: erasure.version)
    while len(kept) > MOST_ERASURES:
        first, second = kept[:2]
        keys = None if first.keys is None or second.keys is None else first.keys + second.keys
        kept[:2] = [dataclasses.replace(second, keys=keys, history=first.history or second.history)]
    return {ERASURES: json.dumps([dataclasses.asdict(erasure) for erasure in kept])} if kept else {}


def rewritten_offsets(states: Mapping[str, str]) -> dict[int, list[Offsets]]:
    """{partition: the offsets whose batches an erasure may have rewritten}, in order."""
    return of_partitions(states, _REWRITTEN, _ranges)


def _ranges(_: int, ranges: Iterable[Sequence[int]]) -> list[Offsets]:
    return [(int(start), int(end)) for start, end in ranges]


def _joined(ranges: Iterable[Offsets]) -> list[Offsets]:
    """Ranges in order: those that touch are one, and of more than MOST_RANGES those with the least between."""
    joined: list[Offsets] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    while len(joined) > MOST_RANGES:
        gaps = [later[0] - earlier[1] for earlier, later in itertools.pairwise(joined)]
        least = gaps.index(min(gaps))
        joined[least : least + 2] = [(joined[least][0], joined[least + 1][1])]
    return joined


_HOLES = "holes."
_UNDECIDED = "undecided."
_ERASED = "erased_tombstones."
_REWRITTEN = "erased_offsets."
_APPENDED = "erasure_appends."
_COPIED = "copied_end."


@dataclass(frozen=True, slots=True, order=True)
class Hole:
    """Offsets [start_offset, end_offset) of a partition. `noticed_ms`: when, in ms since 1970; `reason`: a clause."""

    partition: int
    start_offset: int
    end_offset: int
    noticed_ms: int
    reason: str

    REMOVED_BEFORE: ClassVar = "the source had removed them before they were copied"
    DAMAGED: ClassVar = "their batches were damaged, and a repair took them out"

    def __str__(self) -> str:
        return f"offsets {self.start_offset} to {self.end_offset - 1} are missing: {self.reason}"

    def to_dict(self) -> dict[str, int | str]:
        """The hole as plain values, as for JSON."""
        return dataclasses.asdict(self)

    @staticmethod
    def of(states: Mapping[str, str]) -> list[Hole]:
        """The holes of all partitions, by partition and offset. `states`: of the topic's row, or of its snapshot."""
        return _in_order(states, _HOLES, Hole)

    @staticmethod
    def within(snapshot: Snapshot, partition: int, start_offset: int, end_offset: int) -> list[Hole]:
        """The holes of a partition that have offsets in [start_offset, end_offset)."""
        return [
            hole
            for hole in Hole.of(snapshot.states)
            if hole.partition == partition and hole.start_offset < end_offset and hole.end_offset > start_offset
        ]

    @staticmethod
    def topic_row(snapshot: Snapshot, holes: Sequence[Hole], undecided: Sequence[Undecided] = ()) -> TopicRow:
        """The topic's row with these holes and undecided transactions, too. Of a partition that has new ones, those
        below its log start are left out: no read passes them any more.
        """
        states = dict(snapshot.states)
        before = [*Hole.of(states), *Undecided.of(states)]
        for prefix, kind, new in ((_HOLES, Hole, holes), (_UNDECIDED, Undecided, undecided)):
            for partition in {row.partition for row in new}:
                start = snapshot.partition(partition).log_start_offset
                rows = {row for row in (*before, *new) if isinstance(row, kind) and row.partition == partition}
                kept = [dataclasses.asdict(row) for row in sorted(row for row in rows if row.end_offset > start)]
                for fields in kept:
                    del fields["partition"]
                states[f"{prefix}{partition}"] = json.dumps(kept, separators=(",", ":"))
        return dataclasses.replace(snapshot.topic_row, states=states)


@dataclass(frozen=True, slots=True, order=True)
class Undecided:
    """Offsets [start_offset, end_offset) of a partition, where the records of a producer are of a transaction whose end
    was gone before it was captured. `marker_offset`: of the abort marker that the capture wrote for it. `noticed_ms`:
    when, in ms since 1970.
    """

    partition: int
    start_offset: int
    end_offset: int
    noticed_ms: int
    producer_id: int
    marker_offset: int

    def __str__(self) -> str:
        return (
            f"the transaction of producer {self.producer_id} at offsets {self.start_offset} to {self.end_offset - 1} "
            "is undecided: its records and its end left the cluster's log before the end was captured; committed reads "
            "leave them out"
        )

    def to_dict(self) -> dict[str, int]:
        """The transaction as plain values, as for JSON."""
        return dataclasses.asdict(self)

    @staticmethod
    def of(states: Mapping[str, str]) -> list[Undecided]:
        """The undecided transactions of all partitions, by partition and offset."""
        return _in_order(states, _UNDECIDED, Undecided)


@dataclass(frozen=True, slots=True, order=True)
class ErasedTombstones:
    """Offsets [start_offset, end_offset) of a partition that have the tombstones of an erasure. `horizon_ms`: when
    compaction may remove them, in ms since 1970; None before they were cleaned for the first time.
    """

    partition: int
    start_offset: int
    end_offset: int
    horizon_ms: int | None = None

    @staticmethod
    def of(states: Mapping[str, str]) -> list[ErasedTombstones]:
        """Those of all partitions, by partition and offset. `states`: of the topic's row, or of its snapshot."""
        return _in_order(states, _ERASED, ErasedTombstones)

    @staticmethod
    def topic_row(row: TopicRow, tombstones: Iterable[ErasedTombstones]) -> TopicRow:
        """The topic's row with these, too."""
        for new in tombstones:
            mine = [one for one in ErasedTombstones.of(row.states) if one.partition == new.partition]
            appends = _joined([*Erasure.appends(row.states).get(new.partition, ()), (new.start_offset, new.end_offset)])
            row = _with_tombstones(row, new.partition, [*mine, new])
            states = {**row.states, f"{_APPENDED}{new.partition}": json.dumps(appends, separators=(",", ":"))}
            row = dataclasses.replace(row, states=states)
        return row

    @staticmethod
    def topic_row_after_cleaning(
        snapshot: Snapshot, partition: int, end_offset: int, now_ms: int, delete_retention_ms: int
    ) -> TopicRow | None:
        """The topic's row after a round that cleaned a partition up to `end_offset` at `now_ms`; None if it stays.

        The first round sets the horizon, as it does in their batches. The first one after the horizon removes them.
        """
        # A reader that is behind must meet the tombstone before it goes, or it keeps the erased value for good:
        #
        #   |erased| … |first round| … delete.retention.ms … |round: they go|
        #                          ^ horizon
        log_start = snapshot.partition(partition).log_start_offset
        kept = []
        before = [one for one in ErasedTombstones.of(snapshot.states) if one.partition == partition]
        for one in before:
            is_cleaned = one.end_offset <= end_offset
            if one.end_offset <= log_start or (is_cleaned and one.horizon_ms is not None and now_ms >= one.horizon_ms):
                continue
            if is_cleaned and one.horizon_ms is None:
                one = dataclasses.replace(one, horizon_ms=now_ms + delete_retention_ms)
            kept.append(one)
        return None if kept == before else _with_tombstones(snapshot.topic_row, partition, kept)


def _with_tombstones(row: TopicRow, partition: int, tombstones: Sequence[ErasedTombstones]) -> TopicRow:
    states = {name: value for name, value in row.states.items() if name != f"{_ERASED}{partition}"}
    kept = list(tombstones)
    while len(kept) > MOST_ERASURES:  # the two oldest count as one
        first, second = kept[:2]
        horizons = [one.horizon_ms for one in (first, second) if one.horizon_ms is not None]
        kept[:2] = [
            ErasedTombstones(
                partition, first.start_offset, second.end_offset, max(horizons) if len(horizons) == 2 else None
            )
        ]
    if kept:
        fields = [dataclasses.asdict(one) for one in kept]
        for entry in fields:
            del entry["partition"]
        states[f"{_ERASED}{partition}"] = json.dumps(fields, separators=(",", ":"))
    return dataclasses.replace(row, states=states)


class CopiedEnd:
    """The log end of a partition as the last import or capture of it left it. Whoever else appends moves the log end
    beyond, into offsets that the copied log gives to records of its own.
    """

    @staticmethod
    def of(states: Mapping[str, str]) -> dict[int, int]:
        """{partition: its copied end}. A partition that a version up to 0.3.0 copied has none."""
        return of_partitions(states, _COPIED, lambda _, end: int(end))

    @staticmethod
    def topic_row(row: TopicRow, ends: Mapping[int, int]) -> TopicRow:
        """The topic's row with these ends."""
        entries = {f"{_COPIED}{number}": str(end) for number, end in ends.items()}
        return dataclasses.replace(row, states={**row.states, **entries})


def _in_order(states: Mapping[str, str], prefix: str, kind: Callable[..., T]) -> list[T]:
    by_partition = of_partitions(states, prefix, lambda number, rows: [kind(number, **row) for row in rows])
    return sorted(itertools.chain.from_iterable(by_partition.values()), key=_place)


def _place(row: Any) -> tuple[int, int, int]:
    return row.partition, row.start_offset, row.end_offset


def of_partitions(states: Mapping[str, str], prefix: str, value_of: Callable[[int, Any], T]) -> dict[int, T]:
    """{partition: the value of its entry}. Raises LogDirError for an entry that this package does not write."""
    by_partition = {}
    for name, value in states.items():
        if name.startswith(prefix):
            with reading(name, f"{prefix}<partition>"):
                number = int(name.removeprefix(prefix))
                by_partition[number] = value_of(number, json.loads(value))
    return by_partition


@contextlib.contextmanager
def reading(name: str, expected: str | None = None) -> Iterator[None]:
    """Raises LogDirError where the state of this name is none that this package writes."""
    try:
        yield
    except (ValueError, TypeError, AttributeError) as error:
        raise LogDirError(
            "A state of a topic cannot be read",
            expected=f"{expected or name} as docs/format/states.md has it",
            found=f"{name}: {error}",
        ) from error


PARTITIONS_ADDED = "partitions_added"
"""The state of a topic whose keys may have records in several partitions: JSON, by addition of partitions the log end
of each partition at that commit. Empty where a broker may have added partitions: nobody knows when.
"""

_OF_THE_LOG = (_HOLES, _UNDECIDED, _ERASED, _REWRITTEN, _APPENDED, _COPIED, PARTITIONS_ADDED)


def log_states(states: Mapping[str, str]) -> dict[str, str]:
    """The entries of `states` that tell of the log itself, in each copy of it: holes, undecided transactions, the
    tombstones of erasures, how far it was copied, and when partitions were added.
    """
    return {name: value for name, value in states.items() if name.startswith(_OF_THE_LOG)}


def other_states(states: Mapping[str, str]) -> dict[str, str]:
    """The entries of `states` that `log_states` leaves."""
    return {name: value for name, value in states.items() if not name.startswith(_OF_THE_LOG)}


def states_of_copy(own: Mapping[str, str], leader: Mapping[str, str], erasures: Iterable[Erasure]) -> dict[str, str]:
    """The states of a follower: those of its own but for what it copies, the leader's facts of the log, `erasures`."""
    kept = {name: value for name, value in other_states(own).items() if name != ERASURES}
    rebuilt = {name: value for name, value in leader.items() if name == TopicRow.REBUILT_FROM}
    return kept | log_states(leader) | rebuilt | erasures_entry(erasures)
