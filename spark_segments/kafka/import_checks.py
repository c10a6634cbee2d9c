"""What an import refuses before it copies anything: names, offsets and damage that no topic here may have."""

from __future__ import annotations

import numpy as np

from spark_segments.config import MOST_PARTITIONS
from spark_segments.errors import LogDirError
from spark_segments.format.batches import scan_batches
from spark_segments.format.layout import BATCH_LENGTH_POSITION, BATCH_OVERHEAD, LOG_OVERHEAD, MAGIC_POSITION
from spark_segments.format.sidecars.fields import MAX_RELATIVE_OFFSET
from spark_segments.kafka.directory import KafkaDirectory
from spark_segments.kafka.recovered_log import CUT_SHORT, Cut
from spark_segments.log import Segment, SegmentFile
from spark_segments.storage import Storage

LONGEST_TAIL_BYTES = 256 << 20


def check_names(source: KafkaDirectory, topic: str) -> None:
    """Raises InvalidOptionError for a name that no topic can have.

    Raises LogDirError for a partition number that no cluster has, since all partitions below it would be made, and for
    a symbolic link that leads out of the directory: it would bring any file of this machine into the topic.
    """
    storage = source.storage
    sources = source.sources(topic)
    largest = max((partition.partition for partition in sources), default=0)
    if largest >= MOST_PARTITIONS:
        raise LogDirError(
            f"Topic {topic} has a partition of a number that is too large",
            path=storage.uri,
            expected=f"below {MOST_PARTITIONS}",
            found=largest,
        )
    for partition in sources:
        for path in [partition.path, *(info.path for info in storage.list(partition.path))]:
            if storage.leads_out(path):
                raise LogDirError(
                    "A directory to import holds a link that leads out of it",
                    path=storage.location(path),
                    hint="Where the link is yours, import the directory that it leads to",
                )


def check_offsets(storage: Storage, row: Segment) -> None:
    """Raises LogDirError for a segment with an offset that no entry of its indexes can hold.

    Cleaners before Kafka 1.1.1 could write such a segment. Only a segment whose next segment begins that far away is
    opened.
    """
    largest = row.name_offset + MAX_RELATIVE_OFFSET
    if row.next_offset - 1 <= largest:
        return
    for window in SegmentFile(storage, row).windows(check_crc=False):
        beyond = np.flatnonzero(window.batches.last_offset > largest)
        if len(beyond):
            raise LogDirError(
                "A segment holds an offset that its indexes cannot hold",
                path=storage.location(row.path),
                byte_position=int(window.batches.byte_position[beyond[0]]),
                expected=f"at most {MAX_RELATIVE_OFFSET} above its base offset {row.name_offset}",
                found=f"{window.batches.last_offset[beyond[0]]}",
                hint="Start a Kafka broker of version 1.1.1 or later on the directory once: it splits the segment",
            )


def check_cut(source: Storage, cut: Cut) -> None:
    """Accepts zeros and a torn batch at the end of the last segment. Raises LogDirError for every other cut."""
    if not cut.dropped and cut.bytes <= LONGEST_TAIL_BYTES:
        tail = np.frombuffer(source.read(cut.path, cut.byte_position, cut.bytes), np.uint8)
        if not tail.any() or (cut.reason == CUT_SHORT and not _holds_batch(tail)):
            return
    raise LogDirError(
        "Damage would cut the log: " + str(cut),
        hint="Import from an intact replica, or accept the cut, as a broker does, with recovery=kafka",
    )


def _holds_batch(tail: np.ndarray) -> bool:
    """Whether a whole record batch lies anywhere behind a bad batch: then more than a torn end would be lost."""
    magic = np.flatnonzero(tail[MAGIC_POSITION:] <= 2)
    starts = magic[magic + BATCH_OVERHEAD <= len(tail)]
    lengths = np.zeros(len(starts), np.int64)
    for byte in range(4):
        lengths = lengths << 8 | tail[starts + BATCH_LENGTH_POSITION + byte]
    fits = (lengths >= LOG_OVERHEAD) & (starts + LOG_OVERHEAD + lengths <= len(tail))
    for start, length in zip(starts[fits].tolist(), lengths[fits].tolist(), strict=True):
        if len(scan_batches(tail[start : start + LOG_OVERHEAD + length]).batches):
            return True
    return False
