"""A partition as a plain list of batches, and the files that appends, rolls and vacuums leave of it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_segments.log.manifest.rows import CHUNK, SEALED, Segment
from spark_segments.log.rebuild.anchors import Batches
from spark_segments.log.rebuild.later_files import LaterFile
from spark_segments.log.rebuild.placing import KnownLog, PlacedLog, place


@dataclass(frozen=True)
class Batch:
    """A batch of `offsets` records. `number` tells it from all others; `offset` is that of its file's bytes."""

    number: int
    offset: int
    offsets: int


def row_of(
    path: str, batches: Sequence[Batch], base: int, *, state: str = CHUNK, next_offset: int | None = None, **more: int
) -> Segment:
    """The row of a file whose name says `base`."""
    figures = {
        "log_bytes": len(batches), "index_bytes": 0, "time_index_bytes": 0, "txn_index_bytes": 0,
        "records": sum(batch.offsets for batch in batches), "batches": len(batches),
        "first_batch_max_timestamp_ms": -1, "max_timestamp_ms": -1, "offset_of_max_timestamp": -1, "tombstones": 0,
        "delete_horizon_ms": None, "created_ms": 0,
    } | more  # fmt: skip
    following = max([base, *(batch.offset + batch.offsets for batch in batches)])
    return Segment(
        topic_id="id", partition=0, base_offset=base, next_offset=following if next_offset is None else next_offset,
        path=path, file_base_offset=base, state=state, **figures,
    )  # fmt: skip


@dataclass
class PlainFiles:
    """All files that were ever written: their batches at the offsets of their bytes; and those that are still there."""

    batches: dict[str, list[Batch]] = field(default_factory=dict)
    there: set[str] = field(default_factory=set)

    def write(self, base: int, batches: Iterable[Batch]) -> str:
        path = f"orders-0/{base:020d}.{len(self.batches):032x}.log"
        self.batches[path] = list(batches)
        self.there.add(path)
        return path

    def keys(self, path: str) -> list[int]:
        return [batch.number for batch in self.batches[path]]

    def later(self, path: str, **more: object) -> LaterFile:
        """The file as a rebuild finds it, where no row names it. The order of writing is that of the names."""
        batches, base = self.batches[path], int(path[9:29])
        written_ms = int(path[30:62], 16)
        file = LaterFile(
            path, 0, 0, len(batches), written_ms, written_ms, row_of(path, batches, base),
            is_chunk=not base and not batches[0].offset and path in self.chunks,
            batches=self.facts(path),
        )  # fmt: skip
        return dataclasses.replace(file, **more)  # type: ignore[arg-type]

    chunks: set[str] = field(default_factory=set)

    def known(self, rows: Sequence[Segment], start: int, end: int, out: Sequence[Segment] = ()) -> KnownLog:
        return KnownLog(
            rows,
            start,
            end,
            lambda row: row.path in self.there,
            lambda row: row.path not in self.there,
            lambda row: self.facts(row.path),
            self.same_records,
            out,
        )

    def facts(self, path: str) -> Batches:
        batches = self.batches[path]
        numbers, starts, sizes = (
            np.array([getattr(batch, name) for batch in batches]) for name in ("number", "offset", "offsets")
        )
        return Batches(numbers.astype(np.uint64), starts, starts + sizes, numbers, numbers)

    def same_records(self, chunk: Segment, segment: Segment, start: int, end: int) -> bool:
        inside = [one for one in self.read([segment]) if start <= one[0] < end]
        return bool(inside) and set(inside) <= set(self.read([chunk]))

    def read(self, rows: Iterable[Segment]) -> list[tuple[int, int]]:
        """(offset of the log, number) of all batches that the rows give, in the order of the rows."""
        return [
            (batch.offset + row.offset_shift, batch.number)
            for row in rows
            if row.path in self.there
            for batch in self.batches[row.path]
            if row.base_offset <= batch.offset + row.offset_shift < row.next_offset
        ]


