"""The cleaner against Kafka's own: each directory that Kafka cleaned, from the one that it was cleaned from."""

from __future__ import annotations

import base64
import re

import pytest

from spark_segments.format.sidecars.txn_index import AbortedTransactions, txn_index_bytes
from tests.format.directory_cleaner import CleanedLog, active_producers, clean_log, first_dirty_offset, segments_of
from tests.format.plain_decode import plain_batches
from verification.world.kafka_bytes.golden_files import GOLDEN, expected_batches, expected_records, golden_dir

ROUNDS = [
    *(("latest-price", before, after, "latest-price-0") for before, after in (
        ("before-clean", "after-clean-1"),
        ("before-clean-2", "after-clean-2"),
        ("before-clean-3", "after-clean-3"),
        ("before-clean-4", "after-clean-4"),
    )),
    *((name, before, after, "bigcompact-0") for name in ("bigcompact-none", "bigcompact-zstd") for before, after in (
        ("dirty", "clean-1"),
        ("dirty-2", "clean-2"),
    )),
    *(("txn-compact", before, after, "txnc-0") for before, after in (
        ("dirty", "clean-1"),
        ("dirty-2", "clean-2"),
        ("dirty-3", "clean-3"),
        ("dirty-4", "clean-4"),
    )),
]  # fmt: skip
IDS = [f"{name}-{after}" for name, _, after, _ in ROUNDS]


def statistics(name: str) -> dict[str, int]:
    """What Kafka's cleaner said of its work: read, written, indexed (records), end of the dirty range, cleanTimeMs."""
    line = next(line for line in (GOLDEN / "index.txt").read_text().splitlines() if line.split()[0] == name)
    found = re.search(r"dirty=\[\d+,(\d+)\).* read=(\d+)msg.* written=(\d+)msg/(\d+)B .*cleanTimeMs=(\d+)", line)
    assert found
    return dict(zip(("end", "read", "written", "bytes", "now_ms"), map(int, found.groups()), strict=True))


def cleaned(name: str, before: str, after: str, partition: str) -> CleanedLog:
    now_ms = statistics(f"{name}/{after}/{partition}")["now_ms"]
    directory = golden_dir(f"{name}/{before}/{partition}")
    return clean_log(
        segments_of(directory),
        first_dirty_offset=first_dirty_offset(directory.parent / "cleaner-offset-checkpoint"),
        now_ms=now_ms,
        producers=active_producers(directory, now_ms),
    )


def decoded(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


@pytest.mark.parametrize("case", ROUNDS, ids=IDS)
def test_records_are_those_that_kafka_left(case):
    expected = [
        (
            record["offset"],
            record["timestamp"],
            decoded(record["key"]),
            decoded(record["value"]),
            tuple((name.encode(), decoded(value)) for name, value in record["headers"]),
        )
        for record in expected_records(f"{case[0]}/{case[2]}/{case[3]}")
    ]
    records = [record for batch in plain_batches(cleaned(*case).data) for record in batch.records]
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records] == expected


@pytest.mark.parametrize("case", ROUNDS, ids=IDS)
def test_batches_have_kafkas_headers_and_delete_horizons(case):
    fields = ("baseOffset", "lastOffset", "count", "baseTimestamp", "maxTimestamp", "leaderEpoch", "producerId",
              "producerEpoch", "baseSequence", "isTransactional", "isControl", "deleteHorizonMs")  # fmt: skip
    expected = [tuple(batch[field] for field in fields) for batch in expected_batches(f"{case[0]}/{case[2]}/{case[3]}")]
    batches = [
        (
            batch.base_offset,
            batch.last_offset,
            len(batch.records),
            batch.base_timestamp,
            batch.max_timestamp,
            batch.leader_epoch,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            batch.transactional,
            batch.control,
            batch.delete_horizon_ms,
        )
        for batch in plain_batches(cleaned(*case).data)
    ]
    assert batches == expected


@pytest.mark.parametrize("case", [case for case in ROUNDS if case[0] in ("latest-price", "bigcompact-none")])
def test_bytes_are_kafkas_where_no_codec_is_in_between(case):
    name, _, after, partition = case
    assert cleaned(*case).data == b"".join(s.data for s in segments_of(golden_dir(f"{name}/{after}/{partition}")))


@pytest.mark.parametrize("case", ROUNDS, ids=IDS)
def test_statistics_and_the_new_checkpoint_are_kafkas(case):
    name, before, after, partition = case
    expected = statistics(f"{name}/{after}/{partition}")
    log = cleaned(*case)
    assert log.first_dirty_offset == expected["end"]
    assert log.first_dirty_offset == first_dirty_offset(golden_dir(f"{name}/{after}") / "cleaner-offset-checkpoint")
    counts = log.counts
    assert counts.records_kept == expected["written"]
    # Kafka does not count the records of batches that it drops unseen, but does those of markers that it empties.
    emptied = sum(batch["isControl"] for batch in expected_batches(f"{name}/{after}/{partition}") if not batch["count"])
    emptied -= sum(
        batch["isControl"] for batch in expected_batches(f"{name}/{before}/{partition}") if not batch["count"]
    )
    assert counts.records_read - counts.aborted - counts.control + max(emptied, 0) == expected["read"]
    dropped = counts.superseded + counts.tombstone + counts.no_key + counts.aborted + counts.control
    assert counts.records_read == counts.records_kept + dropped


@pytest.mark.parametrize("case", [case for case in ROUNDS if case[0] == "txn-compact"])
def test_transaction_index_names_what_kafkas_does(case):
    name, _, after, partition = case
    expected = [s.aborted for s in segments_of(golden_dir(f"{name}/{after}/{partition}"))]
    ours = [s.aborted for s in cleaned(*case).segments]
    assert txn_index_bytes(AbortedTransactions.concatenate(ours)) == txn_index_bytes(
        AbortedTransactions.concatenate(expected)
    )


def cleaned_again(log: CleanedLog, name: str, before: str, after: str, partition: str) -> CleanedLog:
    now_ms = statistics(f"{name}/{after}/{partition}")["now_ms"]
    producers = active_producers(golden_dir(f"{name}/{before}/{partition}"), now_ms)
    return clean_log(log.segments, first_dirty_offset=log.first_dirty_offset, now_ms=now_ms, producers=producers)


@pytest.mark.parametrize("case", ROUNDS, ids=IDS)
def test_cleaning_again_at_the_same_time_changes_nothing(case):
    log = cleaned(*case)
    if case[:2] == ("txn-compact", "dirty"):
        # It takes a second cleaning to see that the data of a transaction are gone.
        log = cleaned_again(log, *case)
    again = cleaned_again(log, *case)
    assert not again.changed
    assert again.data == log.data
    for part in again.parts:
        assert part.stats.batches_unchanged == part.stats.batches_read
        assert part.stats.bytes_written == part.stats.bytes_read
