from __future__ import annotations

import struct

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments.errors import CorruptBatchError, InvalidOptionError
from spark_segments.format.cleaner import map_kernels
from spark_segments.format.cleaner.layout import BYTES_PER_SLOT
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.format.legacy import opened
from spark_segments.format.window import Window
from tests.format.cleaned import scanned
from verification.world.kafka_bytes.golden_files import expected_records, log_files
from verification.world.kafka_bytes.twin_encode import COMMIT, Record, batch_bytes, marker_batch

MANY = 1 << 20


def keyed(keys: list[bytes | None], *, base_offset: int = 0, **options) -> bytes:
    return batch_bytes([Record(b"v", key) for key in keys], base_offset=base_offset, **options)


def filled(data: bytes, memory_bytes: int = MANY, offset_shift: int = 0, **options) -> OffsetMap:
    put = {name: options.pop(name) for name in ("end_offset", "exclude") if name in options}
    offset_map = OffsetMap(memory_bytes, **options)
    offset_map.put_batches(Window(data, scanned(data), offset_shift=offset_shift), **put)
    return offset_map


def room_for(keys: int) -> int:
    """Bytes of a map with a load factor of 1 that takes so many keys."""
    return (keys + 1) * BYTES_PER_SLOT


def test_the_latest_offset_of_each_key():
    offset_map = filled(keyed([b"a", b"b", b"a", b""]) + keyed([b"c", b"b"], base_offset=10))
    assert [offset_map.get(key) for key in (b"a", b"b", b"", b"c", b"d")] == [2, 11, 3, 10, -1]
    assert len(offset_map) == 4
    assert offset_map.end_offset == 12


def test_records_without_key_control_records_and_excluded_batches_stay_out():
    data = keyed([None, b"a"])
    data += marker_batch(COMMIT, base_offset=2, producer_id=7)
    data += keyed([b"aborted"], base_offset=3, producer_id=7, transactional=True)
    offset_map = filled(data, exclude=np.array([False, False, True]))
    assert len(offset_map) == 1
    assert offset_map.get(b"aborted") == offset_map.get(struct.pack(">hh", 0, COMMIT)) == -1
    assert offset_map.end_offset == 4


def test_only_offsets_from_start_up_to_end_are_put():
    offset_map = filled(keyed([b"a", b"b", b"a", b"b", b"a"]), start_offset=1, end_offset=3)
    assert (offset_map.get(b"a"), offset_map.get(b"b"), offset_map.end_offset) == (2, 1, 3)


def test_offsets_are_those_of_the_log():
    offset_map = filled(keyed([b"a", b"b"]), offset_shift=1000, start_offset=1001)
    assert (offset_map.get(b"a"), offset_map.get(b"b"), offset_map.end_offset) == (-1, 1001, 1002)


def test_offsets_beyond_2_to_the_32_are_whole():
    first, second = keyed([b"a", b"b"]), keyed([b"a", b"c"], base_offset=2**32 + 7)
    offset_map = filled(first + second)
    assert [offset_map.get(key) for key in (b"a", b"b", b"c")] == [2**32 + 7, 1, 2**32 + 8]
    assert offset_map.end_offset == 2**32 + 9


def test_a_batch_keeps_its_offset_range_without_its_records():
    offset_map = filled(keyed([b"a"], last_offset=99))
    assert offset_map.end_offset == 100


@pytest.mark.parametrize(
    "name", ["mixed-0", "gzip-0", "snappy-0", "lz4-0", "zstd-0", "plain-0", "legacy-v0-0", "legacy-v1-0"]
)
def test_a_golden_log_of_any_codec_and_magic(name):
    import base64

    expected: dict[bytes, int] = {}
    for record in expected_records(name):
        if record["key"] is not None:
            expected[base64.b64decode(record["key"])] = record["offset"]
    offset_map = OffsetMap(MANY)
    for path in log_files(name):
        data = path.read_bytes()
        assert all(offset_map.put_batches(window) for window in opened(Window(data, scanned(data))))
    assert len(offset_map) == len(expected)
    assert {key: offset_map.get(key) for key in expected} == expected


