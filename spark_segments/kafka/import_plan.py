"""The plan of an import: the segments to copy of each partition, and the rows here that they replace.

The plan is made before anything is copied. A directory whose records differ from those here is refused. Where Kafka's
cleaner ran since the last import, records here may hold values that no later record supersedes any more; `plan_import`
says how each such case goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from spark_segments.difference import History
from spark_segments.errors import LogDirError, SegmentsError
from spark_segments.execution import try_tasks
from spark_segments.format.sidecars.checkpoints import CLEANER_OFFSETS_FILE, REPLICATION_OFFSETS_FILE
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.kafka.directory import KafkaSnapshot
from spark_segments.kafka.erasures_here import ErasuresHere, check_appended
from spark_segments.kafka.partition import ZERO_TOPIC_ID
from spark_segments.log import CopiedEnd, Erasure, Segment, SegmentFile, Snapshot
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_segments.difference import Comparison

_HINT = "Import into another log directory, or delete the topic here first"


@dataclass(frozen=True, slots=True)
class SegmentCopy:
    """A segment to be copied: `row` as found in Kafka's directory, from `base_offset` on where that is above its base.

    `aborted`: the aborted transactions that a scan found, where the segment's .txnindex is missing or wrong.
    `replaces`: the rows here that the copy replaces. `log_copy`: the path here of a copy of the segment's .log.
    """

    topic: str
    topic_id: str
    row: Segment
    base_offset: int
    aborted: AbortedTransactions | None = None
    replaces: tuple[Segment, ...] = ()
    log_copy: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """How a partition here becomes equal to Kafka's.

    `replaces_all`: the copies replace all rows here, in a single commit. `adopts_cleaning`: the partition takes Kafka's
    cleaner checkpoint; else offsets that are dirty here stay dirty. `is_over`: nothing here is above the log start, and
    nothing that was here is copied again.
    """

    tasks: tuple[SegmentCopy, ...]
    replaces_all: bool
    adopts_cleaning: bool
    is_over: bool = False

    @property
    def needs_all(self) -> bool:
        """Whether the plan needs all segments of the partition, also the segments that are copied already."""
        return self.replaces_all or not self.adopts_cleaning


def check_end(source: Storage, theirs: KafkaSnapshot, number: int) -> None:
    """Raises LogDirError for a log with cleaned records that ends below the offset of Kafka's cleaner checkpoint.

    The cleaner removes a record for a newer record of its key below that offset. Where the segment of the newer record
    is missing, the log has neither. A broker leaves no such log, however it stops: it lowers the checkpoint where it
    truncates. A stale listing shows such a log, and so does a copy that is not whole.
    """
    row = theirs.partition(number)
    offset = theirs.cleaned.get(number, 0)
    rows = [segment for segment in theirs.live_of(number) if segment.next_offset > row.log_start_offset]
    if offset > row.log_end_offset and _has_gap(source, rows, row.log_start_offset):
        raise LogDirError(
            f"{theirs.topic}-{number} lacks segments: Kafka's cleaner has removed older values for theirs",
            path=source.uri,
            expected=f"a log end of at least {offset}, the partition's offset in {CLEANER_OFFSETS_FILE}",
            found=row.log_end_offset,
            hint="Import again when the directory is whole, or from an intact replica. recovery=kafka takes the log "
            "as it is",
        )


def compare_with_kafka(
    source: Storage,
    storage: Storage,
    current: Snapshot,
    kafka: KafkaSnapshot,
    scanned_from: Mapping[int, int],
    spark: SparkSession | None = None,
) -> dict[int, tuple[Callable[[Comparison], None], Comparison | SegmentsError]]:
    """Compares each partition that is here already with Kafka's, from the offset on that its scan began at: each
    partition is a task. Returns (a check, the comparison or why there is none) of each.

    The check raises LogDirError with the first differing offset where the partition here cannot have come from the
    directory. Raises LogDirError for a topic that cannot.
    """
    if kafka.topic_id not in (ZERO_TOPIC_ID, current.topic_id):
        raise LogDirError(
            f"Topic {current.topic} is not the topic of the Kafka directory",
            expected=f"topic id {current.topic_id}",
            found=kafka.topic_id,
            hint=_HINT,
        )
    numbers = [row.partition for row in kafka.partition_rows]
    numbers = [number for number in numbers if number < current.partitions.num_rows]  # others are new
    pairs = [
        (History.of(current, storage, number), _history_from(kafka, source, number, scanned_from.get(number, 0)))
        for number in numbers
    ]
    appends = Erasure.appends(current.states)
    copied_ends = CopiedEnd.of(current.states)
    checks = [
        partial(
            _check,
            *pair,
            ErasuresHere(appends=appends.get(number, ())),
            is_replicated=kafka.is_replicated,
            copied_end=copied_ends.get(number),
        )
        for number, pair in zip(numbers, pairs, strict=True)
    ]
    return dict(zip(numbers, zip(checks, try_tasks(_compared, pairs, spark), strict=True), strict=True))


def _history_from(kafka: KafkaSnapshot, source: Storage, number: int, offset: int) -> History:
    history = History.of(kafka, source, number)
    start = max(history.partition.log_start_offset, offset)
    return replace(history, partition=replace(history.partition, log_start_offset=start))


def _compared(pair: tuple[History, History]) -> Comparison:
    return pair[0].compare(pair[1])


def _check(
    ours: History,
    theirs: History,
    erasures: ErasuresHere,
    comparison: Comparison,
    *,
    is_replicated: bool,
    copied_end: int | None,
) -> None:
    erasures.check_appends(ours, theirs, comparison)
    name = f"{ours.topic}-{ours.partition.partition}"
    difference = comparison.first_difference
    if difference is not None:
        raise LogDirError(
            f"{name} holds other records than the Kafka directory from offset {difference} on",
            expected=f"the records of {_path_at(theirs, difference)}",
            found=f"others in {_path_at(ours, difference)}",
            hint=_HINT,
        )
    end = theirs.partition.log_end_offset
    if ours.partition.log_end_offset > end and is_replicated:
        raise LogDirError(
            f"{name} was imported beyond its high watermark: not all in-sync replicas have what is here from {end} on",
            expected=f"a log end of at most {end}, as {REPLICATION_OFFSETS_FILE} has it",
            found=ours.partition.log_end_offset,
            hint="A broker notes high watermarks every few seconds: wait, and import again. Where this one stays, "
            "another leader may replace the records: delete the topic and import it again, or leave out --replicated",
        )
    if ours.partition.log_end_offset > end:
        raise LogDirError(
            f"{name} has records that the Kafka directory lacks, from offset {end} on",
            expected=f"a log end of at most {end}",
            found=ours.partition.log_end_offset,
            hint=_HINT,
        )
    if copied_end is not None:
        check_appended(ours, theirs, copied_end)


def check_erased(source: Storage, storage: Storage, current: Snapshot, kafka: KafkaSnapshot, number: int) -> None:
    """Raises LogDirError where a plan that replaces all segments here would bring erased records back."""
    erasures = ErasuresHere(rewritten=Erasure.rewritten(current).get(number, ()))
    if erasures.rewritten:
        erasures.check_replacement(History.of(current, storage, number), History.of(kafka, source, number))


def _path_at(history: History, offset: int) -> str:
    paths = [row.path for row in history.segments if row.base_offset <= offset < row.next_offset]
    return history.storage.location(paths[0]) if paths else "a log that ends there"


def plan_import(
    source: Storage,
    current: Snapshot,
    kafka: KafkaSnapshot,
    number: int,
    comparison: Comparison,
    *,
    lacks_segments: bool = False,
) -> PartitionPlan:
    """The plan of a partition, in three cases:

    * Both sides have the same batches: new segments are added, and are as clean here as in Kafka.
    * Nothing here is above the log start, or Kafka's cleaner removed new records, perhaps the tombstone of a value that
      is here: all of Kafka's segments replace the segments here.
    * Otherwise all new records are added, and dirty offsets here stay dirty: a cleaning in Kafka did not clean the
      copies that were made before it.

    `lacks_segments`: there are gaps between Kafka's segments though its cleaner never ran. Then what is here and not
    there was lost there, and stays.
    """
    here = current.partition(number)
    theirs = kafka.partition(number)
    live = current.live_of(number)
    rows = kafka.live_of(number)
    # The same offsets on both sides, the log start wherever retention has got to:
    #
    #   Kafka      |log start========|========new========log end|
    #   here    |log start=====log end|
    #                                 ^ begin: what lies from here on is new
    #
    # Where Kafka's log start is above the log end here, `begin` is that log start: the offsets in between are a hole,
    # not records that the cleaner has removed.
    log_start = max(here.log_start_offset, theirs.log_start_offset)
    begin = max(here.log_end_offset, theirs.log_start_offset)
    is_over = bool(live) and here.log_end_offset <= log_start
    new_rows = [row for row in rows if row.next_offset > begin]
    may_be_cleaned = not comparison.identical and not lacks_segments
    if is_over or (may_be_cleaned and _has_gap(source, new_rows, begin)):
        above_start = [row for row in rows if row.next_offset > log_start]
        if not above_start and theirs.log_end_offset > here.log_end_offset:
            above_start = rows[-1:]  # it ends at the log end, also where nothing in it is above the log start
        # The segment that has Kafka's log start may begin below the log end here. What was here has all gone, some of
        # it by an erasure perhaps, and does not come again.
        #
        #   Kafka   |base ..erased key..|..|log start====|=====
        #   here    |===================|log end
        #                               ^ copied from here on
        first = here.log_end_offset if is_over else 0
        tasks = [_task(current, kafka, row, max(row.base_offset, first)) for row in above_start]
        return PartitionPlan(tuple(tasks), replaces_all=True, adopts_cleaning=True, is_over=is_over)
    tasks = _new(current, kafka, number, comparison.identical)
    return PartitionPlan(tuple(tasks), replaces_all=False, adopts_cleaning=comparison.identical)


def _new(current: Snapshot, kafka: KafkaSnapshot, number: int, alike: bool) -> list[SegmentCopy]:
    """Segments beyond the log end here; again the segment that was active at the last import, if it lost nothing.

    Where Kafka's segment ends below that of the last import, the segments behind it have the rest: those of another
    replica begin elsewhere, and so may those of a source that is no broker. Then nothing here is replaced.

        here        |==sealed==|==active==|log end
        grew        |==========|==========|=====|        the active segment is copied again, in the place of the row
        elsewhere   |==========|====|========|=====|     copied from the log end on, the row stays
    """
    log_end = current.partition(number).log_end_offset
    newest_end = max(log_end, kafka.partition(number).log_start_offset)
    live = current.live_of(number)
    if alike and not live:
        return _first(current, kafka, number, newest_end)
    tasks = []
    active = live[-1] if alike and live[-1].state == Segment.CHUNK else None
    for row in kafka.live_of(number):
        is_new = row.next_offset > newest_end
        if active is not None and row.base_offset == active.base_offset and row.next_offset >= active.next_offset:
            is_rolled = row.state != Segment.CHUNK  # its sidecars got their last entries
            if is_new or is_rolled:
                tasks.append(_task(current, kafka, row, row.base_offset, (active,)))
        elif is_new:
            # A segment over the log end here is copied from the log end on: its first records are here already, and
            # would else be in the log twice.
            tasks.append(_task(current, kafka, row, max(row.base_offset, log_end)))
    return tasks


def _first(current: Snapshot, kafka: KafkaSnapshot, number: int, newest_end: int) -> list[SegmentCopy]:
    """Whole segments for a partition without any: those with new records, and segments that are empty by now."""
    rows = kafka.live_of(number)
    new_rows = [row for row in rows if row.next_offset > newest_end or row.next_offset == row.base_offset]
    return [_task(current, kafka, row, row.base_offset) for row in new_rows]


def _task(
    current: Snapshot, kafka: KafkaSnapshot, row: Segment, start: int, replaces: tuple[Segment, ...] = ()
) -> SegmentCopy:
    return SegmentCopy(kafka.topic, current.topic_id, row, start, kafka.aborted.get(row.path), replaces)


def _has_gap(source: Storage, rows: Iterable[Segment], begin: int) -> bool:
    """Whether any offset from `begin` on has no record: only a cleaner makes such gaps."""
    for row in rows:
        if row.base_offset >= begin:
            records = row.records
        else:
            records = 0
            for window in SegmentFile(source, row).windows(SegmentFile(source, row).locate(begin), check_crc=False):
                records += int(window.between(begin, row.next_offset).batches.count.sum())
        if records < row.next_offset - max(row.base_offset, begin):
            return True
    return False