@dataclass
class PlainPartition:
    """A partition that grows: rows in log order, rows out of the log, and the true log as (offset, number)."""

    files: PlainFiles = field(default_factory=PlainFiles)
    rows: list[Segment] = field(default_factory=list)
    out: list[Segment] = field(default_factory=list)
    log: list[tuple[int, int]] = field(default_factory=list)
    start: int = 0
    end: int = 0

    def append(self, sizes: Sequence[int]) -> None:
        """A chunk of batches of these sizes."""
        batches, offset = [], 0
        for size in sizes:
            batches.append(Batch(len(self.log), offset, size))
            self.log.append((self.end + offset, len(self.log)))
            offset += size
        path = self.files.write(0, batches)
        self.files.chunks.add(path)
        self.rows.append(row_of(path, batches, 0).at(self.end))
        self.end += offset

    def roll(self, cuts: Collection[int], *, sealed: bool = True) -> None:
        """Copies the active segment into segments that end behind the batches whose places are in `cuts`, and at its
        end. A segment that is a chunk already is sealed by its row alone. Not `sealed`: they are merged chunks.
        """
        active = [row for row in self.rows if row.state == CHUNK]
        if not active:
            return
        batches = self.files.read(active)
        self.rows = [row for row in self.rows if row.state == SEALED]
        state = SEALED if sealed else CHUNK
        edges = [0, *sorted({1 + cut % len(batches) for cut in cuts} | {len(batches)})]
        for first, stop in itertools.pairwise(edges):
            piece = batches[first:stop]
            end = batches[stop][0] if stop < len(batches) else self.end
            same = [row for row in active if row.base_offset == piece[0][0] and row.next_offset == end]
            if same:
                self.rows.append(dataclasses.replace(same[0], state=state))
                continue
            sizes = [after - at for (at, _), (after, _) in zip(piece, [*piece[1:], (end, 0)], strict=True)]
            copied = [Batch(number, at, size) for (at, number), size in zip(piece, sizes, strict=True)]
            path = self.files.write(piece[0][0], copied)
            self.rows.append(row_of(path, copied, piece[0][0], state=state))
        named = {row.path for row in self.rows}
        self.out += [row.removed(0) for row in active if row.path not in named]

    def vacuum(self) -> None:
        self.files.there -= {row.path for row in self.out}
        self.out = []


def check_sound(placed: PlacedLog, files: PlainFiles) -> None:
    """Rows rise without gaps but those that are reported, none is named twice, and no batch is there twice."""
    rows = placed.rows
    if rows:
        assert rows[0].base_offset <= placed.log_start_offset
        assert rows[-1].next_offset == placed.log_end_offset
    lost = {(row.base_offset, row.next_offset) for row in placed.missing}
    for one, after in itertools.pairwise(rows):
        assert one.next_offset == after.base_offset or (one.next_offset, after.base_offset) in lost
    assert len({row.identity for row in rows}) == len(rows)
    states = [row.state for row in rows]
    assert states == sorted(states, reverse=True)  # sealed, then chunks
    numbers = [number for _, number in files.read(rows)]
    assert len(set(numbers)) == len(numbers)
    missing = {row.identity for row in placed.missing}
    assert all(row.path in files.there or row.identity in missing for row in rows)


def place_all(log: PlainPartition, before: PlainPartition) -> PlacedLog:
    """The log as it is made from what `before` says and all files that are there."""
    named = {row.path for row in [*before.rows, *before.out]}
    later = [log.files.later(path) for path in sorted(log.files.there - named)]
    placed = place(log.files.known(before.rows, before.start, before.end, before.out), later, lambda file: False)
    check_sound(placed, log.files)
    assert {*placed.added, *placed.left_out} == {(file.path, 0) for file in later}
    return placed


def known_now(log: PlainPartition) -> PlainPartition:
    return dataclasses.replace(log, rows=list(log.rows), out=list(log.out), log=list(log.log))


def log_of(*sizes: int) -> PlainPartition:
    log = PlainPartition()
    for size in sizes:
        log.append([size])
    return log
