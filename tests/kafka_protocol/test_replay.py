"""What a replay gives to a broker: each committed record once, as it is, and where its offsets went."""

from __future__ import annotations

import dataclasses
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.partitioner.default import murmur2

from spark_segments import LogDir
from spark_segments.errors import InvalidOptionError, InvalidRecordError, OffsetOutOfRangeError, UnknownTopicError
from spark_segments.format.batches import scan_batches
from spark_segments.kafka_protocol import CaptureOptions, Partitions, ReplayOptions, capture, replay
from spark_segments.kafka_protocol.replaying import replay as replaying
from spark_segments.kafka_protocol.replaying import replayed_topic
from spark_segments.kafka_protocol.replaying.replay import Replay
from spark_segments.kafka_protocol.replaying.replay_plan import Renaming
from spark_segments.kafka_protocol.replaying.schema_ids import Framed
from spark_segments.kafka_protocol.replaying.target import TargetCluster, TargetError, TargetTopic
from tests.values.registry_server import RegistryServer
from verification.kafka_protocol.broker import make_topic
from verification.kafka_protocol.fetching import fetched_batches
from verification.world.kafka_bytes.golden_files import CLEAN_DIRECTORIES, golden_dir
from verification.world.stores.memory_store import memory_log

_COLUMNS = ["partition", "key", "value", "headers", "timestamp"]
_numbers = count()


@pytest.fixture
def name() -> str:
    """A topic that the broker does not have."""
    return f"topic-{next(_numbers)}"


@pytest.fixture
def log(tmp_path: Path, name: str) -> LogDir:
    made = LogDir.create(str(tmp_path / "log"))
    made.create_topic(name, partitions=2)
    append_with_headers(made, name, range(40))
    return made


def append_with_headers(log: LogDir, name: str, numbers: range) -> None:
    rows = [
        {
            "partition": n % 2,
            "key": None if n % 5 == 0 else f"key {n % 7}",
            "value": None if n % 11 == 0 else "" if n % 6 == 0 else str(n),
            "headers": [("a", b"1"), ("b", None), ("a", b"")] if n % 3 == 0 else [],
            "timestamp": 1_700_000_000_000 + n,
        }
        for n in numbers
    ]
    log.topic(name).append(rows)


def sent(address: str, directory: Path, name: str, groups: Sequence[str] = ()) -> LogDir:
    """What the broker has of a topic, and of groups."""
    made = memory_log(f"/{directory.name}")
    capture(made, address, [name], CaptureOptions(groups=groups))
    return made


class WithMetadata(TargetCluster):
    """The broker of these tests forgets the metadata of positions."""

    known: ClassVar[dict[tuple[str, int], str]] = {}

    def positions(self, partitions: Mapping[str, int], group: str | None = None) -> dict[tuple[str, int], Any]:
        found = super().positions(partitions, group)
        return {key: TopicPartition(*key, one.offset, self.known.get(key, "")) for key, one in found.items()}

    def commit(self, positions: Mapping[tuple[str, int], tuple[int, str]]) -> None:
        super().commit(positions)
        self.known.update({key: metadata for key, (_, metadata) in positions.items()})


class AsKafka(WithMetadata):
    """And its log ends are those of the batch before."""

    def topics(self, names: list[str]) -> dict[str, TargetTopic]:
        found = super().topics(names)
        for name, topic in found.items():
            ends = {}
            for number in topic.ends:
                batches = scan_batches(fetched_batches(self._servers, name, number), path="fetched").batches
                ends[number] = int(batches.last_offset[-1]) + 1 if len(batches) else 0
            found[name] = TargetTopic(ends, topic.config)
        return found


def records(log: LogDir, name: str) -> pa.Table:
    return log.topic(name).scan(columns=_COLUMNS, isolation="read_committed").to_table()


def test_what_kafka_wrote_comes_back_by_a_capture(broker, tmp_path):
    for one in CLEAN_DIRECTORIES:
        if "/" not in one:
            shutil.copytree(golden_dir(one), tmp_path / "kafka" / golden_dir(one).name)
    kafka = LogDir.open(str(tmp_path / "kafka"))
    names = [one for one in kafka.topics() if not one.startswith("__")]
    report = replay(kafka, broker, names, ReplayOptions(name="golden"))
    told = report.partitions
    [left_out] = [text for text in report.warnings if "left out" in text]
    assert left_out.startswith("txn-0: offsets 3138 to 3167 are left out")
    back = memory_log("/back")
    capture(back, broker, names)
    assert [one["topic"] for one in told] == back.topics() == names
    for one in told:
        there = records(kafka, one["topic"])
        assert records(back, one["topic"]).equals(there)
        assert one["records_out"] == there.num_rows


