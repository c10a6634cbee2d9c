"""A run of an index of keys, written and read by docs/format/key-index.md alone: nothing of the package takes part."""

from __future__ import annotations

import base64
import json
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import crc32c
import xxhash

PAGE_BYTES = 4096
MAGIC = b"SEGKEYS\n"
HEADER = struct.Struct(">hBBBBHHiqqqqqqQih")
INLINE = 64
LISTED = 262_144
MIX = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def hash_of(key: bytes, seed: int, hash_bits: int) -> int:
    """The low 64 bits of XXH3-128, of which the highest `hash_bits` count."""
    return (xxhash.xxh3_128_intdigest(key, seed) & MASK) >> (64 - hash_bits)


def crc(data: bytes) -> bytes:
    return crc32c.crc32c(data).to_bytes(4, "big")


def pages(items: Sequence[bytes]) -> bytes:
    """Items of one size in pages, each with its CRC-32C."""
    if not items:
        return b""
    most = (PAGE_BYTES - 4) // len(items[0])
    bodies = [b"".join(items[first : first + most]) for first in range(0, len(items), most)]
    return b"".join(body + crc(body) for body in bodies)


def probes(hashed: int, bits: int) -> list[int]:
    """The bits of a hash in a Bloom filter of so many bits."""
    mixed = hashed * MIX & MASK
    step = mixed & 0xFFFFFFFF | 1
    return [((mixed >> 32) + number * step & MASK) % bits for number in range(7)]


