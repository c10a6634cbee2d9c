"""A log directory without Spark: topics, their manifests, segments, reading, appending, groups.

This is the inner face: what add-ons know of the core, and all that they know of it. border.py has the names in three
parts: what is read, what is written, and facts. A name is imported when it is used, so that a command that lists topics
waits for no kernel.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_segments.log import border

if TYPE_CHECKING:
    from spark_segments.log.appending.append import append as append
    from spark_segments.log.appending.appender import ProducerOptions as ProducerOptions
    from spark_segments.log.appending.caller_rows import Rows as Rows
    from spark_segments.log.description import describe as describe
    from spark_segments.log.directory import LogDirectory as LogDirectory
    from spark_segments.log.eras import Eras as Eras
    from spark_segments.log.findings import Findings as Findings
    from spark_segments.log.groups.group import Group as Group
    from spark_segments.log.groups.group import GroupLag as GroupLag
    from spark_segments.log.groups.group import Positions as Positions
    from spark_segments.log.groups.group_files import GroupCommit as GroupCommit
    from spark_segments.log.groups.group_files import GroupRows as GroupRows
    from spark_segments.log.manifest.commit.change import Change as Change
    from spark_segments.log.manifest.manifest import Manifest as Manifest
    from spark_segments.log.manifest.operation import Operation as Operation
    from spark_segments.log.manifest.rows import Partition as Partition
    from spark_segments.log.manifest.rows import Segment as Segment
    from spark_segments.log.manifest.rows import in_states as in_states
    from spark_segments.log.manifest.rows import removed_rows as removed_rows
    from spark_segments.log.manifest.rows import with_column as with_column
    from spark_segments.log.manifest.state.snapshot import Snapshot as Snapshot
    from spark_segments.log.manifest.state.snapshot import StandIns as StandIns
    from spark_segments.log.manifest.state.snapshot import live_rows as live_rows
    from spark_segments.log.manifest.state.states import Captured as Captured
    from spark_segments.log.manifest.state.states import CapturedBatch as CapturedBatch
    from spark_segments.log.manifest.state.states import Erasure as Erasure
    from spark_segments.log.manifest.state.states import Hole as Hole
    from spark_segments.log.manifest.state.states import Undecided as Undecided
    from spark_segments.log.manifest.state.states import states_of_copy as states_of_copy
    from spark_segments.log.manifest.state.topic_log import CommitFacts as CommitFacts
    from spark_segments.log.manifest.state.topic_log import TableState as TableState
    from spark_segments.log.manifest.topic_row import TopicRow as TopicRow
    from spark_segments.log.manifest.transaction import Transaction as Transaction
    from spark_segments.log.positions import PartitionState as PartitionState
    from spark_segments.log.positions import Position as Position
    from spark_segments.log.reading.latest import LatestPart as LatestPart
    from spark_segments.log.reading.plan import ScanPart as ScanPart
    from spark_segments.log.reading.plan import Selection as Selection
    from spark_segments.log.reading.scan import Scan as Scan
    from spark_segments.log.reading.times import offsets_for_times as offsets_for_times
    from spark_segments.log.reading.verbatim import FetchedBatches as FetchedBatches
    from spark_segments.log.reading.verbatim import PartitionLog as PartitionLog
    from spark_segments.log.reading.verbatim import Place as Place
    from spark_segments.log.report import Report as Report
    from spark_segments.log.segment.copying import copy_batches as copy_batches
    from spark_segments.log.segment.examination import Examination as Examination
    from spark_segments.log.segment.file import SegmentFile as SegmentFile
    from spark_segments.log.segment.leader_epochs import LeaderEpochs as LeaderEpochs
    from spark_segments.log.segment.writer import SegmentWriter as SegmentWriter


def __getattr__(name: str) -> Any:
    home = border.HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"spark_segments.log.{home}"), name)
