"""A topic of one partition as a broker has it at some moment, batch by batch: what its cleaner took is not there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from spark_segments import LogDir
from spark_segments.kafka_protocol.serving.views import Views
from verification.kafka_protocol.played import playing
from verification.specification.specification_writer import START_MS, TOPIC_ID, Batch, Record, marker

TOPIC = "ledger"
ABORT, COMMIT = 0, 1


def data(base_offset: int, *values: str, producer: int = -1, sequence: int = 0, key: str | None = None) -> Batch:
    """A batch of records, of a transaction where it has a producer. Each record has a key of its own, if not `key`."""
    records = [
        Record(number, value.encode(), (key or f"{value}!").encode(), START_MS + base_offset + number)
        for number, value in enumerate(values)
    ]
    if producer < 0:
        return Batch(records, base_offset, leader_epoch=0)
    return Batch(records, base_offset, attributes=0x10, producer=(producer, 0, sequence), leader_epoch=0)


def emptied(batch: Batch) -> Batch:
    """What the cleaner leaves of the last batch of a producer."""
    return Batch(
        [], batch.base_offset, attributes=batch.attributes, producer=batch.producer,
        last_delta=batch.last_offset - batch.base_offset, leader_epoch=batch.leader_epoch,
    )  # fmt: skip


class KnownCluster(Views):
    """A broker that says the same cluster id whatever its directory."""

    cluster_id = "known-id"


@contextmanager
def cluster(
    path: Path,
    batches: Sequence[Batch],
    topic_id: str | None = TOPIC_ID,
    views: type[Views] = KnownCluster,
    end_offset: int = 0,
) -> Iterator[str]:
    """The address of a broker whose topic has these batches, or none and this log end. `views`: Views has another
    cluster id for each path.
    """
    directory = path / f"{TOPIC}-0"
    directory.mkdir(parents=True)
    first = batches[0].base_offset if batches else end_offset
    (directory / f"{first:020d}.log").write_bytes(b"".join(batch.data for batch in batches))
    if topic_id is not None:
        (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    with playing(views(LogDir.open(str(path)))) as address:
        yield address


__all__ = ["ABORT", "COMMIT", "TOPIC", "KnownCluster", "cluster", "data", "emptied", "marker"]
