"""The log of a topic in the cluster: whether it is the one that was captured.

A capture goes on at the log end here. That is right only where the cluster's log has, up to there, what is here: the
topic is the same one, no leader has lost records that were captured, and nobody else has written here. Else records of
the cluster lie at offsets that are taken here, and no fetch would ever ask for them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from spark_segments.config import SegmentLimits
from spark_segments.errors import SegmentsError
from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.layout import MAGIC
from spark_segments.format.sidecars.producer_state import ProducerEntry
from spark_segments.format.window import Window
from spark_segments.kafka_protocol.capturing.captured_partition import CapturedPartition
from spark_segments.kafka_protocol.capturing.open_transactions import missing_ends
from spark_segments.kafka_protocol.capturing.source import (
    EARLIEST,
    Fetched,
    SourceCluster,
    SourceError,
    SourceTopic,
    patient,
)
from spark_segments.kafka_protocol.own_settings import ERASED_OFFSETS
from spark_segments.log import CapturedBatch, Segment, SegmentFile
from spark_segments.storage import Storage

WAYS_OUT = (
    "With --on-divergence branch what is here stays, and a new copy goes on in another topic here; with keep what is "
    "here stays, and no copy is made. Or delete this topic"
)
_HEADER = ("base_offset", "last_offset", "producer_id", "producer_epoch", "base_sequence", "is_control")
_RECORD = ("offset", "timestamp", "key", "value", "headers")


class DivergedError(SegmentsError):
    """The cluster's log is not the one that was captured."""


def check_same(name: str, topic_id: str | None, cluster_id: str | None, topic: SourceTopic) -> None:
    """Raises DivergedError for a topic of another id. A cluster without topic ids is known by its cluster id."""
    if topic.topic_id is not None and topic_id != topic.topic_id:
        raise DivergedError(
            f"Topic {name} is not the topic of this name here: it was deleted and made again",
            expected=f"topic id {topic_id}",
            found=topic.topic_id,
            hint=WAYS_OUT,
        )
    if topic.topic_id is None and None not in (cluster_id, topic.cluster_id) and cluster_id != topic.cluster_id:
        raise DivergedError(
            f"Topic {name} was captured from another cluster",
            expected=f"cluster id {cluster_id}",
            found=topic.cluster_id,
            hint=WAYS_OUT,
        )


@dataclass(frozen=True, slots=True)
class CopiedTopic:
    """The `topic` of a cluster that is copied into the topic `name` here."""

    topic: SourceTopic
    name: str
    storage: Storage
    limits: SegmentLimits
    patience_seconds: float


