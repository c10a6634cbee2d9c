"""Erasure against a plain list of records, with a look at every byte of the log directory."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir, ProducerOptions
from spark_segments.errors import InvalidOptionError, LogDirError, SegmentsError
from spark_segments.maintenance import compact, erase, retain, roll, vacuum, verify
from spark_segments.maintenance.erasure.copies import key_account
from tests.examples import examples
from verification.world.kafka_bytes.golden_files import GOLDEN
from verification.world.manifest_rows import Change, live_rows
from verification.world.opened import opened
from verification.world.small_limits import small_limits
from verification.world.stores.played_log import Play
from verification.world.topics import DAY_MS, append, contents, later, live

NOW_MS = 1_700_000_000_000
LATER_MS = 2_000_000_000_000  # long after any test runs: what is active is idle then


def topic(log: LogDir, policy: str = "delete", partitions: int = 2, **config: object) -> LogDir:
    values = {"cleanup.policy": policy, "compression.type": "uncompressed", "retention.ms": -1, **config}
    log.create_topic("t", partitions, config={name.replace("_", "."): str(value) for name, value in values.items()})
    return log


def append_to_partitions(log: LogDir, rows: list[tuple[int, bytes | None, bytes | None]]) -> None:
    """Appends records of (partition, key, value)."""
    partitions = [partition for partition, _, _ in rows]
    append(log, *[(key, value) for _, key, value in rows], topic="t", partitions=partitions, time_ms=NOW_MS)


def seal(log: LogDir) -> None:
    roll(log, now_ms=LATER_MS)


def files_with(log: LogDir, data: bytes) -> list[str]:
    """Every file under the log directory that has these bytes, manifest and sidecars included."""
    files = [path for path in Path(log.uri).rglob("*") if path.is_file()]
    return sorted(str(path.relative_to(log.uri)) for path in files if data in path.read_bytes())


class Killed(BaseException):
    """The process died."""


def interrupted(log: LogDir, commits: int) -> LogDir:
    """The log directory for a job that dies at the commit after so many."""

    def die(_: str, go):
        raise Killed

    play = Play().before_commits(*[None] * commits)
    play.always("commit_on", die)
    return opened(log, open_delta_log=play)


@contextlib.contextmanager
def objects_of(fewest_runs: int) -> Iterator[None]:
    """Within, so many runs are enough for a shared object."""
    with small_limits(FEWEST_RUNS=fewest_runs):
        yield


def faults(log: LogDir) -> list:
    return verify(log, deep=True).to_dict()["findings"]


keys = st.sampled_from([None, b"", b"ada", b"bob", b"cyd"])
PARTITIONS = 4
rows = st.lists(
    st.tuples(st.integers(0, PARTITIONS - 1), keys, st.sampled_from([None, b"", b"v"])), min_size=1, max_size=8
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), rows),
        st.tuples(st.just("append"), rows),
        st.tuples(st.just("seal"), st.none()),
        st.tuples(st.just("compact"), st.none()),
        st.tuples(st.just("vacuum"), st.none()),
        st.tuples(st.just("delete"), st.integers(1, 3)),
    ),
    min_size=1,
    max_size=8,
)


@examples(20)
@given(
    st.sampled_from(["delete", "compact", "compact,delete"]),
    steps,
    steps,
    st.sets(keys.filter(bool), min_size=1),
    st.booleans(),
    st.one_of(st.none(), st.integers(0, 5)),
    st.sampled_from([2, 1 << 30]),
)
def test_only_records_of_the_keys_go_and_all_others_stay_where_they_are(
    policy, before, after, erased, history, commits, fewest_runs
):
    """With and without shared objects; an erasure that is killed after some commits is run again."""
    with tempfile.TemporaryDirectory() as directory, objects_of(fewest_runs):
        log = topic(LogDir.create(directory), policy, PARTITIONS, min_cleanable_dirty_ratio=0, segment_bytes=300)
        count, values = _work(log, policy, before, 0)
        there = contents(log, "t")
        ends = log.topic("t").offsets()
        compacted = "compact" in policy
        version = log.topic("t").snapshot.version
        planned = erase(log, topics=["t"], keys=sorted(erased), dry_run=True, history=history).to_dict()
        assert (log.topic("t").snapshot.version, contents(log, "t")) == (version, there)

        if commits is not None:
            with contextlib.suppress(Killed):
                erase(interrupted(log, commits), topics=["t"], keys=sorted(erased), now_ms=NOW_MS, history=history)
            assert [one for one in contents(log, "t") if one["key"] not in erased] == [
                one for one in there if one["key"] not in erased
            ]
        report = erase(log, topics=["t"], keys=sorted(erased), now_ms=NOW_MS, history=history).to_dict()

        tombstones = [one for one in contents(log, "t") if one["offset"] >= ends[one["partition"]][1]]
        newest = {(one["partition"], one["key"]): one for one in there}
        wanted = sorted(place for place, one in newest.items() if place[1] in erased and one["value"] is not None)
        assert sorted((one["partition"], one["key"]) for one in tombstones) == (wanted if compacted else [])
        assert all(one["value"] is None for one in tombstones)
        kept = [one for one in contents(log, "t") if one not in tombstones]
        last = [one for place, one in newest.items() if place[1] in erased and one["value"] is None and compacted]
        assert kept == [one for one in there if one["key"] not in erased or one in last]
        assert report["records_in"] == report["records_out"] + report["dropped"].get("erased", 0)
        if commits is None:
            assert _lines(planned) == _lines(report)
            assert sum(line.get("records_to_erase", 0) for line in planned["partitions"]) == sum(
                report["dropped"].values()
            )
        assert faults(log) == []

        version = log.topic("t").snapshot.version
        assert erase(log, topics=["t"], keys=sorted(erased), now_ms=NOW_MS).to_dict()["partitions"] == []
        assert log.topic("t").snapshot.version == version

        if not history:
            vacuum(log, now_ms=LATER_MS)
        left = b"".join(path.read_bytes() for path in Path(directory).rglob("*.log"))
        assert [value for key, value in values if key in erased and value in left] == []
        assert faults(log) == []

        _work(log, policy, after, count)
        assert faults(log) == []


def _lines(report: dict) -> list[tuple[str, int]]:
    return [(line["action"], line["partition"]) for line in report["partitions"]]


def _work(log: LogDir, policy: str, steps, count: int) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Takes the steps. Returns how many records there were, and the keys and values of those that have both."""
    values = []
    for step, argument in steps:
        if step == "append":
            rows = [
                (partition, key, value and b"v%05d." % (count + number))
                for number, (partition, key, value) in enumerate(argument)
                if key is not None or policy == "delete"
            ]
            count += len(argument)
            values += [(key, value) for _, key, value in rows if key and value]
            if rows:
                append_to_partitions(log, rows)
        elif step == "seal":
            seal(log)
        elif step == "compact":
            compact(log, now_ms=NOW_MS)
        elif step == "vacuum":
            vacuum(log, now_ms=LATER_MS)
        elif "delete" in policy:
            offsets = log.topic("t").offsets()
            log.topic("t").delete_records({0: min(offsets[0][0] + argument, offsets[0][1])})
    return count, values