def write_run(
    keys: Mapping[bytes, Sequence[int]], bounds: tuple[int, int, int], topic_id: str, version: int, **shape: int
) -> bytes:
    """The bytes of a run. `keys`: the offsets of each. `bounds`: partition, base offset, end offset. `shape`:
    hash_bits, fan_bits, place_bytes, seed, filter_bytes.
    """
    partition, base_offset, end_offset = bounds
    hash_bits, fan_bits, place_bytes = (shape[name] for name in ("hash_bits", "fan_bits", "place_bytes"))
    by_hash: dict[int, list[int]] = {}
    for key, offsets in keys.items():
        by_hash.setdefault(hash_of(key, shape["seed"], hash_bits), []).extend(offsets)
    rest_bits = hash_bits - fan_bits
    hash_bytes = -(-rest_bits // 8)
    entries: list[bytes] = []
    items: list[int] = []
    table = [0] * ((1 << fan_bits) + 1)
    bits = bytearray(shape["filter_bytes"])
    for hashed in sorted(by_hash):
        offsets = sorted(offset - base_offset for offset in by_hash[hashed])
        places = offsets
        if len(offsets) > INLINE:
            places = [1 << 8 * place_bytes - 1 | len(items)]
            items += [len(offsets), *offsets] if len(offsets) <= LISTED else [0, len(offsets)]
        rest = (hashed & (1 << rest_bits) - 1).to_bytes(hash_bytes, "big")
        entries += [rest + place.to_bytes(place_bytes, "big") for place in places]
        for bucket in range((hashed >> rest_bits) + 1, len(table)):
            table[bucket] = len(entries)
        for bit in probes(hashed, 8 * len(bits)) if bits else ():
            bits[bit // 8] |= 1 << bit % 8
    per_page = (PAGE_BYTES - 4) // (hash_bytes + place_bytes), (PAGE_BYTES - 4) // place_bytes
    widths = 1, hash_bits, fan_bits, hash_bytes, place_bytes
    counts = sum(map(len, by_hash.values())), len(entries), len(items)
    name = topic_id.encode()
    content = HEADER.pack(
        *widths, *per_page, partition, base_offset, end_offset, version, *counts, shape["seed"], len(bits), len(name)
    )
    content += name + b"".join(number.to_bytes(4, "big") for number in table) + bytes(bits)
    body = pages(entries) + pages([item.to_bytes(place_bytes, "big") for item in items])
    return body + content + crc(content) + len(content).to_bytes(4, "big") + MAGIC


def find(run: bytes, key: bytes) -> list[int] | None:
    """Where records of a key can be; None: anywhere in the run. Raises AssertionError for a wrong run."""
    size = int.from_bytes(run[-12:-8], "big")
    content = run[-16 - size : -16]
    assert run[-8:] == MAGIC and crc(content) == run[-16:-12]
    fields = HEADER.unpack_from(content)
    version, hash_bits, fan_bits, hash_bytes, place_bytes, entries_a_page, items_a_page = fields[:7]
    base_offset, entries, items, seed = fields[8], fields[12], fields[13], fields[14]
    filter_bytes, name_bytes = fields[15], fields[16]
    assert version == 1
    table_at = HEADER.size + name_bytes
    table = struct.unpack_from(f">{(1 << fan_bits) + 1}I", content, table_at)
    bits = content[len(content) - filter_bytes :] if filter_bytes else b""
    hashed = hash_of(key, seed, hash_bits)
    if bits and not all(bits[bit // 8] >> bit % 8 & 1 for bit in probes(hashed, 8 * len(bits))):
        return []
    all_entries, end = _unpaged(run, 0, entries, hash_bytes + place_bytes, entries_a_page)
    all_items, _ = _unpaged(run, end, items, place_bytes, items_a_page)
    bucket = hashed >> hash_bits - fan_bits
    rest = (hashed & (1 << hash_bits - fan_bits) - 1).to_bytes(hash_bytes, "big")
    own = [entry[hash_bytes:] for entry in all_entries[table[bucket] : table[bucket + 1]] if entry[:hash_bytes] == rest]
    places = [int.from_bytes(place, "big") for place in own]
    flag = 1 << 8 * place_bytes - 1
    if places and places[0] & flag:
        first = places[0] ^ flag
        count = int.from_bytes(all_items[first], "big")
        if not count:
            return None
        places = [int.from_bytes(item, "big") for item in all_items[first + 1 : first + 1 + count]]
    return [base_offset + place for place in places]


def _unpaged(run: bytes, at: int, count: int, size: int, items_a_page: int) -> tuple[list[bytes], int]:
    """(the items of pages that begin at a position, where they end)"""
    items: list[bytes] = []
    while len(items) < count:
        body = run[at : at + size * min(items_a_page, count - len(items))]
        at += len(body) + 4
        assert crc(body) == run[at - 4 : at]
        items += [body[first : first + size] for first in range(0, len(body), size)]
    return items, at


# The vectors of tests/golden/key-index: `python -m verification.specification.key_run DIRECTORY` wrote them once.

TOPIC_ID = "2c7f3a0e-55b1-4a3d-9c0b-6f1d2e3a4b5c"
SHAPE = {"hash_bits": 48, "fan_bits": 2, "place_bytes": 4, "seed": 0x0123456789ABCDEF, "filter_bytes": 64}
VECTORS: dict[str, tuple[dict[bytes, Sequence[int]], tuple[int, int, int], dict[str, int]]] = {
    "inline": ({b"": [100, 163], b"a": [101], b"b" * 300: range(110, 160)}, (0, 100, 200), SHAPE),
    "lists": (
        {b"a": range(1000, 1065), b"b": [1065], b"c": range(1070, 3000, 2), b"d": range(1071, 3000, 2)},
        (3, 1000, 4000),
        SHAPE | {"filter_bytes": 0},
    ),
    "anywhere": ({b"a": range(262_145), b"b": [262_145]}, (1, 0, 300_000), SHAPE | {"filter_bytes": 0}),
    "same hashes": (
        {b"key %d" % number: [number, number + 40] for number in range(40)},
        (0, 0, 80),
        SHAPE | {"hash_bits": 4, "fan_bits": 0, "place_bytes": 1, "filter_bytes": 8},
    ),
    "pages": (
        {b"key %d" % number: [number] for number in range(2000)},
        (0, 0, 2000),
        SHAPE | {"fan_bits": 1, "filter_bytes": 2500},
    ),
}


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(exist_ok=True)
    index = []
    for name, (keys, bounds, shape) in VECTORS.items():
        run = write_run(keys, bounds, TOPIC_ID, 7, **shape)
        path = f"{name.replace(' ', '-')}.run"
        (directory / path).write_bytes(run)
        asked = [*list(keys)[:40], b"none"]
        answers = [[base64.b64encode(key).decode(), find(run, key)] for key in asked]
        facts = dict(zip(("partition", "base_offset", "end_offset"), bounds, strict=True))
        index.append(
            {"name": name, "file": path, "topic_id": TOPIC_ID, "manifest_version": 7, **facts, "keys": answers}
        )
    lines = ",\n".join(json.dumps(vector) for vector in index)
    (directory / "vectors.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