class ClusterLog:
    """A topic's log in the cluster, by the topic's leaders as they were seen last.

    What shows that the log of a partition is another one is the partition's `problem` from then on.
    """

    def __init__(self, source: SourceCluster, copied: CopiedTopic) -> None:
        self._source = source
        self._topic = copied.topic
        self._name = copied.name
        self._storage = copied.storage
        self._patience_seconds = copied.patience_seconds

    def ask(self, places: Mapping[int, tuple[int, int]], most_bytes: int) -> Future[dict[int, Fetched]]:
        """Asks for batches of partitions, as `SourceCluster.ask`."""
        return self._source.ask(self._topic, places, most_bytes)

    def start(self, number: int) -> int:
        """The log start of a partition."""
        return self._source.offset(self._topic, number, EARLIEST)

    def refresh(self, parts: Mapping[int, CapturedPartition]) -> None:
        """Looks who leads the partitions now. What is not there for now is tried again."""
        try:
            latest = self._source.topics().get(self._topic.name)
        except SourceError as error:
            if not error.is_passing:
                raise
            return
        if latest is not None and self._is_same(latest, parts.values()) and parts.keys() <= latest.leaders.keys():
            self._topic = latest

    def missing_ends(self, part: CapturedPartition, parts: Mapping[int, CapturedPartition]) -> dict[int, ProducerEntry]:
        """The abort markers that are to be written of a partition, one of `parts`."""

        def ask() -> dict[int, ProducerEntry]:
            self.refresh(parts)
            opened = part.producers.open_transactions()
            return missing_ends(self._source, self._topic, part.number, opened, part.next_offset)

        return patient(ask, self._patience_seconds)

    def _is_same(self, topic: SourceTopic, parts: Iterable[CapturedPartition]) -> bool:
        try:
            check_same(self._name, self._topic.topic_id, self._topic.cluster_id, topic)
        except DivergedError as error:
            for part in parts:
                part.problem = error
            return False
        return True

    # Whether somebody has written here

    def meets_appends(self, part: CapturedPartition) -> bool:
        """Whether an erasure here gave offsets to tombstones that the cluster's log gives to other records. Else the
        fetch from the log end here would pass over these records, and nobody would miss them.
        """
        log_start = self.start(part.number)
        part.appends = [(start, end) for start, end in part.appends if end > log_start]
        if not part.appends:
            return False
        start = part.appends[0][0]
        part.problem = DivergedError(
            f"{self._name}-{part.number} has tombstones that an erasure appended here, from offset {start} on",
            expected="a log that only captures append to",
            found=f"a log end of {part.row.log_end_offset} here",
            hint="An erasure appends no tombstone where the capture has brought one: write it to Kafka first. "
            + WAYS_OUT,
        )
        return True

    def is_appended_to(self, part: CapturedPartition, copied_end: int) -> bool:
        """Whether a writer appended here before a capture brought a batch, to offsets that the cluster gives to other
        records.
        """
        end = part.row.log_end_offset
        is_beyond = end > copied_end and end > self.start(part.number)
        part.copied_end = None  # asked once, by an answer: this pass moves the log end on
        if is_beyond:
            part.problem = self._appended_here(part, copied_end, "copied")
        return is_beyond

    def _appended_here(self, part: CapturedPartition, end: int, how: str) -> DivergedError:
        return DivergedError(
            f"{self._name}-{part.number} has records that were appended here, from offset {end} on",
            expected="a log that only captures append to",
            found=f"a log end of {part.row.log_end_offset} here, and {how} batches up to {end}",
            hint=WAYS_OUT,
        )

    # Whether a leader there has lost what is here

    def diverged(self, part: CapturedPartition, offset: int, epoch: int, end: int) -> DivergedError:
        """The error of a log there whose `epoch` ends at offset `end`, before an `offset` that is here."""
        return DivergedError(
            f"{self._name}-{part.number} parts from the cluster's log: a leader there lacks records that were captured",
            expected=f"offset {offset} after epoch {part.epoch_before(offset)}",
            found=f"epoch {epoch} ends at offset {end}",
            hint=WAYS_OUT,
        )

    def ends_before(self, part: CapturedPartition) -> bool:
        """Whether the log there ends before the next offset, in the epoch that it has here. A new leader may refuse an
        offset for a while: only its epochs show that records are lost.
        """
        if part.last_epoch < 0:
            return False
        epoch, epoch_end = self._source.end_of_epoch(self._topic, part.number, part.last_epoch)
        if epoch >= part.last_epoch and epoch_end >= part.next_offset:
            return False
        part.problem = self.diverged(part, part.next_offset, epoch, epoch_end)
        return True

    def check_copied(self, parts: Collection[CapturedPartition], *, with_epochs: bool) -> None:
        """Asks about the topic's id, and `with_epochs` about the epochs of what was copied, where the broker did not
        compare them as it read. Raises SourceError.
        """
        topic = self._source.topics().get(self._topic.name)
        if topic is None:
            raise SourceError(f"The cluster shows no topic {self._topic.name} any more")
        if self._is_same(topic, parts) and with_epochs:
            for part in parts:
                if part.chunks:
                    self._check_epochs(part)

    def _check_epochs(self, part: CapturedPartition) -> None:
        """Compares the epochs at both ends of what was copied: a leader that lost records has an earlier one there."""
        for offset in (part.row.log_end_offset, part.next_offset):
            epoch = part.epoch_before(offset)
            if epoch < 0:
                continue
            last, end = self._source.end_of_epoch(self._topic, part.number, epoch)
            if last < epoch or end < offset:
                part.problem = self.diverged(part, offset, last, end)
                return

    # Whether the last batch that is here is there, too

    def prove_batch(self, part: CapturedPartition, fetched: Fetched) -> bool:
        """Compares the batch that a pass begins with. False where the answer has nothing else, or the logs part."""
        captured = part.last_batch
        assert captured is not None
        if not fetched.records:
            # A new leader's log may end before it for a while. It is gone for good only where the log begins behind it,
            # or where its high watermark, too, lies at or before it: then the epochs of the next fetch tell.
            is_before = fetched.high_watermark <= captured.base_offset
            part.is_proved = is_before or fetched.log_start_offset > captured.base_offset
            return False
        scan = scan_batches(fetched.records, path=f"{self._name}-{part.number}")
        if not len(scan.batches):
            raise scan.error or SourceError("The cluster gives no batches")
        first_batch = CapturedBatch(int(scan.batches.base_offset[0]), int(scan.batches.crc[0]))
        part.is_proved = (
            first_batch == captured or self._is_cleaned(part) or self._is_erased(part, scan.batches, fetched)
        )
        if not part.is_proved:
            part.problem = DivergedError(
                f"{self._name}-{part.number} is not the cluster's log: the last batch that is here is another there",
                expected=f"CRC-32C {captured.crc:08x} at offset {captured.base_offset}",
                found=f"{first_batch.crc:08x} at offset {first_batch.base_offset}",
                hint=WAYS_OUT,
            )
        elif first_batch.base_offset == captured.base_offset:
            self._check_end(part, int(scan.batches.last_offset[0]) + 1)
        return part.is_proved and part.problem is None

    def _check_end(self, part: CapturedPartition, captured_end: int) -> None:
        """Whether the log here ends where the last captured batch does, holes aside.

            here     |captured       |appended here|
            cluster  |captured       |a      |b      |c
                                     ^captured_end ^log end: the next fetch would pass over a

        Records that a writer appended here have offsets that the cluster gives to other records.
        """
        end = captured_end
        for start, stop in sorted(part.known_holes):
            if start <= end:
                end = max(end, stop)
        if end < part.row.log_end_offset:
            part.problem = self._appended_here(part, end, "captured")

    def _is_cleaned(self, part: CapturedPartition) -> bool:
        """Whether a cleaner may have rewritten the partition's batches, now or under its settings of before."""
        if part.markers_ms is not None:
            return True
        settings = self._source.settings(self._topic, with_defaults=True)
        return settings is None or "compact" in settings.get("cleanup.policy", "compact")

    def _is_erased(self, part: CapturedPartition, batches: BatchTable, fetched: Fetched) -> bool:
        """Whether an erasure at a served log directory rewrote the batch, and what it left is what was captured.

        A broker never rewrites a batch of a topic that is not compacted. `segments serve` can serve one that `segments
        erase` has rewritten, and says of which offsets that is so.
        """
        assert part.last_batch is not None
        offset = part.last_batch.base_offset
        settings = self._source.settings(self._topic, with_defaults=True, names=[ERASED_OFFSETS]) or {}
        ranges = json.loads(settings.get(ERASED_OFFSETS) or "{}").get(str(part.number), ())
        if not any(start <= offset < end for start, end in ranges):
            return False
        here = None if part.last_segment is None else _batch_here(self._storage, part.last_segment, offset)
        if here is None:  # retention or an erasure's vacuum took it here: nothing is left that could differ
            return int(batches.base_offset[0]) == offset
        source_batch = Window(fetched.records, batches.take(slice(0, 1)), path=f"{self._name}-{part.number}")
        return _agree(here, source_batch, self._name, part.number)