@pytest.mark.cases(1)
@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("history", [False, True])
def test_no_byte_of_the_value_is_left_after_erase_and_vacuum(log, policy, history):
    topic(log, policy, segment_bytes=400, min_cleanable_dirty_ratio=0)
    append_to_partitions(log, [(0, b"ada", b"first secret"), (0, b"bob", b"bob's"), (1, b"ada", b"second secret")])
    seal(log)
    append_to_partitions(log, [(0, b"ada", b"third secret"), (0, b"bob", b"bob's own")])
    compact(log, now_ms=NOW_MS)
    append_to_partitions(log, [(0, b"ada", b"fourth secret"), (0, b"cyd", b"cyd's")])
    others = [one for one in contents(log, "t") if one["key"] != b"ada"]
    assert len(files_with(log, b"secret")) >= 3

    erase(log, topics=["t"], keys=[b"ada"], now_ms=log.storage.now_ms(), history=history)

    if not history:
        assert files_with(log, b"secret") != [], "readers of earlier versions have their files"
        vacuum(log, now_ms=later(log, 2))
    assert files_with(log, b"secret") == []
    assert [one for one in contents(log, "t") if one["key"] != b"ada"] == others
    left = [one["value"] for one in contents(log, "t") if one["key"] == b"ada"]
    assert left == ([None, None] if policy == "compact" else [])
    with_key = [path for path in files_with(log, b"ada") if path.endswith(".log")]
    assert (with_key == []) == (policy == "delete"), "a tombstone has its key"
    assert faults(log) == []


MANY = 12


