"""Which files without offsets of the log are added to a partition, and in which order.

A chunk that was written twice, rolled, or merged with others is there as a file as well, and its records would be there
twice. Its batches tell: see `LaterFile.keys`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from spark_segments.errors import CorruptBatchError
from spark_segments.log.manifest.rows import CHUNK, Segment
from spark_segments.log.manifest.upkeep import ORPHAN_AGE_MS
from spark_segments.log.rebuild.later_files import LaterFile

COPY = "its records are in the log, or in a file before it"
PART_COPY = "a part of its records is in the log, or in a file before it"


def chunks_to_add(
    chunks: Iterable[LaterFile],
    rows: Iterable[Segment],
    keys_of: Callable[[Segment], set[int]],
    seen: set[int],
    named: Callable[[LaterFile], bool],
    left_out: dict[tuple[str, int], str],
) -> list[LaterFile]:
    """The chunks to add, in the order of writing; why the others are not goes to `left_out`, by path and position.

    `rows`: what is known, and there. `seen`: keys of the files that are added already. A chunk that the user `named` is
    added even if it is a copy.
    """
    ordered = sorted(chunks, key=lambda one: (one.made_ms, one.path, one.position))
    if not ordered:
        return []
    known, damage = _known_keys(rows, keys_of, min(one.written_ms for one in ordered))
    seen = seen | known
    merged = _needed_merges(ordered, seen)
    for one in merged:
        seen |= keys_in(one)
    added = []
    for one in ordered:
        keys = keys_in(one)
        if named(one) or one in merged:
            added.append(one)
        elif keys & seen:
            left_out[one.path, one.position] = COPY if keys <= seen else PART_COPY
            continue
        elif damage is not None:
            left_out[one.path, one.position] = f"whether its records are in the log is not known: {damage}"
            continue
        else:
            added.append(one)
        seen |= keys
    return added


def fitting_run(chunks: Sequence[LaterFile], offsets: int, before_ms: int) -> range:
    """The places of the first neighbours among the chunks that have so many offsets together, and that were written
    before `before_ms`; an empty range if there are none.
    """
    start = total = 0
    for stop, chunk in enumerate(chunks):
        if chunk.written_ms > before_ms:
            break
        total += _offsets(chunk)
        while total > offsets:
            total -= _offsets(chunks[start])
            start += 1
        if total == offsets and start <= stop:
            return range(start, stop + 1)
    return range(0)


def keys_in(file: LaterFile) -> set[int]:
    """The file's keys as a set."""
    assert file.keys is not None
    return set(file.keys.tolist())


def _known_keys(
    rows: Iterable[Segment], keys_of: Callable[[Segment], set[int]], oldest_ms: int
) -> tuple[set[int], str | None]:
    """The keys of known rows that a file written at `oldest_ms` or later may be a copy of, and the first damage.

    A sealed segment is as old as its newest chunk, and nobody writes a chunk twice more than ORPHAN_AGE_MS apart.
    """
    found: set[int] = set()
    damage: str | None = None
    for row in rows:
        if row.state == CHUNK or row.created_ms >= oldest_ms - ORPHAN_AGE_MS:
            try:
                found |= keys_of(row)
            except CorruptBatchError as error:
                damage = damage or str(error)
    return found, damage


def _needed_merges(chunks: Sequence[LaterFile], seen: set[int]) -> list[LaterFile]:
    """The merged chunks that have records which neither the chunks that they were made of nor others have."""
    single = seen.union(*(keys_in(one) for one in chunks if not one.is_merged))
    needed: list[LaterFile] = []
    for one in sorted((one for one in chunks if one.is_merged), key=lambda one: len(keys_in(one)), reverse=True):
        keys = keys_in(one)
        if not keys <= single and not keys & seen:
            needed.append(one)
            single |= keys
    return needed


def _offsets(chunk: LaterFile) -> int:
    assert chunk.row is not None
    return chunk.row.next_offset - chunk.row.base_offset
