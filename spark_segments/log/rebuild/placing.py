"""Where files that no known row names can stand in a partition's log: a pure function of rows and files.

A file that a job wrote has the offsets of the log. It takes the place of known rows whose files are gone, or goes on
behind the log end. A chunk has no offsets: it goes behind the log end, after those, in the order of writing. A copy of
batches that are in the log already is left out, so that no record is there twice. A row names a whole file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spark_segments.log.manifest.rows import CHUNK, SEALED, Segment
from spark_segments.log.rebuild.later_files import LaterFile

COPY = "its records are in the log, or in a file before it"
PART_COPY = "a part of its records is in the log, or in a file before it"


@dataclass(slots=True)
class PlacedLog:
    """The rows of a partition in order, its log start and end, and what became of each file.

    `added`: {(path, position): offsets of the log [first, next)}. `left_out`: {(path, position): why}. `replaced`:
    known rows whose records are in a file that was added. `missing`: rows behind the log start whose files are gone.
    """

    rows: list[Segment]
    log_start_offset: int
    log_end_offset: int
    added: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    left_out: dict[tuple[str, int], str] = field(default_factory=dict)
    replaced: list[Segment] = field(default_factory=list)
    missing: list[Segment] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class KnownLog:
    """A partition as it is known: live rows in log order, log start and end.

    `is_there`: whether the file of a row is there. `keys_of`: `LaterFile.keys` of the batches of a row that is there.
    """

    rows: Sequence[Segment]
    log_start_offset: int
    log_end_offset: int
    is_there: Callable[[Segment], bool]
    keys_of: Callable[[Segment], set[int]]


def place(known: KnownLog, later: Sequence[LaterFile], named: Callable[[LaterFile], bool]) -> PlacedLog:
    """Puts files into a partition's log. `named`: whether the user named the file: a chunk is then added although a
    part of it is a copy.
    """
    placed = PlacedLog(list(known.rows), known.log_start_offset, known.log_end_offset)
    seen: set[int] = set()
    followed = known.log_end_offset  # how far files with offsets of the log go on, in their own offsets
    for file in sorted((one for one in later if not one.is_chunk), key=_preference):
        if _replace(file, known, placed) or _go_on(file, followed, placed):
            assert file.row is not None and file.keys is not None
            followed = max(followed, file.row.next_offset)
            seen.update(file.keys.tolist())
    chunks = sorted((file for file in later if file.is_chunk), key=lambda one: (one.written_ms, one.path, one.position))
    if chunks:
        for row in placed.rows:
            if row.state == CHUNK and row in known.rows and known.is_there(row):
                seen |= known.keys_of(row)
    for file in chunks:
        _append(file, placed, seen, named(file))
    placed.rows = _in_order(placed.rows)
    _find_missing(placed, known)
    return placed


def _preference(file: LaterFile) -> tuple[int, float]:
    """Of files that begin together, that with the most records an offset first: a cleaned copy has fewer."""
    assert file.row is not None
    return file.row.base_offset, -file.row.records / max(1, file.row.next_offset - file.row.base_offset)


def _replace(file: LaterFile, known: KnownLog, placed: PlacedLog) -> bool:
    """Puts a file with offsets of the log in the place of the known rows that it covers, where it has what they lack.

    Where the file of any such row is gone, a commit after the last known one put other files in the place of all.
    Where all are there, the file must hold their batches.
    """
    assert file.row is not None and file.keys is not None
    base, following, place = file.row.base_offset, file.row.next_offset, (file.path, file.position)
    inside = [row for row in placed.rows if row.base_offset < following and base < row.next_offset]
    if not inside:
        return False
    has_hole = any(not known.is_there(row) for row in inside)
    if not has_hole and following <= known.log_end_offset:
        placed.left_out[place] = COPY
        return False
    first, last = inside[0], inside[-1]
    starts = base == first.base_offset or (base < first.base_offset and first == placed.rows[0])
    ends = following == last.next_offset or (following > known.log_end_offset == last.next_offset)
    keys = set(file.keys.tolist())
    holds = has_hole or all(known.keys_of(row) <= keys for row in inside)
    if not (starts and ends and holds and all(row in known.rows for row in inside)):
        placed.left_out[place] = PART_COPY
        return False
    placed.replaced += [row for row in inside if known.is_there(row)]
    placed.rows = [row for row in placed.rows if row not in inside] + [file.row]
    placed.log_end_offset = max(placed.log_end_offset, following)
    placed.added[place] = (base, following)
    return True


def _go_on(file: LaterFile, followed: int, placed: PlacedLog) -> bool:
    """Puts a file with offsets of the log behind the log end, where it begins behind the files before it."""
    assert file.row is not None
    row, place, base = file.row, (file.path, file.position), placed.log_end_offset
    if place in placed.left_out:
        return False
    if row.base_offset < followed:
        placed.left_out[place] = COPY if row.next_offset <= followed else PART_COPY
        return False
    placed.rows.append(row.at(base))
    placed.log_end_offset = base + row.next_offset - row.base_offset
    placed.added[place] = (base, placed.log_end_offset)
    return True


def _append(file: LaterFile, placed: PlacedLog, seen: set[int], is_named: bool) -> None:
    """Puts a chunk behind the log end."""
    assert file.row is not None and file.keys is not None
    keys, base = set(file.keys.tolist()), placed.log_end_offset
    if keys & seen and not is_named:
        placed.left_out[file.path, file.position] = COPY if keys <= seen else PART_COPY
        return
    placed.rows.append(file.row.at(base))
    placed.log_end_offset = base + file.row.next_offset - file.row.base_offset
    placed.added[file.path, file.position] = (base, placed.log_end_offset)
    seen |= keys


def _in_order(rows: Sequence[Segment]) -> list[Segment]:
    """The rows in log order: sealed segments, then the active segment."""
    ordered = sorted(rows, key=lambda row: (row.base_offset, row.next_offset))
    last_sealed = max((at for at, row in enumerate(ordered) if row.state == SEALED), default=-1)
    return [row if at >= last_sealed else dataclasses.replace(row, state=SEALED) for at, row in enumerate(ordered)]


def _find_missing(placed: PlacedLog, known: KnownLog) -> None:
    """Finds rows whose files are gone. Where the log begins with such rows, the log start moves over them."""
    gone = {row.identity for row in known.rows if not known.is_there(row)}
    while placed.rows and placed.rows[0].identity in gone:
        placed.log_start_offset = max(placed.log_start_offset, placed.rows[0].next_offset)
        placed.rows.pop(0)
    placed.missing = [row for row in placed.rows if row.identity in gone]