def secret_among_many(log: LogDir, policy: str = "delete") -> list[dict]:
    """Topic t of 12 partitions: three shared objects, two of which have a secret of ada. Returns bob's records."""
    topic(log, policy, MANY, file_delete_delay_ms=1000)
    for turn in range(3):
        secrets = [(number, b"ada", b"secret") for number in (3, 7) if turn < 2]
        append_to_partitions(log, [*((number, b"bob", b"%d" % turn) for number in range(MANY)), *secrets])
    assert len(files_with(log, b"secret")) == 2
    return [one for one in contents(log, "t") if one["key"] == b"bob"]


def objects_in_log(log: LogDir) -> set[str]:
    return {row.path for row in live_rows(log, "t") if row.is_shared}


@pytest.mark.cases(1)
@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("history", [False, True])
def test_no_partition_keeps_a_shared_object_that_has_the_key(log, policy, history):
    bobs = secret_among_many(log, policy)
    report = erase(log, topics=["t"], keys=[b"ada"], history=history).to_dict()
    actions = [(line["partition"], line["segments"]) for line in report["partitions"] if line["action"] == "erase"]
    assert actions == [(3, 2), (7, 2)]
    copied = sum(line["segments"] for line in report["partitions"] if line["action"] == "copy")
    assert copied == 2 * (MANY - 2), "the third object stays"
    assert len(objects_in_log(log)) <= 3 + (policy == "compact"), "what is copied shares objects again"
    assert files_with(log, b"secret") == [] or not history
    vacuum(log, now_ms=log.storage.now_ms() + 2000)
    assert files_with(log, b"secret") == []
    assert [one for one in contents(log, "t") if one["key"] == b"bob"] == bobs
    assert faults(log) == []


@pytest.mark.cases(1)
@pytest.mark.parametrize("history", [False, True])
def test_a_run_that_no_row_names_any_more_is_found_by_the_next_erasure(log, history):
    """The first erasure is killed before other partitions' runs are copied, and vacuum drops the rows of the keys."""
    bobs = secret_among_many(log)
    with pytest.raises(Killed):
        erase(interrupted(log, 2), topics=["t"], keys=[b"ada"])
    vacuum(log, now_ms=log.storage.now_ms() + 2000)
    account = key_account(log, "t", b"ada")
    assert (
        {copy.path for copy in account.copies}
        == set(files_with(log, b"secret"))
        == objects_in_log(log) - {row.path for row in live(log, "t", 0)[2:]}
    )
    assert {(copy.state, copy.partition, copy.records, copy.outside) for copy in account.copies} == {
        ("removed file", number, 0, 1) for number in (3, 7)
    }
    assert all(copy.files_deleted.latest_ms > account.now_ms for copy in account.copies)

    planned = erase(log, topics=["t"], keys=[b"ada"], dry_run=True).to_dict()
    report = erase(log, topics=["t"], keys=[b"ada"], history=history).to_dict()
    assert {line["action"] for line in report["partitions"]} == {"copy"}
    assert _lines(planned) == _lines(report)
    if not history:
        vacuum(log, now_ms=log.storage.now_ms() + 2000)
    assert files_with(log, b"secret") == []
    assert contents(log, "t") == bobs
    assert faults(log) == []


def test_the_account_of_a_shared_object_waits_for_every_run_in_it(log):
    secret_among_many(log)
    log.topic("t").alter(config={"segment.ms": "60000"})
    now_ms = log.storage.now_ms()
    before = key_account(log, "t", b"ada", every_ms=1000)
    assert {copy.path for copy in before.copies} == set(files_with(log, b"secret"))
    rows = [row.removed(now_ms) for row in live(log, "t", 3)]
    partition = dataclasses.replace(
        log.topic("t").snapshot.partition(3), log_start_offset=log.topic("t").offsets()[3][1]
    )
    log.topic("t").manifest.commit(lambda _: Change("retain", replace=rows, partitions=[partition]))
    removed = log.topic("t").explain(3, 0, every_ms=1000)
    assert removed.files_deleted.latest_ms > now_ms + 60_000, "other partitions keep the object"
    assert removed.files_deleted == removed.steps[-1].window
    erase(log, topics=["t"], keys=[b"ada"])
    assert log.topic("t").explain(3, 0, every_ms=1000).files_deleted.latest_ms < now_ms + 60_000
    after = key_account(log, "t", b"ada", every_ms=1000)
    assert {copy.state for copy in after.copies} == {"removed file"}
    last_ms = max(copy.files_deleted.latest_ms for copy in after.copies)
    assert now_ms < last_ms < now_ms + DAY_MS
    vacuum(log, now_ms=last_ms)
    assert files_with(log, b"secret") == [] and key_account(log, "t", b"ada").copies == ()


