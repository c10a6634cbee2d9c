"""The model that judges long runs finds what it is there to find."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from verification.long_runs.journal import Commit
from verification.long_runs.model import KafkaStep, TopicModel
from verification.long_runs.scenario import Append, Record, digest

NOW_MS = 1_700_000_000_000
COMPACTED = {"cleanup.policy": "compact", "delete.retention.ms": "100", "retention.ms": "1000"}


class History:
    """Commits to one partition, each as an actor would have noted it."""

    def __init__(self, config: dict[str, str], *, restored: int | None = None) -> None:
        self.model = TopicModel({}, frozenset() if restored is None else frozenset([restored]))
        self.version = -1
        self.add("create", config=config, partitions={"0": [0, 0, 0]})

    @property
    def partition(self) -> Any:
        return self.model.partitions[0]

    def add(self, operation: str, intent: dict[str, Any] | None = None, **line: Any) -> None:
        self.version += 1
        line = {"partitions": {}, "intent": intent or {}, "transactions": {}} | line
        self.model.apply(Commit(self.version, NOW_MS, operation, line))
        self.model.save(self.version)

    def append(self, transaction: int, *, has_null_key: bool = False) -> None:
        one = Append("writer", transaction, "topic", 0, 1, NOW_MS, has_null_key)
        end = self.partition.end + 1 + has_null_key
        self.add(
            "append",
            {"append": dataclasses.asdict(one)},
            transactions={"writer": transaction},
            partitions={"0": [self.partition.start, end, 0]},
        )

    def place(self, *records: tuple[bytes, bytes | None]) -> None:
        first = self.partition.end
        self.partition.place({first + at: Record(*one, NOW_MS) for at, one in enumerate(records)})
        self.partition.end += len(records)

    def compact(self, first_dirty: int, now_ms: int = NOW_MS) -> None:
        moved = {"0": [self.partition.start, self.partition.end, first_dirty]}
        self.add("compact", {"now_ms": now_ms}, partitions=moved, segments={"0": {"reached": first_dirty}})

    def retain(self, following: int, now_ms: int = NOW_MS) -> None:
        moved = {"0": [following, self.partition.end, 0]}
        gone = {"0": {"log_bytes": 1000, "gone": [[0, following, 900]]}}
        self.add("retain", {"now_ms": now_ms}, partitions=moved, segments=gone)

    def see(self, *offsets: int) -> None:
        self.partition.see([*offsets], digest((at, self.partition.placed[at]) for at in offsets))


@pytest.fixture
def history() -> History:
    return History(COMPACTED)


def test_a_record_that_no_compaction_may_take_is_missed(history):
    history.place((b"a", b"1"), (b"b", b"2"))
    with pytest.raises(AssertionError, match="lost"):
        history.see(0)


def test_an_older_value_may_go_and_then_must_not_come_back(history):
    history.place((b"a", b"1"), (b"a", b"2"))
    history.compact(2)
    history.see(0, 1)
    history.compact(2)
    history.see(1)
    with pytest.raises(AssertionError, match="resurrected"):
        history.see(0, 1)


def test_a_newest_value_stays(history):
    history.place((b"a", b"1"), (b"a", b"2"))
    history.compact(2)
    with pytest.raises(AssertionError, match="lost"):
        history.see(0)


def test_a_tombstone_stays_until_its_horizon(history):
    history.place((b"a", b"1"), (b"a", None))
    history.compact(2)
    history.compact(2, NOW_MS + 99)
    with pytest.raises(AssertionError, match="lost"):
        history.see()
    history.compact(2, NOW_MS + 100)
    history.see()


def test_a_value_is_not_there_without_the_tombstone_that_hid_it(history):
    history.place((b"a", b"1"), (b"a", None))
    history.compact(2)
    history.compact(2, NOW_MS + 100)
    with pytest.raises(AssertionError, match="values that were deleted are back"):
        history.see(0)


def test_an_offset_keeps_its_record(history):
    history.place((b"a", b"1"))
    with pytest.raises(AssertionError, match="keep their records"):
        history.partition.see([0], digest([(0, Record(b"a", b"2", NOW_MS))]))


def test_a_deleted_topic_leaves_nothing_to_the_next_of_its_name(history):
    history.place((b"a", b"1"))
    record = history.partition.placed[0]
    history.add("delete")
    history.add("create", config=COMPACTED, partitions={"0": [0, 0, 0]})
    with pytest.raises(AssertionError, match="never there"):
        history.partition.see([0], digest([(0, record)]))


def test_a_repeated_transaction_must_not_be_added(history):
    history.append(0)
    with pytest.raises(AssertionError, match="repeated"):
        history.append(0)


def test_a_transaction_that_a_restore_forgot_may_be_added_again():
    history = History(COMPACTED, restored=0)
    history.append(0)
    history.add("restore", {"restore": 0, "forget": True}, partitions={"0": [1, 1, 0]})
    history.append(0)
    history.see(1)


def test_a_restore_remembers_transactions_unless_it_is_to_forget_them():
    history = History(COMPACTED, restored=0)
    history.append(0)
    history.add("restore", {"restore": 0, "forget": False}, partitions={"0": [1, 1, 0]})
    with pytest.raises(AssertionError, match="repeated"):
        history.append(0)


def test_what_a_restore_took_back_must_not_be_there():
    history = History(COMPACTED, restored=0)
    history.append(0)
    record = history.partition.placed[0]
    history.add("restore", {"restore": 0, "forget": False}, partitions={"0": [0, 1, 0]})
    with pytest.raises(AssertionError, match="never there"):
        history.partition.see([0], digest([(0, record)]))


def test_a_compacted_topic_takes_no_record_without_a_key(history):
    with pytest.raises(AssertionError, match="null keys"):
        history.append(0, has_null_key=True)


def test_a_compaction_of_a_topic_that_is_altered_must_not_land(history):
    history.place((b"a", b"1"), (b"a", b"2"))
    history.add("alter", {"alter": {"cleanup.policy": "delete"}}, config=COMPACTED | {"cleanup.policy": "delete"})
    with pytest.raises(AssertionError):
        history.compact(2)


def test_a_compaction_must_not_reach_what_the_lag_protects():
    history = History(COMPACTED | {"min.compaction.lag.ms": "10"})
    history.place((b"a", b"1"), (b"a", b"2"))
    with pytest.raises(AssertionError, match=r"min\.compaction\.lag\.ms"):
        history.compact(2, NOW_MS + 9)
    history.compact(2, NOW_MS + 10)


def test_retention_takes_nothing_of_a_topic_that_is_only_compacted(history):
    history.place((b"a", b"1"))
    with pytest.raises(AssertionError, match="lets retention take"):
        history.retain(1, NOW_MS + 2000)


def test_retention_takes_what_is_too_old_and_nothing_younger():
    history = History({"retention.ms": "1000"})
    history.place((b"a", b"1"))
    with pytest.raises(AssertionError, match="not to go yet"):
        history.retain(1, NOW_MS + 1000)
    history.retain(1, NOW_MS + 1001)


def test_retention_leaves_its_bytes():
    history = History({"retention.ms": "-1", "retention.bytes": "101"})
    history.place((b"a", b"1"))
    with pytest.raises(AssertionError, match="not to go yet"):
        history.retain(1)
    history.model.config["retention.bytes"] = "100"
    history.retain(1)


def test_an_import_adds_what_kafka_has_and_nothing_else(history):
    records = {at: Record(b"%d" % (at - at % 2), b"value", NOW_MS) for at in range(4)}
    history.model.kafka = {7: KafkaStep(records, frozenset({0, 1, 3}), 0, 4)}
    history.add("import", {"step": 7}, partitions={"0": [0, 4, 0]}, segments={"0": {"all_gone": False}})
    history.see(0, 1, 3)
    with pytest.raises(AssertionError):
        history.add("import", {"step": 7}, partitions={"0": [0, 5, 0]}, segments={"0": {"all_gone": False}})
