"""The border of the core: the names by which add-ons, the face and the commands know a log directory, in three parts.

**Reads.** `LogDirectory.snapshot` gives a topic at a version. A `Scan` of a snapshot decodes records; its parts can be
pickled and are read wherever the files can be reached. `PartitionLog` gives batches as they lie.

**Writes.** Files are written first: `SegmentWriter` and `copy_batches` give rows of segments. Then a plan, a function
from the newest snapshot to a `Change`, becomes one commit (`Manifest.commit`), or none. `append` does both for rows of
a caller, `Group.update` is the same for positions of readers.

**Facts.** Frozen values without files or clocks: rows of the manifest, positions, epochs, holes, erasures, roles.

Types come from here, too. A test (tests/test_border.py) lists the names and the members that are used outside, and
counts them: a new one is a decision. Each name stands here with the module that it lives in.
"""

READS = {
    # A location, its topics, and the manifest of each by version.
    "LogDirectory": "directory",
    "Manifest": "manifest.manifest",
    "TableState": "manifest.state.topic_log",
    "CommitFacts": "manifest.state.topic_log",
    # A topic at a version: rows of its segments and partitions. Everything that is read begins here.
    "Snapshot": "manifest.state.snapshot",
    "StandIns": "manifest.state.snapshot",
    "describe": "description",
    # Records, decoded: a scan, what it reads, and the parts that tasks get.
    "Scan": "reading.scan",
    "Selection": "reading.plan",
    "ScanPart": "reading.plan",
    "LatestPart": "reading.latest",
    "offsets_for_times": "reading.times",
    # Batches as they lie: of a partition from an offset on, of a segment, and of a file that may be damaged.
    "PartitionLog": "reading.verbatim",
    "FetchedBatches": "reading.verbatim",
    "Place": "reading.verbatim",
    "SegmentFile": "segment.file",
    "Examination": "segment.examination",
    # Functions over Arrow tables of segments' rows.
    "live_rows": "manifest.state.snapshot",
    "in_states": "manifest.rows",
    "removed_rows": "manifest.rows",
    "with_column": "manifest.rows",
}
"""Reads: a log directory, a topic at a version, and what is read of it."""

WRITES = {
    # Rows of a caller, and the options of a producer, as one append.
    "append": "appending.append",
    "ProducerOptions": "appending.appender",
    "Rows": "appending.caller_rows",
    "Transaction": "manifest.transaction",
    # Batches that are there already, into files of segments.
    "SegmentWriter": "segment.writer",
    "copy_batches": "segment.copying",
    # The change that a plan makes of a snapshot: one commit.
    "Change": "manifest.commit.change",
    "Operation": "manifest.operation",
    # Positions of readers.
    "Group": "groups.group",
    "GroupCommit": "groups.group_files",
    "GroupRows": "groups.group_files",
    # What a job did, and what it found.
    "Report": "report",
    "Findings": "findings",
}
"""Writes: chunks of batches, and plans that become one commit."""

FACTS = {
    # Rows of the manifest.
    "Segment": "manifest.rows",
    "Partition": "manifest.rows",
    "TopicRow": "manifest.topic_row",
    # Positions, and what a reader loses that goes on at one.
    "Position": "positions",
    "PartitionState": "positions",
    "Positions": "groups.group",
    "GroupLag": "groups.group",
    "LeaderEpochs": "segment.leader_epochs",
    "Eras": "eras",
    # What a topic remembers of its log: holes, undecided transactions, erasures, captures.
    "Hole": "manifest.state.states",
    "Undecided": "manifest.state.states",
    "Erasure": "manifest.state.states",
    "Captured": "manifest.state.states",
    "CapturedBatch": "manifest.state.states",
    # What a topic is among its copies.
    "states_of_copy": "manifest.state.states",
}
"""Facts: values only."""

HOMES = {**READS, **WRITES, **FACTS}
"""{name: its module below `spark_segments.log`}"""
