"""murmur2 against Kafka's own values, its producer's choices and other clients; grouping against a plain sort."""

from __future__ import annotations

import base64

import aiokafka.partitioner
import kafka.partitioner.default
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments.errors import InvalidOptionError
from spark_segments.format.encoding.fields import NO_PARTITION
from spark_segments.format.encoding.partitioner import group_rows, murmur2_partitions
from tests.examples import examples
from verification.world.kafka_bytes.golden_files import expected_records

# org.apache.kafka.common.utils.UtilsTest.testMurmur2
KAFKA_VALUES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_murmur2_gives_kafkas_values():
    most = 2**31 - 1  # so many partitions that the hash itself shows
    found = murmur2_partitions(pa.array(list(KAFKA_VALUES)), most)
    assert found.dtype == np.int32
    assert found.tolist() == [(value & 0x7FFFFFFF) % most for value in KAFKA_VALUES.values()]


def test_keys_are_where_kafkas_own_producer_put_them():
    compared = 0
    for partition in (0, 1):
        records = expected_records(f"broker-data/orders-{partition}")
        keys = pa.array([base64.b64decode(record["key"]) for record in records])
        assert set(murmur2_partitions(keys, 2).tolist()) == {partition}
        compared += len(records)
    assert compared == 3000


@examples(100)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=70)), max_size=40), st.integers(1, 300), st.integers(0, 5))
def test_any_keys_go_where_other_clients_send_them(keys, partitions, start):
    found = murmur2_partitions(pa.array(keys, pa.binary()).slice(start), partitions).tolist()
    for client in (aiokafka.partitioner, kafka.partitioner.default):
        wanted = [
            NO_PARTITION if key is None else (client.murmur2(key) & 0x7FFFFFFF) % partitions for key in keys[start:]
        ]
        assert found == wanted


def test_strings_hash_as_their_utf_8_bytes_and_chunks_as_one():
    words = ["größe", "", "abc", None, "x" * 1000]
    found = murmur2_partitions(pa.array([w if w is None else w.encode() for w in words]), 1000).tolist()
    assert murmur2_partitions(pa.array(words), 1000).tolist() == found
    assert murmur2_partitions(pa.array(words, pa.large_string()), 1000).tolist() == found
    assert murmur2_partitions(pa.chunked_array([words[:2], words[2:]]), 1000).tolist() == found
    assert murmur2_partitions(pa.nulls(2), 3).tolist() == [NO_PARTITION, NO_PARTITION]
    assert murmur2_partitions(pa.array([], pa.binary()), 3).tolist() == []


def test_wrong_arguments_are_one_clear_error():
    with pytest.raises(InvalidOptionError, match="no partitions"):
        murmur2_partitions(pa.array([b"a"]), 0)
    with pytest.raises(InvalidOptionError, match="key"):
        murmur2_partitions(pa.array([1]), 3)


@examples(100)
@given(st.lists(st.integers(0, 6), max_size=100))
def test_rows_are_grouped_as_a_stable_sort_does(ids):
    partition_ids = np.array(ids, np.int32)
    order, starts = group_rows(partition_ids, 7)
    assert (order.dtype, starts.dtype) == (np.int64, np.int64)
    assert order.tolist() == np.argsort(partition_ids, kind="stable").tolist()
    assert starts.tolist() == [sum(number < partition for number in ids) for partition in range(8)]


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_partition_that_is_not_there_is_one_clear_error(wrong):
    with pytest.raises(InvalidOptionError, match=f"partition of row 2 does not exist: expected 0 to 2, found {wrong}"):
        group_rows(np.array([0, 1, wrong], np.int32), 3)
