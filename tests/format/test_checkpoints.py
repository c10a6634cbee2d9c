from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import BatchTable
from spark_segments.format.sidecars.checkpoints import (
    leader_epochs_bytes,
    leader_epochs_from,
    leader_epochs_of,
    offsets_bytes,
    parse_leader_epochs,
    parse_meta_properties,
    parse_offsets,
    parse_partition_metadata,
    partition_metadata_bytes,
)
from tests.format.test_index import segments
from verification.world.kafka_bytes.golden_files import GOLDEN

BROKER = GOLDEN / "broker-data"


def test_leader_epochs_of_kafkas_file():
    data = (GOLDEN / "plain-0" / "leader-epoch-checkpoint").read_bytes()
    assert parse_leader_epochs(data) == ((0, 0), (3, 2001), (5, 4009))
    assert leader_epochs_bytes(parse_leader_epochs(data)) == data


@pytest.mark.parametrize("name", ["plain-0", "txn-0", "multiappend-0", "broker-data/orders-1", "legacy-v0-0"])
def test_leader_epochs_rebuilt_from_batches_are_kafkas(name):
    epochs: tuple[tuple[int, int], ...] = ()
    for _, _, batches in segments(name):
        epochs = leader_epochs_of(batches, epochs)
    assert epochs == parse_leader_epochs((GOLDEN / name / "leader-epoch-checkpoint").read_bytes())


def test_only_epochs_above_all_before_begin():
    batches = BatchTable.empty(6)
    batches.leader_epoch[:] = [-1, 4, 2, 4, 5, 7]
    batches.base_offset[:] = range(10, 16)
    assert leader_epochs_of(batches, ((3, 2),)) == ((3, 2), (4, 11), (5, 14), (7, 15))
    assert leader_epochs_of(batches, ((6, 2),)) == ((6, 2), (7, 15))


def test_a_later_entry_takes_the_place_of_what_it_contradicts():
    assert parse_leader_epochs(b"0\n4\n0 0\n3 10\n5 20\n4 15\n") == ((0, 0), (3, 10), (4, 15))
    assert parse_leader_epochs(b"0\n2\n3 10\n3 12\n") == ((3, 10),)


def test_the_epoch_under_way_where_the_log_starts_begins_there():
    (_, _, batches), *_ = segments("broker-data/orders-0")
    data = (BROKER / "orders-0" / "leader-epoch-checkpoint").read_bytes()
    assert leader_epochs_from(leader_epochs_of(batches), 500) == parse_leader_epochs(data) == ((0, 500),)
    assert leader_epochs_from(((0, 0), (3, 10), (5, 20)), 10) == ((3, 10), (5, 20))
    assert leader_epochs_from(((0, 0), (3, 10), (5, 20)), 15) == ((3, 15), (5, 20))
    assert leader_epochs_from(((3, 10),), 5) == ((3, 10),)


def test_an_empty_checkpoint_has_no_entries():
    assert parse_leader_epochs(b"") == () and parse_offsets(b"", path="x") == {}


@pytest.mark.parametrize("name", ["cleaner-offset", "log-start-offset", "recovery-point-offset", "replication-offset"])
def test_offset_checkpoints_of_a_broker(name):
    data = (BROKER / f"{name}-checkpoint").read_bytes()
    offsets = parse_offsets(data, path=name)
    assert offsets_bytes(offsets) == data
    known = {
        "cleaner-offset": {("latest", 0): 37},
        "log-start-offset": {("orders", 0): 500},
        "recovery-point-offset": {("__transaction_state", 1): 0, ("orders", 1): 1410},
        "replication-offset": {("retention", 0): 800, ("payments", 0): 36},
    }
    assert known[name].items() <= offsets.items()


@given(st.dictionaries(st.tuples(st.from_regex(r"[a-zA-Z0-9._-]+", fullmatch=True), st.integers(0, 2**31 - 1)),
                       st.integers(0, 2**63 - 1)))  # fmt: skip
def test_offset_checkpoints_come_back(offsets):
    assert parse_offsets(offsets_bytes(offsets), path="x") == offsets


def test_partition_metadata_of_kafkas_file():
    data = (GOLDEN / "plain-0" / "partition.metadata").read_bytes()
    assert parse_partition_metadata(data) == "GxwcL13W4ZQ1ukEskTPQzA"
    assert partition_metadata_bytes("GxwcL13W4ZQ1ukEskTPQzA") == data
    assert parse_partition_metadata(data.replace(b": ", b" :") + b"\n") == "GxwcL13W4ZQ1ukEskTPQzA"


def test_meta_properties_of_a_broker():
    properties = parse_meta_properties((BROKER / "meta.properties").read_bytes())
    assert properties == {
        "node.id": "1",
        "directory.id": "GkJ3GH72Yv3ezvVQAkysjQ",
        "version": "1",
        "cluster.id": "HDyYw7RhTQGa6dKvW-GCQw",
    }
    escaped = parse_meta_properties(rb"#" b"\n" rb"version=0" b"\n" rb"cluster.id=a\=b\:c\\d\ \#e" b"\n")
    assert escaped == {"version": "0", "cluster.id": "a=b:c\\d #e"}
    assert parse_meta_properties(b"version=0\ncluster.id=a\\=\\u0041\n")["cluster.id"] == "a=A"


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (b"1\n0\n", 0),
        (b"0\n", 2),
        (b"0\nx\n", 2),
        (b"0\n-1\n", 2),
        (b"0\n2\n0 0\n", 8),
        (b"0\n1\n0 0\n1 1\n", 12),
        (b"0\n1\n0\n", 4),
        (b"0\n1\n0 zero\n", 4),
        (b"0\n1\n0 99999999999999999999\n", 4),
        (b"0\n1\n\xff\xfe 0\n", 4),
        (bytes(20), 0),
    ],
)
def test_a_malformed_checkpoint_is_an_error_with_its_place(data, position):
    for parse in (parse_leader_epochs, parse_offsets):
        with pytest.raises(CorruptBatchError, match="does not parse") as caught:
            parse(data, path="orders-0/checkpoint")
        assert (caught.value.path, caught.value.byte_position) == ("orders-0/checkpoint", position)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"version: 1\ntopic_id: GxwcL13W4ZQ1ukEskTPQzA",
        b"version: 0",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        b"version: 0\ntopic_id: short",
        b"version: 0\ntopic_id: GxwcL13W4ZQ1ukEskTPQz?",
        b"version 0\n",
        b"\xff\xfe",
    ],
)
def test_malformed_partition_metadata_is_an_error(data):
    with pytest.raises(CorruptBatchError):
        parse_partition_metadata(data)


@pytest.mark.parametrize("data", [b"", b"cluster.id=x\n", b"version=1\nnonsense\n", b"\xff=\n"])
def test_malformed_meta_properties_are_an_error(data):
    with pytest.raises(CorruptBatchError):
        parse_meta_properties(data)


@given(st.binary(max_size=60))
def test_no_bytes_do_anything_but_parse_or_raise(data):
    for parse in (
        parse_leader_epochs,
        parse_partition_metadata,
        parse_meta_properties,
        lambda b: parse_offsets(b, path=""),
    ):
        with contextlib.suppress(CorruptBatchError):
            parse(data)