@given(
    keys=st.lists(st.one_of(st.none(), st.binary(max_size=1)), min_size=1, max_size=60),
    batch_records=st.integers(1, 7),
    room=st.integers(1, 12),
    codec=st.sampled_from(["none", "zstd"]),
)
def test_a_full_map_goes_exactly_up_to_the_first_key_without_room(keys, batch_records, room, codec):
    data = b"".join(
        keyed(keys[first : first + batch_records], base_offset=first, codec=codec)
        for first in range(0, len(keys), batch_records)
    )
    expected: dict[bytes, int] = {}
    end_offset = len(keys)
    for offset, key in enumerate(keys):
        if key is not None and key not in expected and len(expected) == room:
            end_offset = offset
            break
        if key is not None:
            expected[key] = offset
    offset_map = filled(data, room_for(room), load_factor=1.0)
    assert offset_map.end_offset == end_offset
    assert offset_map.full == (end_offset < len(keys))
    assert len(offset_map) == len(expected)
    assert all(offset_map.get(key) == offset for key, offset in expected.items())


def test_a_full_map_ends_the_search_for_a_key_that_it_does_not_hold():
    keys = [b"%d" % number for number in range(37)]
    offset_map = filled(keyed(keys), room_for(len(keys)), load_factor=1.0)
    assert len(offset_map) == len(keys)
    assert [offset_map.get(key) for key in keys] == list(range(37))
    assert {offset_map.get(b"%d" % number) for number in range(37, 500)} == {-1}


def test_a_full_map_takes_nothing_more():
    data = keyed([b"a", b"b"])
    offset_map = OffsetMap(room_for(1), load_factor=1.0)
    assert not offset_map.put_batches(Window(data, scanned(data)))
    more = keyed([b"a"], base_offset=2)
    assert not offset_map.put_batches(Window(more, scanned(more)))
    assert (offset_map.get(b"a"), offset_map.end_offset) == (0, 1)


def test_the_load_factor_bounds_the_entries():
    data = keyed([b"%d" % number for number in range(200)])
    assert len(filled(data, 100 * BYTES_PER_SLOT)) == 90
    assert len(filled(data, 100 * BYTES_PER_SLOT, load_factor=0.5)) == 50


def test_a_small_partition_takes_little_of_a_large_bound():
    offset_map = filled(keyed([b"a"]), 1 << 40)
    assert offset_map.slots.nbytes < 1 << 18


@given(
    aside_slots=st.integers(1, 20),
    old=st.integers(2, 200),
    more=st.integers(1, 400),
    load=st.floats(0, 1),
    seed=st.integers(0, 1 << 20),
)
def test_a_table_that_grows_in_its_place_keeps_every_key(aside_slots, old, more, load, seed):
    """Full tables among them, whose first slots have keys that belong to the last."""
    generator = np.random.default_rng(seed)
    keys = np.zeros((max(1, int(old * load)), 3), np.uint64)
    keys[:, :2] = generator.integers(0, 1 << 64, (len(keys), 2), np.uint64)
    if seed % 2:  # in a crowd: few homes, at the end of the table or anywhere
        keys[:, 0] |= np.uint64(0xFFF << 52) if seed % 4 == 1 else np.uint64(0xFF << 52)
    keys[:, 2] = np.arange(1, len(keys) + 1)
    table = np.zeros(3 * (old + more), np.uint64)
    map_kernels.put_slots(keys.reshape(-1), table[: 3 * old], 0)
    at, asides = old, []
    while at:
        aside = np.zeros(3 * aside_slots, np.uint64)
        at, used = map_kernels.spread(table, at, old + more, aside)
        assert used == aside_slots or not at
        asides.append(aside[: 3 * used])
    for aside in asides:
        map_kernels.put_slots(aside, table, 0)
    assert map_kernels.count_new(keys.reshape(-1), table) == 0
    rows = table.reshape(-1, 3)
    assert np.array_equal(np.sort(rows[rows[:, 2] != 0], axis=0), np.sort(keys, axis=0))


