"""A topic as a plain model: what each commit may and must do to it, judged without looking into a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from verification.long_runs.journal import Commit
from verification.long_runs.scenario import Append, Record, digest


@dataclass
class PartitionModel:
    """A partition. `placed`: what offsets hold, the cleaned ones too. `sure` is in the log; `possible` may be.

    What a compaction may remove is possible until a reader shows whether it is there. `horizons`: from when on a
    tombstone may be removed.
    """

    start: int = 0
    end: int = 0
    first_dirty: int = 0
    placed: dict[int, Record] = field(default_factory=dict)
    sure: set[int] = field(default_factory=set)
    possible: set[int] = field(default_factory=set)
    horizons: dict[int, int] = field(default_factory=dict)

    def copy(self) -> PartitionModel:
        return replace(
            self,
            placed=dict(self.placed),
            sure=set(self.sure),
            possible=set(self.possible),
            horizons=dict(self.horizons),
        )

    def place(self, records: Mapping[int, Record], there: Iterable[int] | None = None) -> None:
        self.placed |= records
        there = records.keys() if there is None else there
        self.sure |= set(there)
        self.possible |= set(there)

    def newest(self) -> dict[bytes, int]:
        """The offset of the newest record of each key, removed or not."""
        rows = sorted((offset, record.key) for offset, record in self.placed.items() if offset >= self.start)
        return {key: offset for offset, key in rows if key is not None}

    def see(self, offsets: list[int], checksum: int) -> None:
        """What a reader saw is what may be there, and from now on known to be."""
        assert offsets == sorted(set(offsets)), "offsets rise"
        found = set(offsets)
        sure = {offset for offset in self.sure if offset >= self.start}
        assert sure <= found, f"lost: {sorted(sure - found)[:5]}"
        unknown = found - {offset for offset in self.possible if self.start <= offset < self.end}
        assert not unknown, f"resurrected, or never there: {sorted(unknown)[:5]}"
        assert digest((offset, self.placed[offset]) for offset in offsets) == checksum, "offsets keep their records"
        newest = self.newest()
        for key, offset in newest.items():
            if offset not in found:
                assert self.placed[offset].value is None, f"the newest value of {key!r}, {offset}, is lost"
        stale = [at for at in offsets if (key := self.placed[at].key) is not None and newest[key] not in found]
        assert not stale, f"values that were deleted are back: {stale[:5]}"
        self.sure, self.possible = found, set(found)


@dataclass(frozen=True)
class KafkaStep:
    """The Kafka partition at one step: all it ever held, and what its cleaner has left."""

    history: dict[int, Record]
    there: frozenset[int]
    start: int
    end: int


@dataclass
class TopicModel:
    """A topic. `last`: the last transaction of each writer. `saved`: versions that a later restore comes back to."""

    kafka: Mapping[int, KafkaStep]
    wanted: frozenset[int] = frozenset()
    saved: dict[int, tuple[dict[int, PartitionModel], dict[str, int]]] = field(default_factory=dict)
    is_deleted: bool = True
    config: dict[str, str] = field(default_factory=dict)
    partitions: dict[int, PartitionModel] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)

    @property
    def policy(self) -> set[str]:
        return set(self.config.get("cleanup.policy", "delete").split(","))

    def apply(self, commit: Commit) -> None:
        """Does what a commit said it would. Raises AssertionError where it must not have been made."""
        line = commit.line
        if line is None:
            return
        moved = {int(number): row for number, row in line["partitions"].items()}
        segments = {int(number): row for number, row in line.get("segments", {}).items()}
        assert self.is_deleted <= (commit.operation in ("create", "restore", "vacuum")), "the topic is deleted"
        intent = line["intent"]
        match commit.operation:
            case "create":
                self._create(line["config"], moved)
            case "delete":
                self.is_deleted = True
            case "append":
                self._append(Append(**intent["append"]), line["transactions"])
            case "alter":
                changed = self.config | intent["alter"]
                self.config = {name: value for name, value in changed.items() if value is not None}
                assert self.config == line["config"]
            case "delete-records":
                assert "delete" in self.policy
                for number, before in intent["delete_records"].items():
                    partition = self.partitions[int(number)]
                    partition.start = max(partition.start, partition.end if before == -1 else before)
            case "retain":
                for number, (start, _, _) in moved.items():
                    self._retain(self.partitions[number], start, segments[number], intent["now_ms"])
            case "compact":
                assert "compact" in self.policy
                for number, (_, _, first_dirty) in moved.items():
                    self._compact(self.partitions[number], first_dirty, segments[number]["reached"], intent["now_ms"])
            case "restore":
                self._restore(intent["restore"], intent["forget"], moved, line["transactions"])
            case "import":
                if moved or segments:
                    self._import(self.kafka[intent["step"]], moved, segments)
            case "roll" | "vacuum":
                pass
            case other:
                raise AssertionError(f"nobody does a {other} here")
        for number, (start, end, first_dirty) in moved.items():
            partition = self.partitions[number]
            assert (partition.start, partition.end) == (start, end), (
                number,
                partition.start,
                partition.end,
                start,
                end,
            )
            partition.first_dirty = first_dirty

    def save(self, version: int) -> None:
        """Keeps the topic as it is at a version that a restore will want."""
        if version in self.wanted:
            self.saved[version] = {number: one.copy() for number, one in self.partitions.items()}, dict(self.last)

    def _create(self, config: dict[str, str], moved: dict[int, list[int]]) -> None:
        self.is_deleted, self.config, self.last = False, config, {}
        self.partitions = {number: PartitionModel(start, end) for number, (start, end, _) in moved.items()}
        for partition in self.partitions.values():
            assert partition.start == partition.end, "a new topic is empty"

    def _append(self, append: Append, transactions: dict[str, int]) -> None:
        assert transactions == {append.writer: append.transaction}
        assert append.transaction > self.last.get(append.writer, -1), f"{append} is repeated"
        assert not (append.has_null_key and "compact" in self.policy), "a compacted topic refuses null keys"
        self.last[append.writer] = append.transaction
        partition = self.partitions[append.partition]
        records = dict(enumerate(append.records(), start=partition.end))
        partition.place(records)
        partition.end += len(records)

    def _retain(self, partition: PartitionModel, start: int, segments: dict[str, Any], now_ms: int) -> None:
        """Each segment that goes is below the log start, too much, or too old; and a prefix goes."""
        retention_bytes = int(self.config.get("retention.bytes", -1))
        retention_ms = int(self.config.get("retention.ms", 7 * 24 * 60 * 60 * 1000))
        left = segments["log_bytes"]
        for base, following, log_bytes in segments["gone"]:
            left -= log_bytes
            if following <= partition.start:
                continue
            assert "delete" in self.policy, "only cleanup.policy=delete lets retention take records"
            times = [self.placed_ms(partition, offset) for offset in partition.sure if base <= offset < following]
            is_old = retention_ms >= 0 and all(now_ms - time > retention_ms for time in times)
            assert is_old or 0 <= retention_bytes <= left, f"{base} to {following} is not to go yet"
        ends = [following for _, following, _ in segments["gone"]]
        assert start == max([partition.start, *ends])
        partition.start = start

    @staticmethod
    def placed_ms(partition: PartitionModel, offset: int) -> int:
        return partition.placed[offset].timestamp_ms if offset >= partition.start else 0

    def _compact(self, partition: PartitionModel, end: int, reached: int, now_ms: int) -> None:
        """Older values of a key below `end` may go, and tombstones whose horizon has passed; nothing else."""
        lag_ms = int(self.config.get("min.compaction.lag.ms", 0))
        dirty = max(partition.first_dirty, partition.start)
        young = [
            offset
            for offset in partition.sure
            if dirty <= offset < end and lag_ms > 0 and partition.placed[offset].timestamp_ms > now_ms - lag_ms
        ]
        assert not young, f"min.compaction.lag.ms protects {sorted(young)[:5]}"
        cleaned = sorted(offset for offset in partition.possible if partition.start <= offset < end)
        newest = {partition.placed[offset].key: offset for offset in cleaned}
        for offset in cleaned:
            record = partition.placed[offset]
            is_expired = record.value is None and partition.horizons.get(offset, now_ms + 1) <= now_ms
            if record.key is None or newest[record.key] != offset or is_expired:
                partition.sure.discard(offset)
        horizon_ms = now_ms + int(self.config["delete.retention.ms"])
        for offset in partition.possible:
            if offset < max(end, reached) and partition.placed[offset].value is None:
                partition.horizons.setdefault(offset, horizon_ms)

    def _restore(self, version: int, forget: bool, moved: dict[int, list[int]], transactions: dict[str, int]) -> None:
        """The records of that version; offsets given out since stay given out, and belong to nobody."""
        partitions, last = self.saved[version]
        before, self.partitions, self.is_deleted = self.partitions, {}, False
        for number, now in before.items():
            then = partitions.get(number, PartitionModel()).copy()
            if moved[number][0] == now.end and not {one for one in then.sure if one >= then.start}:
                then = PartitionModel(now.end, now.end)  # nothing was in it, and nobody gets these offsets again
            then.end = now.end
            self.partitions[number] = then
        if forget:
            self.last = dict(last)
        else:
            self.last = {name: max(self.last.get(name, -1), last.get(name, -1)) for name in self.last.keys() | last}

    def _import(self, kafka: KafkaStep, moved: dict[int, list[int]], segments: dict[int, Any]) -> None:
        """What is new comes after what is here, or Kafka's records take the place of all that is here."""
        [(number, partition)] = self.partitions.items()
        start, end, _ = moved.get(number, [partition.start, partition.end, 0])
        assert partition.start <= start <= max(partition.start, kafka.start) and partition.end <= end <= kafka.end
        first = partition.end
        if segments and segments[number]["all_gone"]:
            first, partition.placed = start, {}
            partition.sure, partition.possible, partition.horizons = set(), set(), {}
        new = {offset: record for offset, record in kafka.history.items() if first <= offset < end}
        partition.place(new, new.keys() & kafka.there)
        partition.start, partition.end = start, end
