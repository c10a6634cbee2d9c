"""The played broker finds nothing in a few seeds, replays what it does, and finds what is planted."""

from __future__ import annotations

import re
from typing import Any

import pytest

from spark_segments.kafka import partition, segment_copier
from spark_segments.kafka.import_landing import Landing
from spark_segments.kafka.listing import Listing, base_offset, file_name
from spark_segments.storage import Storage
from verification.simulation.broker.passes import run
from verification.world.kafka_bytes.segment_bytes import parse_txn_index
from verification.world.manifest_rows import Segment

PASSES = 42


def test_nothing_is_lost_unsaid_above_the_high_watermark_or_aborted():
    seed = 2
    outcome = run(seed, PASSES)
    assert outcome.violation is None, f"python -m verification.simulation.broker --seed {seed}: {outcome.violation}"
    assert outcome.counts["records compared"] > 0 and outcome.counts["holes"] > 0


@pytest.mark.proof
def test_a_seed_has_the_same_events_every_time():
    first, second, other = run(3, 10), run(3, 10), run(4, 10)
    assert first.trace == second.trace != other.trace


def found(pattern: str, first: int = 1) -> bool:
    """Whether any of some seeds finds a violation that says so. `first`: the seed that finds it soonest."""
    return any(re.search(pattern, run(seed, PASSES).violation or "") for seed in range(first, first + 20))


def test_a_segment_that_rolled_after_a_first_listing_is_found(monkeypatch):
    """The high watermark cuts what was the last segment when it was looked at; then the directory is listed again."""
    end_at = partition._Directory._end_at

    def end_and_list_again(listed: Any, high_watermark: int) -> None:
        end_at(listed, high_watermark)
        if not listed.logs:
            return
        cut = {listed.logs[-1][0]}
        later = [info for info in listed.storage.list(listed.source.path) if info.path.endswith(".log")]
        known = {base for base, _ in listed.logs}
        new = [(base_offset(file_name(info)) or 0, info) for info in later]
        listed.logs += [log for log in new if log[0] not in known and log[0] > max(cut)]
        if len(listed.logs) > len(known):
            listed.end_offset = None

    monkeypatch.setattr(partition._Directory, "_end_at", end_and_list_again)
    assert found("above the high watermark")


@pytest.mark.proof
def test_a_segment_that_a_cleaner_replaced_is_found(monkeypatch):
    monkeypatch.setattr(Listing, "changed_file", lambda *_, **__: None)
    assert found("a pass fails|lacks the newest value|holds", 19)


@pytest.mark.proof
def test_a_transaction_index_that_is_not_the_scans_is_found(monkeypatch):
    """Kafka's file is looked at again as it is copied, and left out where a marker came after the scan."""
    with_transactions = segment_copier._with_transactions

    def looked_at_again(source: Storage, target: Storage, row: Segment, copied: Segment, aborted: Any) -> Segment:
        entries = parse_txn_index(segment_copier._read(source, row.txn_index_path), path=row.txn_index_path)
        if len(entries) and int(entries.last_offset.max()) >= row.next_offset:
            return copied
        return with_transactions(source, target, row, copied, entries if len(entries) else aborted)

    monkeypatch.setattr(segment_copier, "_with_transactions", looked_at_again)
    assert found("readers of committed records", 5)


def test_a_hole_that_is_not_recorded_is_found(monkeypatch):
    monkeypatch.setattr(Landing, "_holes", lambda *_: [])
    assert found("without a hole")