def _batch_here(storage: Storage, segment: Segment, base_offset: int) -> Window | None:
    """The batch at this offset of the log, with its offset in the file; None where the segment has none there."""
    for window in SegmentFile(storage, segment).windows():
        rows = window.batches.base_offset + window.offset_shift == base_offset
        if rows.any():
            return window.take(rows)
    return None


def _agree(here: Window, source: Window, topic: str, partition: int) -> bool:
    """Whether two windows of one batch each are one batch, but for records that one of them lacks: both have the same
    header, and the same record at each offset that both have. An erasure may have been made there, here, or in both.
    """
    if _header(here) != _header(source):
        return False
    ours = _records(here, topic, partition)
    theirs = _records(source, topic, partition)
    return all(ours[offset] == theirs[offset] for offset in ours.keys() & theirs.keys())


def _header(window: Window) -> list[int] | None:
    batches = window.batches
    if int(batches.magic[0]) != MAGIC:
        return None
    values = [int(getattr(batches, name)[0]) for name in _HEADER]
    return [
        value + window.offset_shift if name.endswith("_offset") else value
        for name, value in zip(_HEADER, values, strict=True)
    ]


def _records(window: Window, topic: str, partition: int) -> dict[int, dict[str, Any]]:
    decoded = decode_batches(window, topic=topic, partition=partition, columns=_RECORD)
    return {row["offset"]: row for batch in decoded for row in batch.to_pylist()}
