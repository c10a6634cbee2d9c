"""Reading a part of a scan: the work of a task."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from spark_segments.errors import RESTORE
from spark_segments.format.decoding.decode import batches_of_offsets, decode_batches
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.format.walk import BORDER_BYTES, WINDOW_BYTES
from spark_segments.format.window import Window
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.reading.filtering import matching
from spark_segments.log.reading.isolation import load_aborted
from spark_segments.log.reading.scan_plan import Part, ScanPart, Selection, cut
from spark_segments.log.segment.file import LookUp, SegmentFile
from spark_segments.storage import Storage

PIECE_BYTES = WINDOW_BYTES - BORDER_BYTES
"""Bytes of a .log that a thread reads at a time, by a single read. More would wait longer for those before them."""

Indexes = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Offset indexes in memory, by the path of the .log."""

INDEXES_AHEAD = 4
"""Indexes of an object store that are read before the pieces of their segments are."""


def read_part(storage: Storage, part: Part) -> Iterator[pa.RecordBatch]:
    """The records of a part, by offset, in batches of a few MiB, with the types of RECORD_SCHEMA.

    Raises CorruptBatchError for damaged bytes, and for an .index whose entries would pass records over.
    """
    selection = part.selection
    columns = selection.columns
    keys = selection.keys
    times = selection.times
    where = selection.where
    if keys is None and times is None and not where:
        yield from _all_records(storage, part)
        return
    compared = [*(() if keys is None else ("key",)), *(() if times is None else ("timestamp",))]
    compared += [name for condition in where for name in condition.field.columns]
    needed = tuple(dict.fromkeys([*columns, *compared]))
    part = replace(part, selection=replace(selection, columns=needed))
    yield from matching(_all_records(storage, part), columns, keys, times, where)


def _all_records(storage: Storage, part: Part) -> Iterator[pa.RecordBatch]:
    """The records of a part, whatever their keys, times and fields."""
    segment = part.segment
    selection = part.selection
    start_offset, end_offset = part.start_offset, part.end_offset
    assert segment.base_offset <= start_offset < end_offset <= segment.next_offset, "a part lies in its segment"
    if part.is_known:
        names = selection.columns
        partition = segment.partition
        yield from batches_of_offsets(start_offset, end_offset, topic=part.topic, partition=partition, columns=names)
        return
    aborted = load_aborted(storage, part.transactions, start_offset, end_offset) if part.transactions else None
    look_up, window_bytes = _begin(storage, part, start_offset)
    behind = look_up.byte_position
    is_first = True
    for window in SegmentFile(storage, segment).windows(
        behind, part.end_position, first_window_bytes=window_bytes, wanted_position=part.start_position
    ):
        behind = window.end_position
        if not len(window.batches):
            continue
        _check_rising(segment, window)
        if is_first:
            look_up.check_begin(segment, window)
            is_first = False
        yield from _records(part, window, aborted)
        # Offsets rise, so that all that follows is behind the part, and the rest of the file is not read.
        if int(window.batches.last_offset[-1]) + window.offset_shift + 1 >= end_offset:
            return
    if is_first and part.end_position >= segment.end_position:
        look_up.check_begin(segment, None)
    look_up.check_end(SegmentFile(storage, segment), behind)


def _check_rising(segment: Segment, window: Window) -> None:
    """Raises CorruptBatchError where offsets fall: a look-up by the index would pass records over."""
    faults = window.batches.falling(segment.name_offset, segment.path)[1]
    if faults:
        faults[0].hint = RESTORE
        raise faults[0]


def _records(part: Part, window: Window, aborted: AbortedTransactions | None) -> Iterator[pa.RecordBatch]:
    """The records of a part that a window has."""
    selection = part.selection
    # A batch that only begins before the part, or ends behind it, is in the window whole: decoding leaves out its rest.
    #
    #   |batch|  batch  |batch|  batch  |batch|
    #              |start---------end|
    window = window.between(part.start_offset, part.end_offset)
    if not len(window.batches):
        return
    yield from decode_batches(
        window,
        topic=part.topic,
        partition=part.partition,
        start_offset=part.start_offset,
        end_offset=part.end_offset,
        columns=selection.columns,
        include_control=selection.include_control,
        exclude=None if aborted is None else aborted.mask(window.batches, window.offset_shift),
        view_values=selection.value_type == Selection.BINARY_VIEW,
    )


