"""Conditions of DuckDB and Polars on keys: the rows are those of a full scan, and few offsets are read for them."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir
from spark_segments.duckdb import TopicDatabase
from spark_segments.keys.job import index
from spark_segments.log.reading.condition_keys import keys_of_condition
from spark_segments.maintenance import compact, erase, restore, roll
from spark_segments.polars import scan_topic
from tests.examples import examples

KEYS = ["k0", "k1", "k5", "", "none"]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Topics of the same records: without an index, with a fresh one, a stale one, a damaged one, and so on."""
    path = tmp_path_factory.mktemp("conditions")
    log = LogDir.create(str(path))
    for name in ("bare", "fresh", "stale", "damaged", "restored", "erased", "compacted"):
        log.create_topic(name, 2, {"segment.ms": "1", "file.delete.delay.ms": "0"})
        version = 0
        for number in range(4):
            keys = [None if row == 33 and name != "compacted" else f"k{row % 7}" for row in range(40)]
            keys[5] = ""
            rows = [{"key": key, "value": f"{number} {row % 4}"} for row, key in enumerate(keys)]
            log.topic(name).append(rows)
            version = version or log.topic(name).version
        if name == "bare":
            continue
        if name == "compacted":
            roll(log, topics=[name])
        index(log, topics=[name])
        if name == "stale":
            log.topic(name).append([{"key": "k1", "value": "later"}, {"value": "no key"}])
        if name == "restored":
            restore(log, topics=[name], version=version)
            log.topic(name).append([{"key": "k5", "value": "after"}])
        if name == "erased":
            erase(log, topics=[name], keys=[b"k5"])
        if name == "compacted":
            log.topic(name).alter({"cleanup.policy": "compact"})
            compact(log, topics=[name], force=True)
    for run in (path / "_keys/damaged/key/runs").glob("*.run"):
        run.write_bytes(run.read_bytes()[:-20] + bytes(20))
    return log


TOPICS = st.sampled_from(["bare", "fresh", "stale", "damaged", "restored", "erased", "compacted"])
VIEWS = st.sampled_from([None, "latest"])


def blob(key):
    return f"'{key}'::BLOB"


one_of_keys = st.sampled_from(KEYS)
simple_sql = st.one_of(
    one_of_keys.map(lambda key: f"key = {blob(key)}"),
    one_of_keys.map(lambda key: f"{blob(key)} <> key"),
    one_of_keys.map(lambda key: f"key >= {blob(key)}"),
    one_of_keys.map(lambda key: f"key IS NOT DISTINCT FROM {blob(key)}"),
    one_of_keys.map(lambda key: f"decode(key) = '{key}'"),
    st.lists(one_of_keys, min_size=1, max_size=4).map(lambda keys: f"key IN ({', '.join(map(blob, keys))})"),
    st.lists(one_of_keys, min_size=1, max_size=4).map(lambda keys: f"key NOT IN (NULL, {', '.join(map(blob, keys))})"),
    st.sampled_from(["key IS NULL", "key IS NOT NULL", "partition = 1", '"offset" < 60', '"offset" >= 30']),
    st.sampled_from(["value = '1 2'::BLOB", "(key = 'k1'::BLOB) IS NOT TRUE", "key = value"]),
)
sql_conditions = st.recursive(
    simple_sql,
    lambda inner: st.one_of(
        st.builds(lambda a, b: f"({a} AND {b})", inner, inner),
        st.builds(lambda a, b: f"({a} OR {b})", inner, inner),
        inner.map(lambda a: f"NOT ({a})"),
        st.builds(lambda a, b: f"CASE WHEN {a} THEN {b} END", inner, inner),
    ),
    max_leaves=5,
)


@examples(150)
@given(topic=TOPICS, view=VIEWS, condition=sql_conditions)
def test_a_condition_of_duckdb_has_the_rows_of_a_full_scan(log, topic, view, condition):
    name = topic if view is None else f"{topic}$latest"
    columns = 'partition, "offset", key, value'
    with TopicDatabase(log) as database:
        rows = database.sql(f'SELECT {columns} FROM "{name}" WHERE {condition} ORDER BY ALL').to_table()
        scanned = f'(SELECT * FROM "{name}" OFFSET 0)'  # conditions are not pushed through this
        expected = database.sql(f"SELECT {columns} FROM {scanned} WHERE {condition} ORDER BY ALL").to_table()
    assert rows.equals(expected)