@pytest.mark.proof
@pytest.mark.parametrize("idempotent", [False, True])
def test_a_replay_that_was_ended_goes_on_and_sends_nothing_twice(broker, log, name, tmp_path, monkeypatch, idempotent):
    options = ReplayOptions(name=name, idempotent=idempotent)
    monkeypatch.setattr(replaying, "TargetCluster", AsKafka)
    monkeypatch.setattr(replaying, "_PIECE_RECORDS", 7)
    monkeypatch.setattr(replayed_topic, "TRANSACTION_BYTES", 40)

    class EndedError(BaseException):
        pass

    for left in range(4):
        steps = iter(range(left))

        def step(done: int, total: int, steps: Iterator[int] = steps) -> None:
            if next(steps, None) is None:
                raise EndedError

        with pytest.raises(EndedError):
            replay(log, broker, [name], options, progress=step)
        append_with_headers(log, name, range(40 + 10 * left, 50 + 10 * left))
    replay(log, broker, [name], options)
    assert replay(log, broker, [name], options).records_out == 0
    there = sent(broker, tmp_path / "there", name)
    assert records(there, name).equals(records(log, name))
    files = sorted((tmp_path / "log" / "_replay" / name / name).iterdir())
    moved = pa.concat_tables(pq.read_table(file) for file in files)
    assert moved.num_rows == records(log, name).num_rows
    if idempotent:  # without markers nothing moves
        assert moved.column("old_offset").equals(moved.column("new_offset"))


def test_the_offset_map_says_where_each_record_went(broker, log, name, tmp_path):
    replay(log, broker, [name], ReplayOptions(name=name))
    append_with_headers(log, name, range(40, 60))
    replay(log, broker, [name], ReplayOptions(name=name))
    files = sorted((tmp_path / "log" / "_replay" / name / name).iterdir())
    moved = pa.concat_tables(pq.read_table(file) for file in files).to_pylist()
    there = {
        (row["partition"], row["offset"]): row["value"]
        for row in sent(broker, tmp_path / "there", name).topic(name).scan().to_table().to_pylist()
    }
    here = log.topic(name).scan().to_table().to_pylist()
    by_old = {(row["partition"], row["old_offset"]): row["new_offset"] for row in moved}
    assert len(moved) == len(by_old) == 60
    assert all(there[row["partition"], by_old[row["partition"], row["offset"]]] == row["value"] for row in here)
    assert any(old != new for (_, old), new in by_old.items())  # markers have offsets, too


def test_times_choose_what_is_sent_under_another_name(broker, log, name, tmp_path):
    begin, end = 1_700_000_000_010, 1_700_000_000_031
    renamed = {name: f"{name}-copy"}
    options = ReplayOptions(name=name, rename=renamed, from_time_ms=begin, to_time_ms=end)
    [told] = replay(log, broker, [name], options).partitions
    assert (told["target"], told["created"], told["records_out"]) == (f"{name}-copy", True, 21)
    there = records(sent(broker, tmp_path / "there", f"{name}-copy"), f"{name}-copy")
    at = records(log, name)
    assert sorted(there.column("timestamp").to_pylist()) == sorted(at.column("timestamp").to_pylist())[10:31]


def test_a_group_goes_on_there_at_the_record_it_would_read_here(broker, log, name, tmp_path):
    group = f"group of {name}"
    replay(log, broker, [name], ReplayOptions(name=name))
    append_with_headers(log, name, range(40, 60))
    log.group(group).reset({name: {0: 22, 1: 30}})  # partition 1 is read to its end
    [told] = replay(log, broker, [name], ReplayOptions(name=name, groups=["group*"])).partitions
    assert told["groups"] == [group]
    there = sent(broker, tmp_path / "there", name, [group])
    positions = there.group(group).positions().offsets[name]
    left = [
        [row["value"] for row in made.topic(name).scan(number, (start, None)).to_table().to_pylist()]
        for made, starts in ((log, {0: 22, 1: 30}), (there, positions))
        for number, start in starts.items()
    ]
    assert left[:2] == left[2:]
    assert left[1] == []
    log.group(group).reset({name: {0: 1}})
    [told] = replay(log, broker, [name], ReplayOptions(name=name, groups=[group])).partitions
    assert told["groups"] == []  # it is at work there since
    with pytest.raises(InvalidOptionError, match="no group nobody"):
        replay(log, broker, [name], ReplayOptions(name=name, groups=["nobody"]))


