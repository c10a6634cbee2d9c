"""Appends to a topic: of a caller's rows in one go, or in the steps that a writer's tasks and its driver take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_segments.config import topic_config
from spark_segments.errors import SegmentsError, StorageError, UnknownOutcomeError
from spark_segments.extensions import observed_job
from spark_segments.log.directory import LogDirectory
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.transaction import AnyTransaction, Transaction, checked

if TYPE_CHECKING:  # these need kernels, which a planner's process does not
    from spark_segments.log.appending.appender import Chunks, ProducerOptions, Target
    from spark_segments.log.appending.caller_rows import Rows
    from spark_segments.log.appending.offset_assignment import RowOfAppend
    from spark_segments.log.typed import Encoders


def append(
    log: LogDirectory,
    topic: str,
    rows: Rows,
    txn: Transaction | None = None,
    *,
    options: ProducerOptions | None = None,
    formats: Mapping[str, str] | None = None,
    topic_row: RowOfAppend | None = None,
) -> dict[int, tuple[int, int]]:
    """Appends rows in one commit. Takes, returns and raises what `Topic.append` says. `topic_row`: as in
    `commit_append`.
    """
    from spark_segments.log.appending.appender import Appender, Chunks
    from spark_segments.log.appending.offset_assignment import commit_append

    log.check_writable()
    tries_again = not hasattr(rows, "__next__")  # else the rows can be read once only
    with log.hinting(topic) as manifest:
        state = manifest.state_for_commit(is_latest=not tries_again)
        while True:
            try:
                state.snapshot.check_role(Operation.APPEND)
                target = _target(log, state.snapshot)
                with Appender(log.storage, {topic: target}.__getitem__, topic=topic, options=options) as appender:
                    for batch in _stored_batches(log, topic, rows, formats or {}):
                        appender.write(batch)
                    # No rows are an append, too: their transaction is recorded, and a repeat with rows adds nothing.
                    written = appender.close() or [Chunks(topic, target.topic_id)]
                chunks = [segment for task in written for segment in task.segments]
                return commit_append(
                    manifest, chunks, txn, written=written, defaults=log.defaults, state=state, topic_row=topic_row
                )
            except (StorageError, UnknownOutcomeError):
                raise  # not for the state's age: and after an unknown outcome the rows may be in the log
            except SegmentsError:
                # A trusted state may be some seconds old: the topic can have other settings, or be another one, by now.
                # So the rows are written once more for the latest state, where there is a later one.
                latest = manifest.newer_state(state) if tries_again else None
                if latest is None:
                    raise
                state = latest
                tries_again = False


def _stored_batches(log: LogDirectory, topic: str, rows: Rows, formats: Mapping[str, str]) -> Iterable[pa.RecordBatch]:
    """A caller's rows as record batches, with keys and values as bytes."""
    from spark_segments.log.appending.caller_rows import record_batches

    batches = record_batches(rows, formats)
    return _encoded(log, topic, batches, formats) if formats else batches


def _encoded(
    log: LogDirectory, topic: str, batches: Iterable[pa.RecordBatch], formats: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """The rows with their keys and values as bytes. The first batch shows the types of all."""
    encoders: Encoders | None = None
    for batch in batches:
        if encoders is None:
            types = {name: batch.schema.field(name).type for name in ("key", "value") if name in batch.schema.names}
            encoders = log.values.encoders(topic, formats, types)
        yield encoders.encode(batch)


def append_target(log: LogDirectory, topic: str, txn: AnyTransaction | None = None) -> Target:
    """A topic as a writer's tasks need it; with `txn`, whether the topic holds that transaction already.

    Raises UnknownTopicError; TransactionOrderError where the topic refuses `txn`; NotLeaderError where it takes no
    appends.
    """
    log.check_writable()
    sent = None if txn is None else checked(txn)
    with log.hinting(topic) as manifest:
        state = manifest.state()
        state.snapshot.check_role(Operation.APPEND)
        return _target(log, state.snapshot, repeated=sent is not None and manifest.log.holds(state, sent))


def _target(log: LogDirectory, snapshot: Snapshot, *, repeated: bool = False) -> Target:
    from spark_segments.log.appending.appender import Target

    config = topic_config(snapshot.config, log.defaults)
    return Target(snapshot.topic, snapshot.topic_id, snapshot.partitions.num_rows, config, repeated=repeated)


@observed_job("append")
def commit_chunks(
    log: LogDirectory, topic: str, chunks: Sequence[Chunks], txn: AnyTransaction | None = None
) -> dict[int, tuple[int, int]]:
    """Gives chunks of a topic their offsets, in the order given; chunks without records record `txn` alone.

    Raises where the topic is not the one that was written to, or where it is compacted by now and a row has no key;
    CommitConflictError for chunks that were committed before and have left the log since.
    """
    from spark_segments.log.appending.offset_assignment import commit_append

    if not chunks:
        return {}
    with log.hinting(topic) as manifest:
        segments = [segment for task in chunks for segment in task.segments]
        return commit_append(manifest, segments, txn, written=chunks, defaults=log.defaults, replayed=True)
