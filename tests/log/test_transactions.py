"""Appends that name a transaction: which versions there are, and appends of no rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_segments.errors import CommitConflictError, InvalidOptionError, UnknownTopicError
from spark_segments.log.appending.append import commit_chunks
from spark_segments.log.appending.appender import Chunks
from verification.world.chunk_rows import new_chunk, new_manifest
from verification.world.manifest_rows import commit_append
from verification.world.opened import opened
from verification.world.stores.played_log import Play

ROWS = pa.table({"key": ["a", "b"], "value": ["1", "2"]})
LARGEST = 2**63 - 1


@pytest.mark.parametrize("version", [LARGEST + 1, 10**30, -1, 1.5, "7"])
def test_a_version_that_the_log_cannot_keep_is_refused_before_anything_is_written(log, version):
    play = Play()
    log = opened(log, open_delta_log=play)
    log.create_topic("orders")
    with pytest.raises(InvalidOptionError, match=f"transaction of app.*from 0 to {LARGEST}, found {version}"):
        log.topic("orders").append(ROWS, txn=("app", version))
    assert play.calls["commit_on"] == 0
    assert log.topic("orders").offsets() == {0: (0, 0)}
    assert log.storage.list("orders-0") == []


def test_a_commit_refuses_such_a_version_whoever_makes_it(tmp_path):
    manifest = new_manifest(tmp_path)
    with pytest.raises(InvalidOptionError, match="out of range"):
        commit_append(manifest, [new_chunk()], ("app", LARGEST + 1))
    assert manifest.snapshot().version == 0


@pytest.mark.parametrize("txn", [(None, 1), ("", 1), (7, 1), ("app", True), ("app", 1, 2), ("app",)], ids=str)
def test_what_no_look_up_could_find_again_is_no_transaction(log, txn):
    log.create_topic("orders")
    with pytest.raises(InvalidOptionError, match="transaction"):
        log.topic("orders").append(ROWS, txn=txn)
    assert log.topic("orders").offsets() == {0: (0, 0)}


def test_a_number_of_numpy_is_a_version(log):
    log.create_topic("orders")
    assert log.topic("orders").append(ROWS, txn=("app", np.int64(7)))
    assert log.topic("orders").append(ROWS, txn=("app", 7)) == {}


def test_the_smallest_and_the_largest_version_are_versions(log):
    log.create_topic("orders")
    for version in (0, LARGEST):
        assert log.topic("orders").append(ROWS, txn=("app", version))
        assert log.topic("orders").append(ROWS, txn=("app", version)) == {}
    assert log.topic("orders").offsets() == {0: (0, 4)}


@pytest.mark.parametrize("nothing", [ROWS.slice(0, 0), ROWS.slice(0, 0).to_batches(), []])
def test_an_append_of_no_rows_records_its_transaction(log, nothing):
    log.create_topic("orders")
    assert log.topic("orders").append(nothing, txn=("app", 7)) == {}
    assert log.topic("orders").append(ROWS, txn=("app", 7)) == {}
    assert log.topic("orders").offsets() == {0: (0, 0)}
    assert log.topic("orders").append(ROWS, txn=("app", 8)) == {0: (0, 1)}


def test_an_append_of_no_rows_and_no_transaction_commits_nothing(log):
    log.create_topic("orders")
    assert log.topic("orders").append(ROWS.slice(0, 0)) == {}
    assert log.topic("orders").snapshot.version == 0


def test_an_append_of_no_rows_names_a_topic_that_is_there(log):
    with pytest.raises(UnknownTopicError):
        log.topic("orders").append(ROWS.slice(0, 0))


def test_a_transaction_without_rows_is_not_recorded_in_a_topic_that_was_made_again(log):
    log.create_topic("orders")
    written = [Chunks("orders", log.topic("orders").snapshot.topic_id)]
    log.delete_topic("orders")
    log.create_topic("orders")
    with pytest.raises(CommitConflictError, match="made again"):
        commit_chunks(log, "orders", written, ("app", 7))
    assert log.topic("orders").append(ROWS, txn=("app", 7)) == {0: (0, 1)}