def test_a_dry_run_makes_nothing(broker, log, name):
    for _ in range(2):
        [told] = replay(log, broker, [name], ReplayOptions(name=name), dry_run=True).partitions
        assert (told["created"], told["to_send"], told["records_out"]) == (True, 40, 0)


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("config", "partitions", "said"),
    [
        ({"message.timestamp.type": "LogAppendTime"}, 2, "replaces the times"),
        ({"retention.ms": "1000"}, 2, "would remove records at once"),
        ({"message.timestamp.before.max.ms": "1000"}, 2, "refuses times"),
        ({}, 1, "has 1 partition, and 2 are needed"),
    ],
)
def test_a_cluster_that_would_not_keep_the_records_is_refused(broker, log, name, config, partitions, said):
    make_topic(broker, name, partitions, {"retention.ms": "-1"} | config)
    for dry_run in (True, False):
        with pytest.raises(InvalidOptionError, match=said):
            replay(log, broker, [name], ReplayOptions(name=name), dry_run=dry_run)


def test_records_that_others_wrote_there_are_refused(broker, log, name, monkeypatch):
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    make_topic(broker, name)
    producer.produce(name, b"another", partition=1)
    producer.flush()
    with pytest.raises(InvalidOptionError, match="has records that no replay"):
        replay(log, broker, [name], ReplayOptions(name=name))
    monkeypatch.setattr(replaying, "TargetCluster", AsKafka)
    options = ReplayOptions(name=f"{name}-2", idempotent=True, rename={name: f"{name}-2"})
    replay(log, broker, [name], options)
    producer.produce(f"{name}-2", b"another", partition=1)
    producer.flush()
    with pytest.raises(TargetError, match="has not sent"):
        replay(log, broker, [name], options)


@pytest.mark.parametrize("was_idempotent", [False, True])
def test_without_transactions_a_position_has_the_log_end_there(broker, log, name, was_idempotent):
    replay(log, broker, [name], ReplayOptions(name=name, idempotent=was_idempotent))
    append_with_headers(log, name, range(40, 60))
    with pytest.raises(InvalidOptionError, match="without the log end there"):  # which this broker forgets
        replay(log, broker, [name], ReplayOptions(name=name, idempotent=True))


def test_a_record_that_cannot_be_sent_as_it_is_ends_the_replay(broker, log, name):
    log.topic(name).append([{"value": "of 1970", "partition": 0, "timestamp": 0}])
    with pytest.raises(InvalidRecordError, match=f"{name}-0 at offset 20"):
        replay(log, broker, [name], ReplayOptions(name=name))


def test_records_that_left_the_log_before_they_were_sent_are_an_error(broker, log, name):
    replay(log, broker, [name], ReplayOptions(name=name))
    append_with_headers(log, name, range(40, 60))
    log.topic(name).delete_records({0: 25})
    with pytest.raises(OffsetOutOfRangeError, match="were deleted before"):
        replay(log, broker, [name], ReplayOptions(name=name))


def test_a_topic_that_is_not_here_is_an_error(broker, log, name):
    with pytest.raises(UnknownTopicError, match="nothing"):
        replay(log, broker, [name, "nothing"], ReplayOptions(name=name))


def test_internal_topics_stay_here(broker, log, name):
    log.create_topic("__consumer_offsets")
    assert replay(log, broker, options=ReplayOptions(name=name), dry_run=True).topics == [name]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"security.protocol": "SASL_FOO"}, 'Invalid value "SASL_FOO"'),
        ({"request.timeout.ms": "-1"}, "outside allowed range"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "sasl.username and sasl.password"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/nowhere"}, "ssl.ca.location failed"),
    ],
)
def test_settings_that_librdkafka_refuses_are_an_error_in_its_words(log, name, settings, said):
    with pytest.raises(InvalidOptionError, match=f"librdkafka refuses.*{said}"):
        replay(log, "127.0.0.1:1", [name], ReplayOptions(name=name, client_config=settings))


def test_a_replay_without_a_name_is_an_error(log, name):
    with pytest.raises(InvalidOptionError, match="cannot be a group's id"):
        replay(log, "127.0.0.1:1", [name], ReplayOptions(name=""))