def test_memory_grows_with_the_keys_up_to_the_bound():
    keys = [b"key %d" % number for number in range(30_000)]
    data = b"".join(keyed(keys[first : first + 100], base_offset=first) for first in range(0, len(keys), 100))
    bound = 40_000 * BYTES_PER_SLOT
    offset_map = filled(data, bound)
    assert 30_000 * BYTES_PER_SLOT < offset_map.slots.nbytes <= bound
    assert [offset_map.get(key) for key in keys] == list(range(len(keys)))


@pytest.mark.parametrize("memory_bytes", [0, BYTES_PER_SLOT, 2 * BYTES_PER_SLOT - 1])
def test_a_map_for_no_key_at_all_is_refused(memory_bytes):
    with pytest.raises(InvalidOptionError, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        OffsetMap(memory_bytes, load_factor=0.5)


@given(keys=st.lists(st.binary(max_size=2), min_size=2, max_size=40), data=st.data())
def test_maps_of_parts_merged_are_the_map_of_the_whole(keys, data):
    cut = data.draw(st.integers(1, len(keys) - 1))
    whole = filled(keyed(keys), seed=5)
    first = filled(keyed(keys[:cut]), seed=5)
    second = filled(keyed(keys[cut:], base_offset=cut), seed=5, start_offset=cut)
    assert first.merge(second)
    assert len(first) == len(whole)
    assert first.end_offset == whole.end_offset == len(keys)
    assert all(first.get(key) == whole.get(key) for key in keys)


def test_a_merge_that_does_not_fit_leaves_the_map_as_it_was():
    first = filled(keyed([b"a", b"b"]), room_for(3), seed=5, load_factor=1.0)
    second = filled(keyed([b"c", b"d", b"a"], base_offset=2), room_for(3), seed=5, load_factor=1.0, start_offset=2)
    assert not first.merge(second)
    assert [first.get(key) for key in (b"a", b"b", b"c", b"d")] == [0, 1, -1, -1]
    assert (len(first), first.end_offset) == (2, 2)


def test_a_merge_fits_where_the_other_map_has_few_new_keys():
    first = filled(keyed([b"a", b"b"]), room_for(3), seed=5, load_factor=1.0)
    second = filled(keyed([b"a", b"c"], base_offset=2), room_for(3), seed=5, load_factor=1.0, start_offset=2)
    assert first.merge(second)
    assert ([first.get(key) for key in (b"a", b"b", b"c")], first.end_offset) == ([2, 1, 3], 4)


def test_a_merge_goes_no_further_than_the_other_map_did():
    first = filled(keyed([b"a"]), seed=5)
    second = filled(keyed([b"b", b"c", b"d"], base_offset=1), room_for(1), seed=5, load_factor=1.0, start_offset=1)
    assert first.merge(second)
    assert (first.end_offset, first.get(b"b"), first.full, second.full) == (2, 1, False, True)


@pytest.mark.parametrize("options", [{"seed": 6}, {"seed": 5, "start_offset": 2}])
def test_maps_of_other_seeds_or_with_offsets_between_them_cannot_be_merged(options):
    first = filled(keyed([b"a"]), seed=5)
    with pytest.raises(ValueError, match="seed"):
        first.merge(OffsetMap(MANY, **options))


@pytest.mark.parametrize("piece_bytes", [1, 1000, 1 << 20])
def test_a_map_can_be_taken_apart_and_put_together_again(piece_bytes):
    offset_map = filled(keyed([b"%d" % number for number in range(5000)]), seed=5, start_offset=7)
    pieces = [piece.tobytes() for piece in offset_map.used_slots(piece_bytes)]
    assert max(map(len, pieces)) <= max(piece_bytes, BYTES_PER_SLOT)
    copy = OffsetMap(MANY, seed=5, start_offset=7)
    arrays = [np.frombuffer(piece, np.uint64).copy() for piece in pieces]
    assert copy.merge_slots(lambda: arrays, offset_map.entries, offset_map.end_offset)
    assert [copy.get(b"%d" % number) for number in range(5000)] == [-1] * 7 + list(range(7, 5000))
    more = keyed([b"x"], base_offset=5000)
    assert copy.put_batches(Window(more, scanned(more)))
    assert (copy.get(b"x"), len(copy), copy.start_offset, copy.end_offset) == (5000, 4994, 7, 5001)


def test_of_two_offsets_a_merge_keeps_the_later_one_whichever_map_has_it():
    for early, late in ((0, 1), (1, 0)):
        maps = [filled(keyed([b"a"], base_offset=offset), seed=5, start_offset=0) for offset in (early, late)]
        assert maps[0].merge(maps[1])
        assert (maps[0].get(b"a"), maps[0].end_offset) == (1, 2)


def test_a_portion_of_a_file_is_found_by_its_position():
    data = keyed([b"a"]) + keyed([b"b"], base_offset=1)
    batches = scanned(data)
    first_size = int(batches.size[0])
    offset_map = OffsetMap(MANY)
    offset_map.put_batches(Window(data[first_size:], batches.take([1]), byte_position=first_size))
    assert (offset_map.get(b"a"), offset_map.get(b"b")) == (-1, 1)


def lying(data: bytes, position: int, replacement: bytes) -> bytes:
    """A batch with other bytes at a position, and a CRC that says that this is right."""
    changed = bytearray(data)
    changed[position : position + len(replacement)] = replacement
    changed[17:21] = struct.pack(">I", crc32c.crc32c(bytes(changed[21 : len(data)])))
    return bytes(changed[: len(data)])


@pytest.mark.parametrize(
    ("position", "replacement"),
    [
        (61, b"\x7f"),  # a record longer than the batch
        (61, b"\x01"),  # a negative length
        (61, b"\xff\xff\xff\xff\xff\xff"),  # a varint without end
        (65, b"\x7e"),  # a key longer than its record
        (65, b"\x03"),  # a key of -2 bytes
        (67, b"\x03"),  # a value of -2 bytes
        (67, b"\x7e"),  # a value longer than its record
        (57, struct.pack(">i", 1)),  # fewer records than there are
    ],
)
def test_records_that_lie_under_a_good_crc_are_an_error_with_its_place(position, replacement):
    data = lying(keyed([b"a", b"b", b"c"]), position, replacement)
    offset_map = OffsetMap(MANY)
    with pytest.raises(CorruptBatchError) as error:
        offset_map.put_batches(Window(data, scanned(data), path="orders-0/0.log"))
    assert (error.value.path, error.value.byte_position) == ("orders-0/0.log", 0)


def test_a_count_that_no_bytes_can_hold_is_an_error_before_memory_is_asked_for():
    data = bytearray(keyed([b"a"], last_offset=2**31 - 2))
    with pytest.raises(CorruptBatchError, match="more records than its bytes can hold"):
        filled(lying(bytes(data), 57, struct.pack(">i", 2**31 - 2)))


@given(noise=st.binary(max_size=60), count=st.integers(0, 12), codec=st.integers(0, 5))
def test_no_bytes_under_a_good_crc_do_more_than_fail(noise, count, codec):
    header = bytearray(batch_bytes([], base_offset=0, last_offset=2**31 - 1)[:61])
    header[8:12] = struct.pack(">i", 49 + len(noise))
    header[22] = codec
    header[57:61] = struct.pack(">i", count)
    data = lying(bytes(header) + noise, 61, noise)
    try:
        offset_map = filled(data)
    except CorruptBatchError:
        return
    assert len(offset_map) <= count
