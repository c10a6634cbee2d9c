"""The plain model of a topic: what each commit may and must do to it, and how the topic was at each of its versions.

The rules are those of the long runs (verification/long_runs/model.py): an append puts its records at the log
end, retention takes a prefix that its policy lets go, a compaction older values and expired tombstones, a restore
brings back a version. Here a version also keeps its own copy, so that a reader of an old version can be judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from verification.long_runs.journal import Commit
from verification.long_runs.model import PartitionModel, TopicModel
from verification.long_runs.scenario import Record

VERSIONS_KEPT = 300


@dataclass(frozen=True, slots=True)
class AppendIntent:
    """One append of a writer: records by partition, in order. `transaction` None: it has none."""

    writer: str
    transaction: int | None
    records: Mapping[int, tuple[Record, ...]]

    @property
    def has_null_key(self) -> bool:
        return any(record.key is None for records in self.records.values() for record in records)


@dataclass
class TopicAt:
    """A topic at a version."""

    version: int
    is_deleted: bool
    partitions: dict[int, PartitionModel]
    last: dict[str, int]


@dataclass
class SimulatedTopic(TopicModel):
    """A topic as its versions follow each other. `versions`: the last of them, by number. `superseded_us`: when the
    next version came, of all of them.
    """

    versions: dict[int, TopicAt] = field(default_factory=dict)
    superseded_us: dict[int, int] = field(default_factory=dict)

    def follow(self, commit: Commit, touched: Iterable[int] | None, now_us: int) -> TopicAt:
        """The topic after a commit. Raises AssertionError where it must not have been made so.

        `touched`: the partitions that it changes, None for all.
        """
        numbers = self.partitions.keys() if touched is None else touched
        self.partitions = {number: one.copy() if number in numbers else one for number, one in self.partitions.items()}
        self.last = dict(self.last)
        self.apply(commit)
        for number in numbers:
            if number in self.partitions:
                _forget_below_start(self.partitions[number])
        self.superseded_us[commit.version - 1] = now_us
        at = TopicAt(commit.version, self.is_deleted, dict(self.partitions), self.last)
        self.versions[commit.version] = at
        self.versions.pop(commit.version - VERSIONS_KEPT, None)
        return at

    def apply(self, commit: Commit) -> None:
        line = commit.line
        if line is None:
            return
        match commit.operation:
            case "append":
                assert not self.is_deleted, "the topic is deleted"
                self._append_all(line["intent"]["append"], line["transactions"])
                return
            case "erase":
                return  # the judge looks at what is left
            case "alter" if "alter" not in line["intent"]:  # a job notes its table
                assert not self.is_deleted, "the topic is deleted"
                assert not line["partitions"], "a note of a table changes no partition"
                assert self.config == line["config"], "a note of a table changes no setting"
                return
            case "alter":
                for number, (start, end, _) in line["partitions"].items():
                    if number not in self.partitions:
                        assert start == end == 0, "a new partition is empty"
                        self.partitions[number] = PartitionModel()
        super().apply(commit)

    def _append_all(self, intent: AppendIntent, transactions: dict[str, int]) -> None:
        wanted = {} if intent.transaction is None else {intent.writer: intent.transaction}
        assert transactions == wanted, f"the transaction is {transactions}, not {wanted}"
        if intent.transaction is not None:
            assert intent.transaction > self.last.get(intent.writer, -1), f"{wanted} is repeated"
            self.last[intent.writer] = intent.transaction
        assert not (intent.has_null_key and "compact" in self.policy), "a compacted topic refuses null keys"
        for number, records in intent.records.items():
            partition = self.partitions[number]
            partition.place(dict(enumerate(records, start=partition.end)))
            partition.end += len(records)

    def _restore(self, version: int, forget: bool, moved: dict[int, list[int]], transactions: dict[str, int]) -> None:
        at = self.versions.get(version)
        assert at is not None, "the model keeps the versions that are restored"
        self.saved = {version: (at.partitions, at.last)}
        super()._restore(version, forget, moved, transactions)


def _forget_below_start(partition: PartitionModel) -> None:
    """What is below the log start is history; a restore comes back to it by the copy of its version."""
    start = partition.start
    if partition.placed and min(partition.placed) < start:
        partition.placed = {at: record for at, record in partition.placed.items() if at >= start}
        partition.sure = {at for at in partition.sure if at >= start}
        partition.possible = {at for at in partition.possible if at >= start}
        partition.horizons = {at: ms for at, ms in partition.horizons.items() if at >= start}