@pytest.mark.cases(1)
@pytest.mark.parametrize("count_there", [1, 3, 5])
def test_records_go_by_their_keys_to_another_number_of_partitions(
    broker, log, name, tmp_path, monkeypatch, count_there
):
    monkeypatch.setattr(replaying, "TargetCluster", WithMetadata)
    monkeypatch.setattr(replaying, "_PIECE_RECORDS", 7)
    monkeypatch.setattr(replayed_topic, "TRANSACTION_BYTES", 40)
    make_topic(broker, name, count_there)
    options = ReplayOptions(name=name, partitions=Partitions.REHASH, groups=["readers"])

    class EndedError(BaseException):
        pass

    def step(done: int, total: int) -> None:
        if done > 20:
            raise EndedError

    log.group("readers").reset({name: {0: 7, 1: 12}})
    with pytest.raises(EndedError):
        replay(log, broker, [name], options, progress=step)
    append_with_headers(log, name, range(40, 60))
    report = replay(log, broker, [name], options)
    assert "by its keys" in report.warnings[0]
    assert replay(log, broker, [name], options).records_out == 0
    there = sent(broker, tmp_path / "there", name, ["readers"])
    here, got = (one.topic(name).scan(isolation="read_committed").to_table().to_pylist() for one in (log, there))
    assert sorted(map(as_sent, here)) == sorted(map(as_sent, got))
    for row in got:  # kafka-python's partitioner is another one than ours
        if row["key"] is not None:
            assert row["partition"] == (murmur2(row["key"]) & 0x7FFFFFFF) % count_there
    for key, number in {(row["key"], row["partition"]) for row in here}:
        # A key of this log lies in both partitions: the records of each stay in order.
        order = [as_sent(row) for row in here if (row["key"], row["partition"]) == (key, number)]
        assert order == [as_sent(row) for row in got if as_sent(row) in order]
    starts = there.group("readers").positions().starts(there.topic(name).snapshot)
    unread = {as_sent(row) for row in here if row["offset"] >= {0: 7, 1: 12}[row["partition"]]}
    assert unread <= {as_sent(row) for row in got if row["offset"] >= starts.get(row["partition"], 0)}
    first = {number: [row for row in got if row["partition"] == number] for number in starts}
    for number, offset in starts.items():  # and it reads no more again than it must
        assert not first[number] or as_sent(next(r for r in first[number] if r["offset"] >= offset)) in unread
    with pytest.raises(InvalidOptionError, match=r"of a replay by keys|partitions, and 2 are needed"):
        replay(log, broker, [name], ReplayOptions(name=name))


