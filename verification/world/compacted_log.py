"""A topic and its plain model, which appends, rolls, cleanings and retention go to alike, on one clock."""

from __future__ import annotations

from collections.abc import Sequence

from spark_segments import LogDir
from spark_segments.maintenance import compact, retain, roll, vacuum, verify
from verification.world.opened import opened
from verification.world.plain_partition import PlainPartition, Record, Rules
from verification.world.small_limits import small_limits
from verification.world.stores.played_log import Play
from verification.world.topics import DAY_MS, append_even_without_key, contents, live, under_policy

START_MS = 1_700_000_000_000
NEVER_MS = 2**63 - 1
SETTLE_MS = 10_000  # longer than any lag and any retention of tombstones of a test


class Work:
    """A log and its model, which do everything alike, on one clock."""

    def __init__(self, directory: str, rules: Rules, segment_bytes: int, compression: str) -> None:
        self.log = LogDir.create(directory)
        self.model = PlainPartition(rules)
        self.now_ms = START_MS
        self.written: list[Record] = []
        policy = "compact" if rules.retention_ms is None else "compact,delete"
        config = {
            "cleanup.policy": policy,
            "delete.retention.ms": rules.delete_retention_ms,
            "min.compaction.lag.ms": rules.min_lag_ms,
            "max.compaction.lag.ms": rules.max_lag_ms,
            "min.cleanable.dirty.ratio": rules.min_ratio,
            "retention.ms": rules.retention_ms or -1,
            "segment.bytes": segment_bytes,
            "compression.type": compression,
            "file.delete.delay.ms": 500,
        }
        self.log.create_topic("t", 2, {name: str(value) for name, value in config.items()})

    def sealed(self) -> list[tuple[int, int]]:
        return [(one.base_offset, one.next_offset) for one in live(self.log, "t") if one.state == "sealed"]

    def append(self, rows: Sequence[Record], shared: bool = True) -> None:
        """Appends to partition 0, and a record to partition 1. `shared`: both into one object."""
        partitions = [0] * len(rows) + [1]
        with small_limits(FEWEST_RUNS=1 if shared else 3):
            append_even_without_key(
                self.log, *rows, (b"other", b"1"), topic="t", partitions=partitions, time_ms=self.now_ms
            )
        self.model.append(rows, self.now_ms)
        self.written += rows

    def seal(self) -> None:
        roll(self.log, now_ms=self.now_ms + 8 * DAY_MS)

    def roll(self) -> None:
        """Merges chunks, and seals those whose time has come."""
        roll(self.log)

    def vacuum(self) -> None:
        vacuum(self.log)

    def retain(self, delete_before: int = 0) -> None:
        """Retention, after so many further records were deleted by their offsets."""
        if delete_before:
            before = min(self.model.start_offset + delete_before, self.model.end_offset)
            with under_policy(self.log, "t", "compact,delete"):
                self.log.topic("t").delete_records({0: before})
            self.model.delete_records(before)
        self.model.retain(self.sealed(), self.now_ms)
        retain(self.log)

    def compact(self, map_bytes: int, meanwhile: Sequence[Record] | None = None, threads: int = 1) -> None:
        """Compaction where it is due; `meanwhile` is appended after the last look at the log, before the commit."""
        settings = {"log.cleaner.dedupe.buffer.size": str(map_bytes), "log.cleaner.threads": str(threads)}
        log = LogDir.open(self.log.uri, defaults=settings)
        bound, is_due = self.model.cleanable(self.sealed(), self.now_ms)
        plan = [line for line in compact(log, dry_run=True).partitions if line["partition"] == 0]
        picked = any(line["action"] == "compact" for line in plan)
        assert picked == is_due or is_due is None
        assert [line["first_uncleanable_offset"] for line in plan] in ([], [bound])
        play = Play().before_commits(*[lambda: self.append(meanwhile)] * bool(meanwhile))
        lines = [line for line in compact(opened(log, open_delta_log=play)).partitions if line["partition"] == 0]
        assert [line["action"] for line in lines] == ["compact"] * picked
        if picked:
            self.model.clean(bound, self.now_ms)

    def check(self) -> None:
        found = self.log.topic("t").describe()["partitions"][0]
        model = self.model
        there = {
            row["offset"]: (row["key"], row["value"], round(row["timestamp"].timestamp() * 1000))
            for row in contents(self.log, "t", partition=0)
        }
        assert there == model.visible()
        assert (found["log_start_offset"], found["log_end_offset"]) == (model.start_offset, len(self.written))
        assert found["first_dirty_offset"] == model.first_dirty_offset
        # What a user counts on, whatever the model says.
        newest = {key: offset for offset, (key, _) in enumerate(self.written) if key is not None}
        kept = {offset for offset in newest.values() if self.written[offset][1] is not None}
        assert {offset for offset in kept if offset >= model.start_offset} <= there.keys()


def settle(work: Work) -> None:
    """Two last cleanings, far apart: then there is one record of each key, and no tombstone is left."""
    for _ in range(2):
        work.append([(b"last", b"1")])
        work.seal()
        work.now_ms += SETTLE_MS
        work.compact(4096)
        work.check()
        if work.model.first_dirty_offset < len(work.written):
            return  # too little of it is dirty
    records = [(key, value) for key, value, _ in work.model.visible().values()]
    assert len(dict(records)) == len(records) and None not in dict(records).values()
    report = verify(work.log, deep=True)
    assert report.ok, report.findings