def _begin(storage: Storage, part: Part, start_offset: int) -> tuple[LookUp, int]:
    """(where the part's batches begin, the size of the first read)"""
    segment = part.segment
    look_up = part.look_up
    window_bytes = max(part.first_window_bytes, SegmentFile(storage, segment).first_read_bytes)
    if look_up.byte_position > segment.byte_position:  # known without the .index
        return look_up, window_bytes
    look_up = replace(look_up, byte_position=segment.byte_position)
    if start_offset > segment.base_offset or segment.file_base_offset > segment.name_offset:
        byte_position, found_bytes = SegmentFile(storage, segment).seek(start_offset)
        window_bytes = max(window_bytes, found_bytes)
        if byte_position > segment.byte_position:
            look_up = replace(look_up, byte_position=byte_position, offset=start_offset)
    if part.start_position > look_up.byte_position:  # the batches between belong to the part before
        begin = max(look_up.byte_position, SegmentFile(storage, segment).locate_position(part.start_position))
        look_up = replace(look_up, byte_position=begin, offset=None)
    return look_up, window_bytes


def pieces_of(
    storage: Storage,
    parts: Iterable[ScanPart],
    indexes: Indexes | None = None,
    *,
    first_window_bytes: int = WINDOW_BYTES,
) -> Iterator[ScanPart]:
    """The parts, cut into pieces of about PIECE_BYTES, in order. A part of a view stays whole. Each piece is a single
    read, but for the first: few `first_window_bytes` make its first records come soon.

    Reads the .index of each part that is larger than a piece, in an object store for the next parts at the same time.
    `indexes` in memory stand in for missing files. A large log has very many pieces: they are made one by one.
    """
    for piece in _cut_ahead(storage, parts, partial(_cut_up, storage, indexes or {})):
        yield replace(piece, first_window_bytes=first_window_bytes) if isinstance(piece, Part) else piece
        first_window_bytes = WINDOW_BYTES


def _cut_ahead(
    storage: Storage, parts: Iterable[ScanPart], cut_up: Callable[[ScanPart], Sequence[ScanPart]]
) -> Iterator[ScanPart]:
    if storage.is_local:
        for part in parts:
            yield from cut_up(part)
        return
    ahead: deque[Future[Sequence[ScanPart]]] = deque()
    with ThreadPoolExecutor(INDEXES_AHEAD, thread_name_prefix="index-ahead") as pool:
        for part in parts:
            ahead.append(pool.submit(cut_up, part))
            if len(ahead) > INDEXES_AHEAD:
                yield from ahead.popleft().result()
        while ahead:
            yield from ahead.popleft().result()


def _cut_up(storage: Storage, indexes: Indexes, part: ScanPart) -> Sequence[ScanPart]:
    if not isinstance(part, Part) or part.is_known:
        return [part]
    if part.size_bytes <= PIECE_BYTES or part.look_up.byte_position or part.segment.path in indexes:
        return cut(part, PIECE_BYTES if part.segment.path in indexes else None, indexes)
    segment = part.segment
    positions = range(part.start_position, part.end_position)
    pieces = SegmentFile(storage, segment).pieces_between(
        range(part.start_offset, part.end_offset), positions, PIECE_BYTES
    )
    begins_later = pieces[0][0] > max(part.start_position, segment.byte_position)
    ends_earlier = pieces[-1][1] < min(part.end_position, segment.end_position)
    last = len(pieces) - 1
    return [
        replace(
            part,
            start_position=start,
            end_position=end,
            look_up=LookUp(
                begin,
                part.start_offset if begins_later and number == 0 else None,
                part.end_offset if ends_earlier and number == last else None,
            ),
        )
        for number, (start, end, begin) in enumerate(pieces)
    ]
