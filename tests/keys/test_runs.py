"""Runs of an index: what is looked up in them equals a plain dict, after any number of merges."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments.keys.hashes import hashes_of
from spark_segments.keys.merge import merge
from spark_segments.keys.read_ahead import AHEAD_BYTES
from spark_segments.keys.run import HashedRecords, Run
from spark_segments.keys.run_file import RunFile
from spark_segments.keys.run_layout import MOST_INLINE, PAGE_BYTES, DamagedRunError, RunFooter, Shape
from spark_segments.keys.run_writer import empty_footer, write_run
from spark_segments.storage import Storage
from tests.examples import examples
from verification.world.stores.played_files import PlayedFiles

TOPIC_ID, SEED = "an id", 7


def written(storage: Storage, keys: list[bytes | None], base_offset: int = 0, hash_bits: int = 48) -> Run:
    """A run of records with these keys, from an offset on."""
    hashes, has_key = hashes_of(pa.array(keys, pa.binary()), SEED, hash_bits)
    records = HashedRecords.sorted(hashes[has_key], np.flatnonzero(has_key))
    footer = empty_footer(
        Shape.of(len(keys), len(keys), hash_bits), TOPIC_ID, SEED, (0, base_offset, base_offset + len(keys), 3)
    )
    return write_run(storage, "index", footer, iter([records]))


def found(storage: Storage, run: Run, keys: list[bytes], hash_bits: int = 48) -> tuple[list[int], bool]:
    hashes, _ = hashes_of(pa.array(keys, pa.binary()), SEED, hash_bits)
    different = np.unique(hashes)
    answer = RunFile(storage, run, TOPIC_ID, different, hash_bits).find(different)
    by_footer = RunFile(storage, run, TOPIC_ID).find(different)
    assert by_footer.offsets.tolist() == answer.offsets.tolist()
    return answer.offsets.tolist(), answer.is_anywhere


def offsets_by_hash(keys: list[bytes | None], hash_bits: int) -> dict[int, list[int]]:
    """The model: a dict of plain lists."""
    hashes, has_key = hashes_of(pa.array(keys, pa.binary()), SEED, hash_bits)
    places = defaultdict(list)
    for offset, (hashed, flag) in enumerate(zip(hashes.tolist(), has_key.tolist(), strict=True)):
        if flag:
            places[hashed].append(offset)
    return places


KEYS = st.lists(
    st.one_of(st.none(), st.sampled_from([b"", b"often"]), st.binary(max_size=2), st.binary(max_size=300)), max_size=200
)


@given(st.lists(KEYS, min_size=1, max_size=4), st.sampled_from([1, 4, 13, 48, 64]), st.integers(0, 100))
@examples(300)
def test_a_merged_run_finds_what_a_dict_does(tmp_path_factory, parts, hash_bits, start):
    storage = Storage(str(tmp_path_factory.mktemp("runs")))
    ends = [0, *itertools.accumulate(map(len, parts))]
    runs = [written(storage, keys, end, hash_bits) for keys, end in zip(parts, ends, strict=False)]
    keys = [key for part in parts for key in part]
    start = min(start, runs[0].end_offset)
    run = merge(storage, "index", runs, TOPIC_ID, log_start=start)
    model = offsets_by_hash(keys, hash_bits)
    assert run.records == sum(offset >= start for offsets in model.values() for offset in offsets)
    asked = [key for key in dict.fromkeys(keys) if key is not None] + [b"not there"]
    for key in asked:
        [hashed] = hashes_of(pa.array([key], pa.binary()), SEED, hash_bits)[0].tolist()
        expected = [offset for offset in model[hashed] if offset >= start]
        assert found(storage, run, [key], hash_bits) == (expected, False)
    everything = sorted(offset for offsets in model.values() for offset in offsets if offset >= start)
    if len(asked) > 1:
        assert set(everything) <= {*found(storage, run, asked, hash_bits)[0]}


@pytest.mark.parametrize("hash_bits", [4, 48])
def test_one_key_may_have_half_of_the_records(tmp_path, limits, hash_bits):
    limits(MOST_LISTED=500)
    storage = Storage(str(tmp_path))
    keys = [b"half" if number % 2 else b"%d" % number for number in range(1800)]
    runs = [written(storage, keys[start : start + 900], start, hash_bits) for start in (0, 900)]
    if hash_bits == 48:
        assert found(storage, runs[1], [b"half"]) == ([*range(901, 1800, 2)], False)
    run = merge(storage, "index", runs, TOPIC_ID)
    assert run.records == 1800
    assert found(storage, run, [b"half"], hash_bits)[1], "900 records are too many for a list"
    if hash_bits == 48:
        assert found(storage, run, [b"8"]) == ([8], False)
    again = merge(storage, "index", [run], TOPIC_ID)
    assert again.records == 1800
    assert found(storage, again, [b"half"], hash_bits)[1]


def test_a_large_run_is_read_by_few_bytes(tmp_path):
    storage = Storage(str(tmp_path))
    keys = [b"key-%d" % (number % 300_000) for number in range(1_000_000)]
    run = written(storage, keys)
    assert run.size_bytes <= 13 * run.records
    file = RunFile(storage, run, TOPIC_ID)
    hashes, _ = hashes_of(pa.array([b"key-77777"], pa.binary()), SEED)
    answer = file.find(hashes)
    assert answer.offsets.tolist() == [77777, 377777, 677777, 977777]
    assert answer.read_bytes <= 64 << 10


def test_a_look_up_of_many_keys_finds_what_look_ups_of_each_find(tmp_path, limits):
    """Also where what is read for some ends within the bucket of one, so that more of it is read."""
    limits(WINDOW_ENTRIES=40, MOST_FAN_BITS=3)
    storage = Storage(str(tmp_path))
    keys = [b"key %d" % number for number in range(20_000)]
    run = written(storage, keys)
    for step in range(20, 400, 5):
        asked = list(range(step, 20_000, step))
        assert found(storage, run, [keys[offset] for offset in asked]) == (asked, False)


@pytest.mark.parametrize("entries_a_part", [1 << 15, 2000])
def test_the_pages_of_a_hash_are_read_with_the_footer(tmp_path, limits, entries_a_part):
    """By what the list says of the run, in one turn of requests; also where a key has many records."""
    limits(ENTRIES_A_PART=entries_a_part)
    files = PlayedFiles()
    storage = Storage(str(tmp_path), filesystem=files)
    numbers = np.random.default_rng(3).zipf(1.3, 60_000) % 20_000
    run = written(storage, [b"%d" % number for number in numbers.tolist()])
    assert run.size_bytes > 3 * AHEAD_BYTES
    further = 0
    keys = [b"%d" % number for number in np.unique(numbers)[::37].tolist()]
    for key in keys:
        expected = np.flatnonzero(numbers == int(key)).tolist()
        hashes, _ = hashes_of(pa.array([key], pa.binary()), SEED)
        files.calls.clear()
        file = RunFile(storage, run, TOPIC_ID, hashes, 48)
        assert len(files.calls) == 2
        answer = file.find(hashes)
        assert answer.offsets.tolist() == expected
        if len(expected) <= MOST_INLINE:  # else there is a list to read
            further += len(files.calls) > 2
            assert answer.read_bytes <= AHEAD_BYTES + (len(files.calls) - 2) * 4 * PAGE_BYTES
    assert further <= len(keys) // 20
    for start in range(0, len(keys) - 5, 5):
        expected = np.flatnonzero(np.isin(numbers, [int(key) for key in keys[start : start + 5]])).tolist()
        assert found(storage, run, keys[start : start + 5]) == (expected, False)


def test_pages_that_were_guessed_wrong_are_read_again(tmp_path, limits):
    """Also where the guess was right for some of the hashes in a bucket of the footer's table, and wrong for others."""
    limits(RECORDS_A_KEY=0, LEAST_ENTRIES=1, MOST_FAN_BITS=3)
    chance = np.random.default_rng(5)
    storage = Storage(str(tmp_path))
    numbers = chance.zipf(1.3, 40_000) % 15_000
    run = written(storage, [b"%d" % number for number in numbers.tolist()])
    hashes, _ = hashes_of(pa.array([b"%d" % number for number in numbers], pa.binary()), SEED)
    order = np.unique(numbers[np.argsort(hashes)][::3])
    by_hash = sorted(order.tolist(), key=lambda number: hashes_of(pa.array([b"%d" % number], pa.binary()), SEED)[0][0])
    for start in range(0, len(by_hash) - 16, 16):
        asked = by_hash[start : start + 16]
        expected = np.flatnonzero(np.isin(numbers, asked)).tolist()
        assert found(storage, run, [b"%d" % number for number in asked]) == (expected, False)