def clipped(log: LogDir, base_offset: int, batch_bytes: int) -> None:
    """Appends secrets of a key, as batches of that size in one chunk, and lets the chunk's row begin further on."""
    table = pa.table({"key": [b"ada", b"bob", b"bob"], "value": [b"secret", b"1", b"2"]})
    table = table.append_column("partition", pa.array([0] * 3, pa.int32()))
    log.topic("t").append(table, options=ProducerOptions("none", batch_bytes))
    row = dataclasses.replace(live(log, "t")[0], base_offset=base_offset, file_base_offset=base_offset)
    partition = dataclasses.replace(log.topic("t").snapshot.partition(0), log_start_offset=base_offset)
    log.topic("t").manifest.commit(lambda _: Change("test", replace=[row], partitions=[partition]))


def test_bytes_of_a_file_that_its_row_does_not_name_go_too(log):
    topic(log)
    clipped(log, 1, batch_bytes=1)
    erase(log, topics=["t"], keys=[b"ada"], history=True)
    assert files_with(log, b"secret") == []
    assert [one["value"] for one in contents(log, "t")] == [b"1", b"2"]


def test_a_row_that_begins_inside_a_batch_is_refused_and_left(log):
    topic(log)
    clipped(log, 1, batch_bytes=10_000)
    before = log.topic("t").snapshot.version
    with pytest.raises(SegmentsError, match="begins inside a batch"):
        erase(log, topics=["t"], keys=[b"ada"])
    assert log.topic("t").snapshot.version == before


def test_a_dry_run_names_what_would_go_and_changes_nothing(log):
    topic(log, "compact")
    append_to_partitions(log, [(0, b"ada", b"1"), (0, b"ada", b"2"), (0, b"bob", b"3")])
    append_to_partitions(log, [(0, b"bob", b"4")])
    before = log.topic("t").snapshot.version, contents(log, "t")
    [line] = erase(log, topics=["t"], keys=[b"ada"], dry_run=True, history=True).to_dict()["partitions"]
    assert (line["segments"], line["base_offsets"], line["records_to_erase"]) == (1, [0], 2)
    assert line["tombstones_to_append"] == 1
    assert (log.topic("t").snapshot.version, contents(log, "t")) == before


def test_what_another_job_replaced_meanwhile_is_erased_in_a_further_round(log):
    topic(log)
    append_to_partitions(log, [(0, b"ada", b"1"), (0, b"bob", b"2"), (1, b"ada", b"3")])
    play = Play().before_commits(lambda: seal(log))
    report = erase(opened(log, open_delta_log=play), topics=["t"], keys=[b"ada"])
    assert report.dropped == {"erased": 2}
    assert [(one["key"], one["offset"]) for one in contents(log, "t")] == [(b"bob", 1)]
    assert faults(log) == []


def test_a_value_that_comes_after_the_erasure_stays(log):
    topic(log, "compact")
    append_to_partitions(log, [(0, b"ada", b"1")])
    erase(log, topics=["t"], keys=[b"ada"])
    append_to_partitions(log, [(0, b"ada", b"2")])
    assert [one["value"] for one in contents(log, "t")] == [None, b"2"]


def imported(log: LogDir, directory: str) -> str:
    """The topic of a directory that Kafka wrote, with a cleanup.policy that lets each record of a key go."""
    log.import_kafka(str(GOLDEN / directory))
    [name] = log.topics()
    log.topic(name).alter(config={"cleanup.policy": "delete"})
    return name


@pytest.mark.cases(1)
@pytest.mark.parametrize("directory", ["txn-0", "txn-compact/dirty", "txn-compact/clean-2"])
def test_transactions_stay_as_they_are(log, directory):
    """Directories with aborted and open transactions lose just the key, at both isolation levels; markers stay."""
    name = imported(log, directory)

    def records(level: str) -> list[dict]:
        found = log.topic(name).scan(isolation=level, include_control=level == "read_uncommitted").batches()
        return [row for batch in found for row in batch.to_pylist()]

    levels = ("read_uncommitted", "read_committed")
    before = {level: records(level) for level in levels}
    key = before["read_committed"][0]["key"]
    erase(log, topics=[name], keys=[key])
    assert {level: records(level) for level in levels} == {
        level: [row for row in rows if row["key"] != key] for level, rows in before.items()
    }
    assert faults(log) == []