def as_sent(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(repr(row[name]) for name in ("timestamp", "key", "value"))


@pytest.mark.proof
def test_a_replay_by_keys_goes_on_in_a_topic_of_the_same_partitions_only(broker, log, name, monkeypatch):
    monkeypatch.setattr(replaying, "TargetCluster", WithMetadata)
    make_topic(broker, name, 3)
    rehash = ReplayOptions(name=name, partitions=Partitions.REHASH)
    replay(log, broker, [name], rehash)
    key = (name, 0)
    WithMetadata.known[key] = WithMetadata.known[key].replace(" rehash 3 ", " rehash 4 ")
    with pytest.raises(InvalidOptionError, match=r"another number of partitions.*expected 4 partitions, found 3"):
        replay(log, broker, [name], rehash)
    WithMetadata.known[key] = ""
    with pytest.raises(InvalidOptionError, match="not of a replay by keys"):
        replay(log, broker, [name], rehash)
    with pytest.raises(InvalidOptionError, match="Without transactions records keep their partitions"):
        replay(log, broker, [name], ReplayOptions(name=name, partitions=Partitions.REHASH, idempotent=True))


def test_topics_get_new_names_by_patterns():
    renaming = Renaming({"orders-eu": "eu", "orders-*": "new.orders-*", "*": "old.*"})
    names = ["orders-eu", "orders-us", "orders-", "payments"]
    assert [renaming.target(name) for name in names] == ["eu", "new.orders-us", "new.orders-", "old.payments"]
    renaming.check_used()
    for wrong in ({"a*": "b"}, {"a": "b*"}, {"a**": "b**"}):
        with pytest.raises(InvalidOptionError, match=r"both with one \*"):
            Renaming(wrong)
    unused = Renaming({"ordres-*": "new-*"})
    assert unused.target("orders-eu") == "orders-eu"
    with pytest.raises(InvalidOptionError, match=r"by a pattern: found ordres-\*"):
        unused.check_used()


@pytest.mark.proof
def test_ids_of_schemas_become_those_of_another_registry(broker, log, name, tmp_path):
    old, new = RegistryServer(), RegistryServer()
    new.register("other", {"schema": '"bytes"'})  # ids differ
    new.register("another", {"schema": '"double"'})
    money = {"schema": '{"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]}'}
    refers = {"references": [{"name": "Money", "subject": "money", "version": 1}]}
    order = '{"type": "record", "name": "Order", "fields": [{"name": "price", "type": "Money"}%s]}'
    later = ', {"name": "note", "type": "string", "default": ""}'
    old.register("money", money)
    old.register(f"{name}-key", {"schema": '"string"'})
    for fields in ("", later):
        old.register(f"{name}-value", {"schema": order % fields, **refers})
    old.register("replaced", {"schema": '"long"'})
    guid = uuid.UUID(old.in_context("")[4]["guid"])
    frames = [b"\0\0\0\0" + bytes([schema_id]) + b"rest" for schema_id in (4, 3, 4)]
    others = [None, b"", b"text", b"\0\0\0", b"no frame"]
    rows = [
        {"key": b"\0\0\0\0\2\2k", "value": value, "timestamp": 1_700_000_000_000, "headers": headers, "partition": 1}
        for value, headers in [
            *((frame, [("a", b"\0\0\0\0\1")]) for frame in frames),
            *((other, []) for other in others),
            (b"plain", [("__value_schema_id", b"\0\0\0\0\5"), ("a", None), ("__value_schema_id", b"\0\0\0\0\4")]),
            (b"plain", [("__value_schema_id", b"\1" + guid.bytes)]),
        ]
    ]
    made = LogDir.create(str(tmp_path / "framed"))
    made.create_topic(name, partitions=2)
    made.topic(name).append(rows)
    with old.running() as source, new.running() as target:
        options = ReplayOptions(name=name, source_registry=source, target_registry=target)
        assert replay(made, broker, [name], options, dry_run=True).partitions[0]["to_send"] == len(rows)
        assert [*new.subjects] == ["other", "another"]
        with Replay(made, broker, [name], options) as work:
            work.send()
            requests = old.requests, new.requests
            assert work.send().records_out == 0
            assert (old.requests, new.requests) == requests, "nothing new asks a registry"
    texts = {schema_id: schema["schema"] for schema_id, schema in old.in_context("").items()}
    ids = {schema["schema"]: schema_id for schema_id, schema in new.in_context("").items()}

    def there(schema_id: int) -> bytes:
        return b"\0" + ids[texts[schema_id]].to_bytes(4, "big")

    got = records(sent(broker, tmp_path, name), name).to_pylist()
    assert [row["key"] for row in got] == [there(2) + b"\2k"] * len(rows)
    assert [row["value"] for row in got] == [
        *(there(schema_id) + b"rest" for schema_id in (4, 3, 4)),
        *others,
        b"plain",
        b"plain",
    ]
    headers = [[header["value"] for header in row["headers"] or []] for row in got]
    assert headers == [[b"\0\0\0\0\1"]] * 3 + [[]] * 5 + [[there(5), None, there(4)], [b"\1" + guid.bytes]]
    assert there(4) != frames[0][:5]
    assert new.subjects[f"{name}-value"] == [ids[texts[3]], ids[texts[4]]]
    assert new.in_context("")[ids[texts[4]]]["references"] == refers["references"]


def test_a_schema_that_no_registry_has_is_an_error_before_anything_is_sent(broker, log, name):
    log.topic(name).append(
        [{"partition": 0, "key": b"\0\0\0\0\0\0\0\7", "value": b"1", "timestamp": 1_700_000_000_000}]
    )
    old, new = RegistryServer(), RegistryServer()
    with old.running() as source, new.running() as target:
        options = ReplayOptions(name=name, source_registry=source, target_registry=target)
        with pytest.raises(InvalidRecordError, match=f"The key of {name}-0 at offset 20 .* id 0.*--framed value"):
            replay(log, broker, [name], options)
        assert name not in AdminClient({"bootstrap.servers": broker}).list_topics().topics
        report = replay(log, broker, [name], dataclasses.replace(options, framed=Framed.VALUE))
        assert report.records_out == 41
    with pytest.raises(InvalidOptionError, match="--source-registry and --target-registry"):
        replay(log, broker, [name], ReplayOptions(name=name, source_registry="_schemas"))
