"""A topic as a plain dictionary of records, with what each operation must leave and may leave of it.

The rules here are Kafka's, written down once more, and import nothing of the package. They know no files. Retention and
compaction go by segments, which the model does not have: it says which records must stay and which may go, and learns
from one reader which are there (`settle`). All other readers have to agree with that one.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Place = tuple[int, int]
"""Partition and offset."""


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


class Seen(NamedTuple):
    """What a reader sees of a partition."""

    start: int
    end: int
    records: dict[int, Record]


@dataclass
class Partition:
    """A partition. `written`: what its offsets hold from the log start on, cleaned since or not. `sure` must be there,
    `possible` may be. `start` to `most_start`: where the log start may be. `commits`: which commit wrote an offset.
    `horizons`: from when on a tombstone may go. `aborted`: offsets of aborted transactions. `unstable`: the first
    offset of an open one.
    """

    start: int = 0
    most_start: int = 0
    end: int = 0
    written: dict[int, Record] = field(default_factory=dict)
    commits: dict[int, int] = field(default_factory=dict)
    sure: set[int] = field(default_factory=set)
    possible: set[int] = field(default_factory=set)
    horizons: dict[int, int] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    unstable: int | None = None

    def is_stable(self, offset: int) -> bool:
        return self.unstable is None or offset < self.unstable

    @property
    def stable_end(self) -> int:
        return self.end if self.unstable is None else max(self.start, self.unstable)

    def place(self, records: Mapping[int, Record], commit: int, sure: Collection[int] | None = None) -> None:
        self.written |= records
        self.commits |= dict.fromkeys(records, commit)
        self.sure |= set(records if sure is None else sure)
        self.possible |= set(records)

    def forget(self, offsets: Collection[int]) -> None:
        """These records are nowhere any more."""
        for offset in offsets:
            self.written.pop(offset, None)
            self.horizons.pop(offset, None)
        self.sure.difference_update(offsets)
        self.possible.difference_update(offsets)

    def move_start(self, least: int, most: int) -> None:
        self.start, self.most_start = max(self.start, least), max(self.start, most)

    def newest(self, *, committed: bool = True) -> dict[bytes, int]:
        """The offset of the last record of each key, of no aborted one, and of an open one unless `committed`."""
        rows = sorted(
            (offset, record.key)
            for offset, record in self.written.items()
            if offset >= self.start and offset not in self.aborted and (self.is_stable(offset) or not committed)
        )
        return {key: offset for offset, key in rows if key is not None}

    def settle(self, seen: Seen) -> None:
        """What a reader sees must be there or may be there, and from now on nothing else is."""
        assert seen.end == self.end, f"the log end is {seen.end}, not {self.end}"
        assert self.start <= seen.start <= self.most_start, (
            f"the log start is {seen.start}, not from {self.start} to {self.most_start}"
        )
        self.start = self.most_start = seen.start
        self.forget([offset for offset in self.written if offset < self.start])
        lost = self.sure - seen.records.keys()
        assert not lost, f"lost: {_shown(self.written, lost)}"
        strange = seen.records.keys() - self.possible
        assert not strange, f"back, or never there: {_shown(seen.records, strange)}"
        for offset, record in seen.records.items():
            assert record == self.written[offset], f"offset {offset} has {record}, not {self.written[offset]}"
        self.sure, self.possible = set(seen.records), set(seen.records)


@dataclass
class TopicModel:
    """A topic. `additions`: the commits that added partitions. `erasures`: the commits that erased a key, by key."""

    policy: frozenset[str]
    retention_ms: int = -1
    delete_retention_ms: int = 0
    partitions: dict[int, Partition] = field(default_factory=dict)
    additions: list[int] = field(default_factory=list)
    erasures: dict[bytes, list[int]] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    commit: int = 0

    def copy(self) -> TopicModel:
        return copy.deepcopy(self)

    # What is done to it

    def append(self, records: Mapping[int, list[Record]]) -> None:
        """One commit: records by partition, in order."""
        self.commit += 1
        for number, new in records.items():
            partition = self.partitions[number]
            partition.place(dict(enumerate(new, start=partition.end)), self.commit)
            partition.end += len(new)

    def add_partitions(self, count: int) -> None:
        self.commit += 1
        self.additions.append(self.commit)
        for number in range(len(self.partitions), count):
            self.partitions[number] = Partition()

    def delete_records(self, before: Mapping[int, int]) -> None:
        for number, offset in before.items():
            self.partitions[number].move_start(offset, offset)

    def expire(self, now_ms: int, *, is_rolled: bool) -> None:
        """Retention takes a prefix of segments whose records are all too old. A young record keeps all behind it.

        Where all that a partition has is too old, a broker rolls the active segment, and leaves nothing.
        """
        if "delete" not in self.policy or self.retention_ms < 0:
            return
        for partition in self.partitions.values():
            young = [
                offset
                for offset in sorted(partition.possible)
                if now_ms - partition.written[offset].timestamp_ms <= self.retention_ms
            ]
            most = young[0] if young else partition.end
            least = partition.end if is_rolled and partition.sure and not young else partition.start
            partition.move_start(least, most)
            partition.sure = {offset for offset in partition.sure if offset >= most}

    def shrink(self) -> None:
        """Retention by size may take any prefix."""
        if "delete" in self.policy:
            for partition in self.partitions.values():
                partition.move_start(partition.start, partition.end)
                partition.sure = set()

    def empty(self) -> None:
        """Retention by size leaves nothing, also of the active segment."""
        if "delete" in self.policy:
            for partition in self.partitions.values():
                partition.move_start(partition.end if partition.sure else partition.start, partition.end)
                partition.sure = set()

    def compact(self, now_ms: int) -> None:
        """Older values of a key may go, records without a key, and tombstones whose horizon has passed."""
        if "compact" not in self.policy:
            return
        for partition in self.partitions.values():
            newest = partition.newest()
            for offset in sorted(partition.possible):
                if not partition.is_stable(offset):
                    break
                key, value, _ = partition.written[offset]
                is_old = key is None or newest.get(key) != offset
                is_expired = value is None and partition.horizons.get(offset, now_ms + 1) <= now_ms
                if is_old or is_expired:
                    partition.sure.discard(offset)
                if value is None:
                    partition.horizons.setdefault(offset, now_ms + self.delete_retention_ms)

    def drop_tombstones(self) -> None:
        """All is sealed, cleaned, and cleaned again after its horizon: tombstones that hide nothing must be gone."""
        values = {
            (number, partition.written[offset].key)
            for number, partition in self.partitions.items()
            for offset in partition.possible
            if partition.written[offset].value is not None and offset not in partition.aborted
        }
        for number, partition in self.partitions.items():
            newest = partition.newest()
            tombstones = [one for one in partition.possible if partition.written[one].value is None]
            for offset in filter(partition.is_stable, tombstones):
                key = partition.written[offset].key
                elsewhere = any(other != number and its_key == key for other, its_key in values)
                if not elsewhere or (key is not None and newest.get(key) != offset):
                    partition.possible.discard(offset)
                    partition.sure.discard(offset)

    def erase(self, keys: Collection[bytes], now_ms: int) -> list[bytes]:
        """All records of the keys go. In a compacted topic a tombstone of each key comes where it had a value.
        Returns the keys of which there was a record to erase: where only its tombstone is left, there is none.
        """
        self.commit += 1
        found = []
        for _, partition in sorted(self.partitions.items()):
            newest = partition.newest()
            for key in sorted(keys):
                offsets = [offset for offset, record in partition.written.items() if record.key == key]
                kept = None
                if "compact" in self.policy and key in newest and newest[key] in partition.possible:
                    kept = newest[key]
                    if partition.written[kept].value is not None:
                        kept = partition.end
                        partition.place({kept: Record(key, None, now_ms)}, self.commit)
                        partition.end += 1
                gone = [offset for offset in offsets if offset != kept]
                if not partition.possible.isdisjoint(gone):
                    found.append(key)
                partition.forget(gone)
        return self.note_erasure(found)

    def note_erasure(self, keys: Collection[bytes]) -> list[bytes]:
        """The newest commit erased these keys."""
        for key in {*keys}:
            self.erasures.setdefault(key, []).append(self.commit)
        return sorted({*keys})

    def restore(self, then: TopicModel) -> None:
        """The records of an earlier state. Offsets that were given out since stay given out."""
        ends = {number: partition.end for number, partition in self.partitions.items()}
        old = {number: copy.deepcopy(then.partitions.get(number, Partition())) for number in ends}
        self.partitions = old
        for number, end in ends.items():
            partition = old[number]
            if not partition.sure:
                partition.most_start = end
            partition.end = end

    # What readers must see

    def settle(self, seen: Mapping[int, Seen]) -> None:
        assert seen.keys() == self.partitions.keys(), f"partitions {sorted(seen)}, not {sorted(self.partitions)}"
        for number, one in seen.items():
            try:
                self.partitions[number].settle(one)
            except AssertionError as error:
                raise AssertionError(f"partition {number}: {error}") from None
        for key, place in self._newest().items():
            record = self.record(place)
            is_there = place[1] in self.partitions[place[0]].sure
            assert is_there or record.value is None, f"the newest value of {key!r} is lost: {record} at {place}"

    def records(self, *, committed: bool = False) -> dict[Place, Record]:
        return {
            (number, offset): partition.written[offset]
            for number, partition in sorted(self.partitions.items())
            for offset in sorted(partition.sure)
            if not committed or (partition.is_stable(offset) and offset not in partition.aborted)
        }

    def latest(self, *, tombstones: bool, committed: bool = False) -> dict[Place, Record]:
        """The newest record of each key: later eras first, then what came after an erasure of the key, then time.

        The view leaves out aborted records also for a reader of uncommitted ones.
        """
        rows = {place: self.record(place) for place in sorted(self._newest(committed=committed).values())}
        return {
            (number, offset): record
            for (number, offset), record in rows.items()
            if offset in self.partitions[number].sure and (tombstones or record.value is not None)
        }

    def record(self, place: Place) -> Record:
        return self.partitions[place[0]].written[place[1]]

    def commit_of(self, place: Place) -> int:
        return self.partitions[place[0]].commits[place[1]]

    def _newest(self, *, committed: bool = True) -> dict[bytes, Place]:
        rivals: dict[bytes, list[Place]] = {}
        for number, partition in self.partitions.items():
            for key, offset in partition.newest(committed=committed).items():
                rivals.setdefault(key, []).append((number, offset))
        return {key: max(places, key=self._rank) for key, places in rivals.items()}

    def _rank(self, place: Place) -> tuple[int, ...]:
        """Which of two records of a key in different partitions is the newer one.

        A record that is appended after an erasure of its key is newer than the erasure, whatever its time: the
        erasure's own tombstone has the number of its commit, and counts as before it.
        """
        number, offset = place
        record, commit = self.record(place), self.commit_of(place)
        era = sum(added < commit for added in self.additions)
        erased = sum(erasure < commit for erasure in self.erasures.get(record.key, ()))
        return era, erased, record.timestamp_ms, offset, number


def _shown(records: Mapping[int, Record], offsets: Collection[int]) -> str:
    rows = [f"{offset} {records[offset].key!r}={records[offset].value!r}" for offset in sorted(offsets)[:4]]
    return ", ".join(rows) + (f" and {len(offsets) - 4} more" if len(offsets) > 4 else "")