simple_predicates = st.one_of(
    one_of_keys.map(lambda key: pl.col("key") == key.encode()),
    one_of_keys.map(lambda key: pl.lit(key.encode()) != pl.col("key")),
    one_of_keys.map(lambda key: pl.col("key").eq_missing(key.encode())),
    st.builds(
        lambda keys, nulls_equal: pl.col("key").is_in(keys, nulls_equal=nulls_equal),
        st.lists(st.sampled_from([b"k1", b"k5", b"", None]), max_size=3),
        st.booleans(),
    ),
    st.sampled_from([pl.col("key").is_null(), pl.col("partition") == 1, pl.col("offset") < 60]),
    st.sampled_from([(pl.col("key") == b"k1").fill_null(value=True), pl.col("key") == pl.col("value")]),
)
predicates = st.recursive(
    simple_predicates,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        inner.map(lambda a: ~a),
    ),
    max_leaves=5,
)


@examples(100)
@given(topic=TOPICS, view=VIEWS, predicate=predicates)
def test_a_predicate_of_polars_has_the_rows_of_a_full_scan(log, topic, view, predicate):
    columns = ["partition", "offset", "key", "value"]
    batches = log.topic(topic).scan(columns=columns, view=view).batches()
    expected = pl.DataFrame(pa.Table.from_batches(batches)).filter(predicate)
    assert scan_topic(log.uri, topic, view=view).filter(predicate).select(columns).collect().equals(expected)


@pytest.mark.parametrize(
    ("condition", "keys"),
    [
        ("key = 'k1'::BLOB", (b"k1",)),
        ("key IN ('k1'::BLOB, 'k5'::BLOB) AND \"offset\" < 60", (b"k1", b"k5")),
        ("key = 'k1'::BLOB OR (key = 'k2'::BLOB AND partition = 1)", (b"k1", b"k2")),
        ("key IN ('k1'::BLOB, 'k5'::BLOB) AND key IN ('k5'::BLOB, 'k2'::BLOB)", (b"k5",)),
        ("key = 'k1'::BLOB OR partition = 1", None),
        ("NOT key = 'k1'::BLOB", None),
        ("key NOT IN ('k1'::BLOB)", None),
        ("key IS NULL OR key = 'k1'::BLOB", None),
        ("decode(key) = 'k1'", None),
        ("key::VARCHAR = 'k1'", None),
    ],
)
def test_conditions_of_duckdb_that_reach_the_index(log, reads, condition, keys):
    with TopicDatabase(log) as database:
        database.sql(f"SELECT value FROM fresh WHERE {condition}").to_table()
    assert reads[-1].selection.keys == keys
    if keys is not None:
        assert reads[-1].coverage.scanned_offsets == 0


def test_a_thousand_keys_of_a_condition_reach_the_index(log, reads):
    keys = ", ".join(blob(f"k{number}") for number in range(1000))
    with TopicDatabase(log) as database:
        rows = database.sql(f"SELECT value FROM fresh WHERE key IN ({keys})").to_table().num_rows
    assert rows == pc.sum(pc.is_in(log.topic("fresh").scan().to_table()["key"], pa.array(
        [f"k{number}".encode() for number in range(1000)]
    ))).as_py()  # fmt: skip
    assert len(reads[0].selection.keys) == 1000


def test_typed_keys_reach_the_index_where_a_value_has_one_encoding(tmp_path, reads):
    log = LogDir.create(str(tmp_path))
    for kind in ("long", "int", "short", "string", "json"):
        formats = {"key.format": kind}
        log.create_topic(kind, 2)
        is_text = kind in ("string", "json")
        rows = [{"key": str(row % 5) if is_text else row % 5, "value": str(row)} for row in range(50)]
        log.topic(kind).append(rows, formats=formats)
        index(log, topics=[kind])
        three = "'3'" if is_text else "3"
        with TopicDatabase(log, formats=formats) as database:
            rows = database.sql(f"SELECT value FROM {kind} WHERE key = {three}").to_table()
        assert rows.num_rows == 10
        assert (reads[-1].coverage is None) == (kind == "json")
        found = scan_topic(log.uri, kind, formats=formats).filter(pl.col("key") == ("3" if is_text else 3)).collect()
        assert found.height == 10
        assert (reads[-1].coverage is None) == (kind == "json")


def test_what_is_not_understood_of_a_condition_limits_no_key():
    schema = pa.schema([("key", pa.binary()), ("offset", pa.int64())])
    key = pc.field("key")
    for condition in (key.isin([b"a", None]), key == key, (key == b"a").is_null(), ~(key == b"a"), key != b"a"):
        assert keys_of_condition(condition, schema) is None
    assert keys_of_condition((key == b"a") | (pc.field("offset") > 3), schema) is None
    assert keys_of_condition((key == b"a") & (pc.field("offset") > 3), schema) == {b"a"}
    assert keys_of_condition((key == b"") | key.isin([b"b"]), schema) == {b"", b"b"}
    assert keys_of_condition(key.isin([]), schema) == frozenset()
    nested = pa.schema([("key", pa.struct([("key", pa.string())]))])
    assert keys_of_condition(pc.field("key", "key") == "a", nested) is None