@pytest.mark.parametrize("directory", ["legacy-v0-0", "legacy-v1-0"])
def test_what_kafka_wrote_in_old_formats_is_erased_from_too(log, directory):
    name = imported(log, directory)
    before = contents(log, name)
    key = next(row["key"] for row in before if row["key"])
    erase(log, topics=[name], keys=[key])
    assert contents(log, name) == [row for row in before if row["key"] != key] != []


def test_erased_records_do_not_come_back_in_an_export(log, tmp_path):
    topic(log, segment_bytes=300)
    append_to_partitions(log, [(0, b"ada", b"secret"), (0, b"bob", b"1"), (1, b"ada", b"secret")])
    erase(log, topics=["t"], keys=[b"ada"])
    seal(log)
    retain(log)
    log.export_kafka(str(tmp_path / "kafka"))
    exported = LogDir.open(str(tmp_path / "kafka"))
    assert contents(exported, "t") == contents(log, "t")
    assert exported.topic("t").offsets() == log.topic("t").offsets()
    assert files_with(exported, b"secret") == []


def test_keys_are_wanted_and_a_log_of_ours(log):
    topic(log)
    with pytest.raises(InvalidOptionError, match="Which keys"):
        erase(log, topics=["t"], keys=[])
    with pytest.raises(LogDirError, match="A Kafka log directory is read-only"):
        erase(LogDir.open(str(GOLDEN / "broker-data")), topics=["orders"], keys=[b"a"])


def test_the_account_of_a_key_names_every_file_that_has_it_and_until_when(log):
    topic(log, file_delete_delay_ms=1000)
    append_to_partitions(log, [(0, b"ada", b"secret")])
    append_to_partitions(log, [(0, b"bob", b"1")])
    seal(log)
    append_to_partitions(log, [(0, b"ada", b"secret")])
    account = key_account(log, "t", b"ada")
    assert sorted(copy.path for copy in account.copies) == files_with(log, b"secret")
    assert sorted((copy.state, copy.values) for copy in account.copies) == [
        ("active segment", 1), ("removed file", 1), ("sealed segment", 1)
    ]  # fmt: skip

    erase(log, topics=["t"], keys=[b"ada"])
    account = key_account(log, "t", b"ada")
    assert {copy.state for copy in account.copies} == {"removed file"}
    assert sorted(copy.path for copy in account.copies) == files_with(log, b"secret")

    last_ms = max(copy.files_deleted.earliest_ms for copy in account.copies)
    vacuum(log, now_ms=last_ms - 1)
    assert files_with(log, b"secret") != []
    vacuum(log, now_ms=last_ms)
    assert files_with(log, b"secret") == []
    assert key_account(log, "t", b"ada").copies == ()


@pytest.mark.parametrize("made_again", [False, True])
def test_history_and_the_account_cover_the_files_of_a_deleted_topic_of_the_name(log, made_again):
    topic(log, file_delete_delay_ms=5000)
    append_to_partitions(log, [(0, b"ada", b"secret"), (1, b"bob", b"bobs own")])
    log.delete_topic("t")
    if made_again:
        topic(log, file_delete_delay_ms=DAY_MS)
        append_to_partitions(log, [(0, b"bob", b"bobs new")])
    account = key_account(log, "t", b"ada")
    assert sorted(copy.path for copy in account.copies) == files_with(log, b"secret") != []
    assert account.copies[0].files_deleted.earliest_ms <= log.storage.now_ms() + 6000, "its own delay counts"

    erase(log, topics=["t"], keys=[b"ada"], history=True)
    assert files_with(log, b"secret") == []
    assert len(files_with(log, b"bobs own")) == 1
    assert key_account(log, "t", b"ada").copies == ()
    assert key_account(log, "t", b"bob").copies != ()


def test_a_deleted_topics_shared_object_is_in_the_account_until_it_goes(log):
    secret_among_many(log)
    log.delete_topic("t")
    topic(log, file_delete_delay_ms=DAY_MS)
    account = key_account(log, "t", b"ada")
    assert {copy.path for copy in account.copies} == set(files_with(log, b"secret"))
    last_ms = max(copy.files_deleted.earliest_ms for copy in account.copies)
    vacuum(log, now_ms=last_ms)
    assert files_with(log, b"secret") == []
