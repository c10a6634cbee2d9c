"""Which files without offsets of the log are added to a partition, and in which order.

A chunk that was written twice, rolled, or merged with others is there as a file as well, and its records would be there
twice. The keys of its batches tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.log.manifest.rows import SEALED, Segment
from spark_segments.log.rebuild.anchors import Batches
from spark_segments.log.rebuild.later_files import LaterFile

COPY = "its records are in the log, or in a file before it"
PART_COPY = "a part of its records is in the log, or in a file before it"

TWINS_MS = 24 * 60 * 60 * 1000
"""How far apart two writers write the same chunk, at most: tasks that Spark runs twice, and a job that is run again."""


def chunks_to_add(
    chunks: Sequence[LaterFile],
    seen: set[int],
    damage: str | None,
    named: Callable[[LaterFile], bool],
    left_out: dict[tuple[str, int], str],
) -> list[LaterFile]:
    """The chunks to add, in the order given; why the others are not goes to `left_out`, by path and position.

    `seen`: keys of what is in the log already; where a part of that cannot be read, `damage` says so. A chunk that the
    user `named` is added even if it is a copy.
    """
    seen = set(seen)
    merged = _needed_merges(chunks, seen)
    for one in merged:
        seen |= keys_in(one)
    added = []
    for one in chunks:
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


def in_order_of_writing(chunks: Sequence[LaterFile]) -> list[LaterFile]:
    """By time, then by the time of their records, then the larger first: an append fills a chunk before the next.

    Object stores tell whole seconds, in which many files are written.
    """
    resolution_ms = 1 if any(one.written_ms % 1000 for one in chunks) else 1000

    def key(one: LaterFile) -> tuple[int, int, int, int, str, int]:
        row = _row(one)
        times = row.first_batch_max_timestamp_ms, row.max_timestamp_ms
        return one.made_ms // resolution_ms, *times, -row.log_bytes, one.path, one.position

    return sorted(chunks, key=key)


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
    assert file.batches is not None
    return file.batches.key_set


def twins(
    chunks: Sequence[LaterFile],
    live: Iterable[Segment],
    out: Iterable[Segment],
    batches_of: Callable[[Segment], Batches],
) -> tuple[list[tuple[Segment, Batches]], str | None]:
    """The known rows that chunks may be copies of, with their batches; and the first damage that is met.

    `live`: rows in log order; `out`: rows out of the log. A log may be large: only rows of the chunks' time are read.
    A segment that holds a chunk's batches has records as young as its, and a sealed segment is as old as its newest
    chunk. Nobody writes a chunk twice more than TWINS_MS apart.
    """
    found: list[tuple[Segment, Batches]] = []
    damage: str | None = None
    youngest_ms, written_ms = (
        np.array([value(one) for one in chunks], np.int64)
        for value in (lambda one: _row(one).max_timestamp_ms, lambda one: one.written_ms)
    )

    def may_hold(row: Segment, since_ms: int) -> bool:
        is_cleaned = row.records < row.next_offset - row.base_offset
        fits = np.full(len(chunks), True) if is_cleaned else youngest_ms <= row.max_timestamp_ms
        if row.state == SEALED:
            fits &= (written_ms <= row.created_ms + TWINS_MS) & (written_ms >= since_ms - TWINS_MS)
        return bool(fits.any())

    def candidates() -> Iterator[Segment]:
        since_ms = 0
        for row in live:
            if may_hold(row, since_ms):
                yield row
            since_ms = max(since_ms, row.created_ms)
        yield from (row for row in out if may_hold(row, 0))

    for row in candidates():
        try:
            found.append((row, batches_of(row)))
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
    return _row(chunk).next_offset - _row(chunk).base_offset


def _row(chunk: LaterFile) -> Segment:
    assert chunk.row is not None
    return chunk.row
