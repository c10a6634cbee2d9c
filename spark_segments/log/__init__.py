"""A log directory without Spark: topics, their manifests, segments, reading, appending, groups.

This is the border of the core: the names by which add-ons, the face and the commands know a log directory, also for
types. It has three parts.

**Reads.** `LogDirectory.snapshot` gives a topic at a version. A `Scan` of a snapshot decodes records; its parts can be
pickled and are read wherever the files can be reached. `PartitionLog` gives batches as they lie.

**Writes.** Files are written first: `SegmentWriter` and `copy_batches` give rows of segments. Then a plan, a function
from the newest snapshot to a `Change`, becomes one commit (`Manifest.commit`), or none. `append` does both for rows of
a caller, `Group.update` is the same for positions of readers.

**Facts.** Frozen values without files or clocks: rows of the manifest, positions, epochs, holes, erasures, roles.

The imports are the only list of these names. One is imported when it is used, so that a command that lists topics waits
for no kernel. A test (tests/test_border.py) counts the names, and the members of them that are used outside: a new one
is a decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_segments.lazy_names import imported_name

# Reads: a log directory, a topic at a version, and what is read of it.
if TYPE_CHECKING:
    from spark_segments.log.description import describe as describe
    from spark_segments.log.directory import LogDirectory as LogDirectory
    from spark_segments.log.manifest import row_tables as row_tables
    from spark_segments.log.manifest.manifest import Manifest as Manifest
    from spark_segments.log.manifest.state.snapshot import Snapshot as Snapshot
    from spark_segments.log.manifest.state.topic_log import TableState as TableState
    from spark_segments.log.reading.scan import Scan as Scan
    from spark_segments.log.reading.scan_plan import ScanPart as ScanPart
    from spark_segments.log.reading.scan_plan import Selection as Selection
    from spark_segments.log.reading.times import offsets_for_times as offsets_for_times
    from spark_segments.log.reading.verbatim import FetchedBatches as FetchedBatches
    from spark_segments.log.reading.verbatim import PartitionLog as PartitionLog
    from spark_segments.log.reading.verbatim import Place as Place
    from spark_segments.log.segment.examination import Examination as Examination
    from spark_segments.log.segment.file import SegmentFile as SegmentFile
    from spark_segments.log.typed import RecordField as RecordField

# Writes: chunks of batches, and plans that become one commit.
if TYPE_CHECKING:
    from spark_segments.log.appending.append import append as append
    from spark_segments.log.appending.appender import ProducerOptions as ProducerOptions
    from spark_segments.log.appending.caller_rows import Rows as Rows
    from spark_segments.log.findings import Findings as Findings
    from spark_segments.log.groups.group import Group as Group
    from spark_segments.log.manifest.commit.change import Change as Change
    from spark_segments.log.manifest.operation import Operation as Operation
    from spark_segments.log.manifest.transaction import Transaction as Transaction
    from spark_segments.log.report import Report as Report
    from spark_segments.log.segment.copying import copy_batches as copy_batches
    from spark_segments.log.segment.writer import SegmentWriter as SegmentWriter

# Facts: values only.
if TYPE_CHECKING:
    from spark_segments.log.eras import Eras as Eras
    from spark_segments.log.groups.group import GroupLag as GroupLag
    from spark_segments.log.groups.group import Positions as Positions
    from spark_segments.log.key_offsets import KeyCoverage as KeyCoverage
    from spark_segments.log.key_offsets import KeyRanges as KeyRanges
    from spark_segments.log.manifest.rows import Partition as Partition
    from spark_segments.log.manifest.rows import Segment as Segment
    from spark_segments.log.manifest.state.captures import Captured as Captured
    from spark_segments.log.manifest.state.captures import CapturedBatch as CapturedBatch
    from spark_segments.log.manifest.state.states import CopiedEnd as CopiedEnd
    from spark_segments.log.manifest.state.states import Erasure as Erasure
    from spark_segments.log.manifest.state.states import Hole as Hole
    from spark_segments.log.manifest.state.states import Undecided as Undecided
    from spark_segments.log.manifest.state.states import states_of_copy as states_of_copy
    from spark_segments.log.manifest.topic_row import TopicRow as TopicRow
    from spark_segments.log.positions import PartitionState as PartitionState
    from spark_segments.log.positions import Position as Position
    from spark_segments.log.segment.leader_epochs import LeaderEpochs as LeaderEpochs


def __getattr__(name: str) -> Any:
    return imported_name(__name__, name)
