"""The first pass of a round: the keys of the dirty head go into the map of latest offsets, a slice in each task.

On Spark the maps of slices go from task to task as files.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from spark_segments.format.cleaner.layout import BYTES_PER_SLOT
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.format.cleaner.transactions import CleanedTransactions
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.file import SegmentFile
from spark_segments.maintenance.compaction.group_rewrite import named
from spark_segments.maintenance.compaction.noted_batches import NotedBatches
from spark_segments.maintenance.compaction.round import RoundPlan
from spark_segments.storage import Storage

SUFFIX = ".offsetmap"
PIECE_BYTES = (8 << 20) // BYTES_PER_SLOT * BYTES_PER_SLOT


@dataclass(frozen=True, slots=True)
class MapFile:
    """The file with the slots of a map, and the map's other attributes: see `OffsetMap`."""

    path: str
    start_offset: int
    end_offset: int
    entries: int
    full: bool
    seed: int

    @classmethod
    def written(cls, storage: Storage, topic: str, partition: int, offset_map: OffsetMap) -> MapFile:
        """Writes the slots of a map into a new file."""
        path = f"{topic}-{partition}/{uuid.uuid4().hex}{SUFFIX}"
        with storage.stream(path, unique=True) as stream:
            for used in offset_map.used_slots(PIECE_BYTES):
                stream.write(used)
        return cls(
            path,
            offset_map.start_offset,
            offset_map.end_offset,
            offset_map.entries,
            offset_map.full,
            offset_map.seed,
        )

    def pieces(self, storage: Storage) -> Iterator[np.ndarray]:
        """The slots, as `OffsetMap.used_slots` gave them, a piece of the file at a time."""
        file_bytes = self.entries * BYTES_PER_SLOT
        for byte_position in range(0, file_bytes, PIECE_BYTES):
            data = storage.read(self.path, byte_position, min(PIECE_BYTES, file_bytes - byte_position))
            yield np.frombuffer(data, np.uint64).copy()  # the kernel takes writable arrays

    def merge_into(self, offset_map: OffsetMap, storage: Storage) -> bool:
        """As `OffsetMap.merge` of the map in the file."""
        return offset_map.merge_slots(lambda: self.pieces(storage), self.entries, self.end_offset)

    def read(self, storage: Storage, memory_bytes: int, load_factor: float) -> OffsetMap:
        """The map that was written, with the same bound on its memory."""
        offset_map = OffsetMap(memory_bytes, start_offset=self.start_offset, load_factor=load_factor, seed=self.seed)
        fits = self.merge_into(offset_map, storage)
        assert fits, "a map fits into a map of the same size"
        return offset_map


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The batches of a segment that begin in [start_position, end_position) of its .log."""

    segment: Segment
    start_position: int
    end_position: int


def slices(segments: Sequence[Segment], start_position: int, count: int) -> list[list[ByteRange]]:
    """The bytes of neighbouring segments in at most `count` slices of the same size.

    `start_position` is the first byte of the first segment that counts.
    """
    total = sum(segment.log_bytes for segment in segments) - start_position
    edges = [total * number // count for number in range(count + 1)]
    slices_of: list[list[ByteRange]] = [[] for _ in range(count)]
    # All bytes that count as one line, from 0 at `start_position`; a segment can lie in several slices, and the other
    # way round. Slices meet at an edge, and a batch goes to the slice in which it begins.
    #
    #   segments    |....=======|===============|=====|
    #   edges            0         1         2        3      of three slices
    begin = -start_position
    for segment in segments:
        end = begin + segment.log_bytes
        for number, ranges in enumerate(slices_of):
            low = max(begin, edges[number])
            high = min(end, edges[number + 1])
            if low < high:
                ranges.append(ByteRange(segment, low - begin, high - begin))
        begin = end
    return [ranges for ranges in slices_of if ranges]


@dataclass(frozen=True, slots=True)
class SliceMap:
    """The map of a slice of the dirty head, or of all of it: how many records it took, the notes of its batches for the
    second pass, and whether it has transactions.
    """

    map: OffsetMap | MapFile
    indexed: int
    noted: NotedBatches
    has_transactions: bool


@dataclass(frozen=True, slots=True)
class FirstPass:
    """Task function: puts the records of a slice into a map, until it is full.

    `aborted`: the aborted transactions of the dirty head. `slots` tasks at a time share the memory for notes. The map
    goes `to_file` where the task is not in this process.
    """

    storage: Storage
    work: RoundPlan
    aborted: AbortedTransactions
    map_bytes: int
    seed: int
    slots: int
    to_file: bool

    def __call__(self, task: tuple[Sequence[ByteRange], OffsetMap | None]) -> SliceMap:
        """`task`: the ranges of a slice, and the map that takes it, if there is one."""
        ranges, offset_map = task
        work = self.work
        settings = work.settings
        if offset_map is None:
            # The first slice may begin inside a segment: records below the first dirty offset are clean already, and
            # would only fill the map.
            start_offset = max(work.first_dirty_offset, ranges[0].segment.base_offset)
            offset_map = OffsetMap(
                self.map_bytes, start_offset=start_offset, load_factor=settings.load_factor, seed=self.seed
            )
        # Which data were aborted follows from the index alone, wherever a slice begins.
        transactions = CleanedTransactions()
        transactions.add_aborted(self.aborted)
        noted = NotedBatches(work.notes_bytes // self.slots)
        indexed = 0
        for part in ranges:
            indexed += self._put(part, offset_map, transactions, noted)
            if offset_map.full:
                break
            # The last offsets of a segment may have no record any more. The map must end behind them all the same: the
            # next round begins where this map ends, and would find no record there, and no end.
            if part.end_position == part.segment.log_bytes:
                offset_map.advance(min(part.segment.next_offset, work.first_uncleanable_offset))
        result: OffsetMap | MapFile = offset_map
        if self.to_file:
            result = MapFile.written(self.storage, settings.topic, work.partition.partition, offset_map)
        return SliceMap(result, indexed, noted, transactions.has_met_any)

    def _put(
        self, part: ByteRange, offset_map: OffsetMap, transactions: CleanedTransactions, noted: NotedBatches
    ) -> int:
        """Puts the records of a part of a segment, and returns how many were read.

        The CRCs of all batches are checked, here and in the second pass: a store can give wrong bytes once, and the
        keys of the one reading or the records of the other would then be wrong for good.
        """
        segment = part.segment
        file = SegmentFile(self.storage, segment)
        end = self.work.first_uncleanable_offset
        # A segment is noted if all of it goes into the map.
        is_noted = segment.base_offset >= self.work.first_dirty_offset and segment.next_offset <= end
        begin = file.locate_position(part.start_position)
        producers = self.work.active_producers
        indexed = 0
        for window in file.windows(begin, part.end_position, wanted_position=part.start_position):
            window = named(window, segment)
            undone, _ = transactions.read(window)
            exclude = undone & ~window.batches.is_control
            plain = np.zeros(len(window.batches), np.bool_)
            fits = offset_map.put_batches(window, end_offset=end, exclude=exclude, plain=plain)
            read = window.overlaps(offset_map.start_offset, offset_map.end_offset)
            indexed += int(window.batches.count[read].sum())
            if not fits:
                break
            if is_noted and len(window.batches) and window.is_as_written:
                noted.add(segment, window, plain, producers, end)
        return indexed


def merged(
    storage: Storage, offset_map: OffsetMap, parts: Sequence[SliceMap], notes_bytes: int
) -> tuple[SliceMap, bool]:
    """(the maps of slices in one, in their order, as far as they go without a gap; whether these are all)

    `offset_map` takes them in, and may be that of the first.
    """
    indexed = 0
    noted = NotedBatches(notes_bytes)
    is_all = True
    for part in parts:
        if part.map is not offset_map:
            offset_map.advance(part.map.start_offset)  # slices adjoin: no record lies in between
            is_all = (
                offset_map.merge(part.map)
                if isinstance(part.map, OffsetMap)
                else part.map.merge_into(offset_map, storage)
            )
            if not is_all:
                break
        indexed += part.indexed
        noted.take(part.noted)
        if part.map.full:  # the records that it had no room for come before the next slice
            is_all = False
            break
    return SliceMap(offset_map, indexed, noted, any(part.has_transactions for part in parts)), is_all
