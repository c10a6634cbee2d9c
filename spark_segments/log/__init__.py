"""A log directory without Spark: topics, their manifests, segments, reading, appending, groups.

This is the inner face: what add-ons know of the core, and all that they know of it. A name is imported when it is used,
so that a command that lists topics waits for no kernel.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_segments.log.description import describe
    from spark_segments.log.directory import LogDirectory
    from spark_segments.log.eras import Eras
    from spark_segments.log.groups.group import Group
    from spark_segments.log.groups.lag import GroupLag
    from spark_segments.log.manifest.change import Change
    from spark_segments.log.manifest.manifest import Manifest
    from spark_segments.log.manifest.rows import Partition, Segment
    from spark_segments.log.manifest.snapshot import Snapshot
    from spark_segments.log.positions import PartitionState, Position
    from spark_segments.log.reading.plan import Selection
    from spark_segments.log.reading.scan import Scan
    from spark_segments.log.reading.times import offsets_for_times
    from spark_segments.log.report import Report

_HOME = {
    "Change": "manifest.change",
    "Group": "groups.group",
    "LogDirectory": "directory",
    "Manifest": "manifest.manifest",
    "Partition": "manifest.rows",
    "PartitionState": "positions",
    "Position": "positions",
    "Report": "report",
    "Scan": "reading.scan",
    "Segment": "manifest.rows",
    "Selection": "reading.plan",
    "Snapshot": "manifest.snapshot",
    "GroupLag": "groups.lag",
    "describe": "description",
    "Eras": "eras",
    "offsets_for_times": "reading.times",
}
__all__ = [
    "Change",
    "Eras",
    "Group",
    "GroupLag",
    "LogDirectory",
    "Manifest",
    "Partition",
    "PartitionState",
    "Position",
    "Report",
    "Scan",
    "Segment",
    "Selection",
    "Snapshot",
    "describe",
    "offsets_for_times",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"spark_segments.log.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
