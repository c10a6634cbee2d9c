"""Where files that no known row names can stand in a partition's log: a pure function of rows and files.

A file that a job wrote has the offsets of the log. It fills the place of known rows whose files are gone, alone or in a
chain of such files, or goes on behind the log end. Known rows whose files are there stay. A chunk has no offsets: it
stands where a segment that was made of it says (anchors.py), or between such files where it fits exactly, else behind
the log end, in the order of writing. A copy of batches that are in the log already is left out, so that no record is
there twice.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spark_segments.errors import CorruptBatchError
from spark_segments.log.manifest.rows import CHUNK, SEALED, Segment
from spark_segments.log.rebuild.anchors import Anchors, Batches, SameRecords, merged_base
from spark_segments.log.rebuild.coverage import Piece, cover
from spark_segments.log.rebuild.later_chunks import (
    COPY,
    chunks_to_add,
    fitting_run,
    in_order_of_writing,
    keys_in,
    twins,
)
from spark_segments.log.rebuild.later_files import IMPORTED, LaterFile
from spark_segments.log.rebuild.returning import with_returned

BELOW_START = "its offsets are below the log start offset"
TOO_OLD = "it was written before records that are in the log at its offsets or ahead of them"
OTHER_RECORDS = "the log has other records at its offsets"
OUTDATED = (
    "it is older than chunks that were compacted: its records may have been, too, and would come back as the newest"
)

CLOCKS_MS = 60_000
"""A file counts as older than a row from this difference on: their times are those of several clocks."""


@dataclass(slots=True)
class PlacedLog:
    """The rows of a partition in order, its log start and end, and what became of each file.

    `added`: {(path, position): offsets of the log [first, next)}. `left_out`: {(path, position): why}. `replaced`:
    known rows whose records are in a file that was added. `returned`: rows that had left the log, in it again in the
    place of rows that are gone. `missing`: rows in the log whose files are gone or cut, each with its offsets that no
    other file has. `passed_over`: the same of rows that are not in the log any more, since the file that was added
    before them was compacted: nobody can tell whether they had records.
    """

    rows: list[Segment]
    log_start_offset: int
    log_end_offset: int
    added: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    left_out: dict[tuple[str, int], str] = field(default_factory=dict)
    replaced: list[Segment] = field(default_factory=list)
    returned: list[Segment] = field(default_factory=list)
    missing: list[Segment] = field(default_factory=list)
    passed_over: list[Segment] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class KnownLog:
    """A partition as it is known: live rows in log order, log start and end, and rows `out` of the log.

    `is_there`: whether the file of a row is there and as long as the row says. `is_gone`: whether there is no such
    file. `batches_of`: the batches of a row that is there; raises CorruptBatchError. `same_records`: see `Anchors`.
    `is_compacted`: whether the last record of a key stands for it.
    """

    rows: Sequence[Segment]
    log_start_offset: int
    log_end_offset: int
    is_there: Callable[[Segment], bool]
    is_gone: Callable[[Segment], bool]
    batches_of: Callable[[Segment], Batches]
    same_records: SameRecords
    out: Sequence[Segment] = ()
    is_compacted: bool = False


def place(known: KnownLog, later: Sequence[LaterFile], named: Callable[[LaterFile], bool]) -> PlacedLog:
    """Puts files into a partition's log. `named`: whether the user named the file: a chunk is then added although a
    part of it is a copy.
    """
    return _Placing(known).run(later, named)


class _Placing:
    """The log of a partition while it is put together."""

    def __init__(self, known: KnownLog) -> None:
        self._known = known
        self._placed = PlacedLog([], known.log_start_offset, known.log_end_offset)
        filled, returned = with_returned(known.rows, known.out, known.is_there)
        self._returned = {row.identity for row in returned}
        self._empty = [row for row in filled if row.next_offset == row.base_offset and known.is_there(row)]
        self._rows = [row for row in filled if row.next_offset > row.base_offset]
        self._starts = [row.base_offset for row in self._rows]
        self._ends = [row.next_offset for row in self._rows]
        self._there = {row.identity: row for row in self._rows if known.is_there(row)}
        self._lost = [row for row in self._rows if row.identity not in self._there]
        self._lost_ends = [row.next_offset for row in self._lost]
        self._start = self._rows[0].base_offset if self._rows else known.log_end_offset
        self._unread: set[tuple[str, int, int]] = set()  # of lost rows that are in the log, perhaps in part
        self._moved = 0  # offsets of the log minus offsets of the path

    def run(self, later: Sequence[LaterFile], named: Callable[[LaterFile], bool]) -> PlacedLog:
        placed, known = self._placed, self._known
        segments = [file for file in later if not file.is_chunk]
        offsetless = in_order_of_writing([file for file in later if file.is_chunk])
        out = (row for row in known.out if known.is_there(row))
        found, damage = twins(offsetless, self._there.values(), out, known.batches_of)
        anchored = self._anchored(segments, offsetless, found)
        path = self._path([*segments, *anchored])
        seen = {key for _, batches in found for key in batches.keys.tolist()}
        for piece, _ in path:
            if isinstance(piece.owner, LaterFile):
                seen |= keys_in(piece.owner)
        standing = {(file.path, file.position) for file in anchored}
        for file in offsetless:
            if named(file) and placed.left_out.get((file.path, file.position)) == COPY:
                standing.discard((file.path, file.position))
                del placed.left_out[file.path, file.position]
        rest = [file for file in offsetless if (file.path, file.position) not in standing]
        chunks = chunks_to_add(rest, seen, damage, named, placed.left_out)
        at = self._start
        for piece, entry in path:
            if entry > at:
                self._pass(at, min(entry, known.log_end_offset))
                self._close(max(at, known.log_end_offset), entry, piece.owner, chunks)
            self._add(piece, entry)
            at = piece.end
        self._pass(at, known.log_end_offset)
        outdated = self._outdated(offsetless, anchored)
        for chunk in chunks:
            if (chunk.path, chunk.position) in outdated and not named(chunk):
                placed.left_out[chunk.path, chunk.position] = OUTDATED
            else:
                self._append(chunk)
        placed.rows = _in_order([*placed.rows, *self._empty])
        if placed.rows:
            placed.log_end_offset = max(placed.log_end_offset, placed.rows[-1].next_offset)
            placed.log_start_offset = max(placed.log_start_offset, placed.rows[0].base_offset)
        elif self._rows:
            placed.log_start_offset = placed.log_end_offset
        self._sum_up()
        return placed

    # Files with offsets of the log

    def _anchored(
        self,
        segments: Sequence[LaterFile],
        chunks: Sequence[LaterFile],
        known: Sequence[tuple[Segment, Batches]],
    ) -> list[LaterFile]:
        """The chunks that segments were made of, or that were made of known rows, at their offsets of the log."""
        if not chunks:
            return []
        anchors = Anchors([*known, *((_row(file), _batches(file)) for file in segments)], self._known.same_records)
        active = [row for row in self._rows if row.state == CHUNK]
        found = []
        for chunk in chunks:
            base = anchors.find(_row(chunk), _batches(chunk))
            if base is None and chunk.is_merged:
                base = merged_base(active, _batches(chunk))
            if base is not None:
                found.append(dataclasses.replace(chunk, row=_row(chunk).at(base)))
        return found

    def _path(self, files: Sequence[LaterFile]) -> list[tuple[Piece[Segment | LaterFile], int]]:
        pieces: list[Piece[Segment | LaterFile]] = [
            Piece(row.base_offset, row.next_offset, row, True) for row in self._there.values()
        ]
        usable = []
        for file in files:
            row = _row(file)
            problem = self._problem(file, row)
            if problem is not None:
                self._placed.left_out[file.path, file.position] = problem
                continue
            usable.append(file)
            span = row.next_offset - row.base_offset
            passed_over = span - min(row.records, span)
            pieces.append(Piece(row.base_offset, row.next_offset, file, False, passed_over, file.is_chunk))
        path = cover(pieces, self._start)
        used = {id(piece.owner) for piece, _ in path}
        self._placed.left_out |= {(file.path, file.position): COPY for file in usable if id(file) not in used}
        return path

    def _problem(self, file: LaterFile, row: Segment) -> str | None:
        """Why a file cannot be a part of this log, else None: a topic of the same name may have left it."""
        if row.next_offset <= self._start:
            return BELOW_START
        first, last = bisect_right(self._ends, row.base_offset), bisect_left(self._starts, row.next_offset)
        inside = self._rows[first:last]
        goes_on = row.next_offset > self._known.log_end_offset
        newest_ms = max((one.created_ms for one in (self._rows if goes_on else inside)), default=0)
        if file.is_chunk:
            return None  # its records say where it stood
        if goes_on and file.has_transactions:
            return IMPORTED  # which of them are open there, nobody knows
        if file.written_ms + CLOCKS_MS < newest_ms:
            return TOO_OLD
        if goes_on and all(one.identity in self._there for one in inside) and not self._is_kin(file, row, inside):
            return OTHER_RECORDS
        return None

    def _is_kin(self, file: LaterFile, row: Segment, inside: Sequence[Segment]) -> bool:
        """Whether a file has batches of the known rows in its offsets, or records of them; or none in their place. No
        batch of this log lies across the end of a row.
        """
        keys, batches = keys_in(file), _batches(file)
        for edge in (one.next_offset for one in inside):
            if bool(((batches.starts < edge) & (batches.ends > edge)).any()):
                return False
        if any(self._keys(one) & keys for one in reversed(inside)):
            return True
        for one in inside:
            places = (batches.starts >= one.base_offset) & (batches.ends <= one.next_offset) & (batches.last_ms >= 0)
            for start, end in zip(batches.starts[places].tolist(), batches.ends[places].tolist(), strict=True):
                return self._known.same_records(one, row, start, end)
        return True

    def _keys(self, row: Segment) -> set[int]:
        """The keys of a known row, none where its file is damaged."""
        try:
            return self._known.batches_of(row).key_set
        except CorruptBatchError:
            return set()

    def _add(self, piece: Piece[Segment | LaterFile], entry: int) -> None:
        """Puts a piece behind the rows before it, from the offset `entry` on."""
        placed, owner = self._placed, piece.owner
        if isinstance(owner, Segment):
            placed.rows.append(_part(owner, entry, owner.next_offset))
            return
        if entry > piece.start and not self._moved:
            entry = self._taken_back(owner, piece.start, entry)
        row = _part(_row(owner), entry, piece.end).at(entry + self._moved)
        placed.rows.append(row)
        placed.added[owner.path, owner.position] = (row.base_offset, row.next_offset)

    def _taken_back(self, file: LaterFile, start: int, entry: int) -> int:
        """Takes the rows of [start, entry) away where the file holds them whole, so that its row names all of it."""
        rows, at = self._placed.rows, entry
        first = len(rows)
        while first and at > start:
            row = rows[first - 1]
            if row.next_offset != at or self._there.get(row.identity) != row:
                return entry
            first, at = first - 1, row.base_offset
        if at != start or not all(keys and keys <= keys_in(file) for keys in map(self._keys, rows[first:])):
            return entry
        del rows[first:]
        return start

    def _pass(self, at: int, stop: int) -> None:
        """Goes over offsets [at, stop) of known rows that no file has. At the beginning of the log, rows that are gone
        are left out: the log starts behind them.
        """
        placed = self._placed
        if at >= stop:
            return
        for row in self._lost[bisect_right(self._lost_ends, at) :]:
            if row.base_offset >= stop:
                break
            part = _part(row, max(at, row.base_offset), min(stop, row.next_offset))
            last = placed.rows[-1] if placed.rows else None
            if last is None and self._known.is_gone(row):
                placed.log_start_offset = max(placed.log_start_offset, part.next_offset)
            elif last is not None and self._may_be_cleaned(last, part):
                placed.rows[-1] = dataclasses.replace(last, next_offset=part.next_offset, state=SEALED)
                placed.passed_over.append(part)
            else:
                placed.missing.append(part)
                if row.identity not in self._unread:  # no two rows have an identity
                    self._unread.add(row.identity)
                    placed.rows.append(part)

    def _may_be_cleaned(self, last: Segment, part: Segment) -> bool:
        """Whether cleaning may have taken the records of `part`: the file before it was cleaned after those were."""
        is_added = (last.path, last.position) in self._placed.added
        return is_added and last.next_offset == part.base_offset and last.records < last.next_offset - last.base_offset

    def _close(self, at: int, stop: int, owner: Segment | LaterFile, chunks: list[LaterFile]) -> None:
        """Closes the gap [at, stop) behind the known log end: with chunks that fit, else by moving what comes next."""
        if at >= stop or isinstance(owner, Segment):
            return
        run = fitting_run(chunks, stop - at, owner.written_ms)
        for chunk in chunks[run.start : run.stop]:
            row = _row(chunk)
            self._put(chunk, row.at(at + self._moved))
            at += row.next_offset - row.base_offset
        del chunks[run.start : run.stop]
        self._moved -= stop - at

    # Chunks

    def _outdated(self, chunks: Sequence[LaterFile], anchored: Sequence[LaterFile]) -> set[tuple[str, int]]:
        """The chunks of a compacted topic that were written before another, later one that has its place in the log."""
        end = self._known.log_end_offset
        rolled = {(file.path, file.position) for file in anchored if _row(file).base_offset >= end}
        places = [(file.path, file.position) for file in chunks]
        newest = max((at for at, place in enumerate(places) if place in rolled), default=0)
        return set(places[:newest]) if self._known.is_compacted else set()

    def _append(self, chunk: LaterFile) -> None:
        """Puts a chunk behind the log end."""
        end = max([self._placed.log_end_offset, *(row.next_offset for row in self._placed.rows[-1:])])
        self._put(chunk, _row(chunk).at(end))

    def _put(self, file: LaterFile, row: Segment) -> None:
        self._placed.rows.append(row)
        self._placed.added[file.path, file.position] = (row.base_offset, row.next_offset)

    def _sum_up(self) -> None:
        placed = self._placed
        kept = {row.identity for row in placed.rows}
        placed.returned = [row for row in placed.rows if row.identity in self._returned]
        placed.replaced = [row for row in self._known.rows if row.identity not in kept and not self._known.is_gone(row)]


def _part(row: Segment, first: int, following: int) -> Segment:
    """The row with the offsets [first, following) alone."""
    if (first, following) == (row.base_offset, row.next_offset):
        return row
    file_base_offset = row.file_base_offset + first - row.base_offset
    return dataclasses.replace(row, base_offset=first, next_offset=following, file_base_offset=file_base_offset)


def _batches(file: LaterFile) -> Batches:
    assert file.batches is not None
    return file.batches


def _row(file: LaterFile) -> Segment:
    assert file.row is not None
    return file.row


def _in_order(rows: Sequence[Segment]) -> list[Segment]:
    """The rows in log order: sealed segments, then the active segment."""
    ordered = sorted(rows, key=lambda row: (row.base_offset, row.next_offset))
    last_sealed = max((at for at, row in enumerate(ordered) if row.state == SEALED), default=-1)
    return [row if at >= last_sealed else dataclasses.replace(row, state=SEALED) for at, row in enumerate(ordered)]