def test_merges_by_many_slices_equal_one_by_a_single_slice(tmp_path, limits):
    storage = Storage(str(tmp_path))
    keys = [b"%d" % (number % 700) if number % 3 else b"often" for number in range(6000)]
    runs = [written(storage, keys[start : start + 2000], start) for start in range(0, 6000, 2000)]
    single = merge(storage, "index", runs, TOPIC_ID)
    limits(MERGED_SLICE_RECORDS=100)
    many = merge(storage, "index", runs, TOPIC_ID)
    assert storage.read(many.path) == storage.read(single.path)


def test_every_damaged_or_missing_byte_is_seen_or_does_no_harm(tmp_path):
    storage = Storage(str(tmp_path))
    keys = [b"often" if number % 2 else b"%d" % number for number in range(400)]
    run = written(storage, keys)
    data = storage.read(run.path).to_pybytes()
    expected = found(storage, run, [b"often"]), found(storage, run, [b"8"])
    for at in range(0, len(data), 7):
        storage.replace(run.path, data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        try:
            answers = found(storage, run, [b"often"]), found(storage, run, [b"8"])
        except DamagedRunError:
            continue
        assert answers == expected, at
    for size in range(0, len(data), 11):
        storage.replace(run.path, data[:size])
        with pytest.raises(DamagedRunError):
            found(storage, run, [b"often"])
            RunFile(storage, run, TOPIC_ID)


def test_the_footer_that_is_read_is_the_footer_that_was_written(tmp_path):
    storage = Storage(str(tmp_path))
    run = written(storage, [b"a", None, b"b"], 5)
    footer = RunFile(storage, run, TOPIC_ID).footer
    assert RunFooter.of_bytes(footer.to_bytes()).to_bytes() == footer.to_bytes()
    assert (footer.base_offset, footer.end_offset, footer.records, footer.seed) == (5, 8, 2, SEED)
