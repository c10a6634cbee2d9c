"""What every process of a simulation knows: the topics, the pace, how a log directory is opened, which errors may
come."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_segments import LogDir
from spark_segments.errors import (
    CommitConflictError,
    CorruptBatchError,
    SegmentsError,
    StorageError,
    UnknownOutcomeError,
    UnknownTopicError,
)
from spark_segments.kafka_protocol.serving.lease import Lease
from spark_segments.maintenance import Report
from spark_segments.storage import Storage
from verification.long_runs.scenario import DEFAULTS
from verification.simulation.delta import DeltaLogs
from verification.simulation.judge import MOVED, Judge
from verification.simulation.store import Store
from verification.simulation.world import HOUR_US, SECOND_US, Host, Process, Violation, World
from verification.world.kafka_side import TOPIC as IMPORTED
from verification.world.opened import opened

URI = "s3://simulation/log"
ROOT = "simulation/log"
KAFKA_URI = "s3://simulation/kafka"
PARTITIONS = 3
KEYS = 17
HOUR_MS = 3_600_000
COMMON = {
    "segment.bytes": "1500",
    "segment.ms": str(6 * HOUR_MS),
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(4 * HOUR_MS),
    "file.delete.delay.ms": str(12 * HOUR_MS),
    "retention.ms": "-1",
}
KEPT = "kept"
WRITTEN = {
    KEPT: COMMON | {"retention.ms": str(48 * HOUR_MS)},  # no operator makes mistakes with it
    "latest": COMMON | {"cleanup.policy": "compact"},
    "orders": COMMON | {"retention.bytes": "6000"},
    "trimmed": COMMON | {"cleanup.policy": "compact,delete", "retention.bytes": "5000"},
}
OPERATED = ("latest", "orders", "trimmed", IMPORTED)
TOPICS = (*WRITTEN, IMPORTED)
IMPORT_CONFIG = COMMON | {"cleanup.policy": "compact"}
SETTINGS = {
    "cleanup.policy": ("delete", "compact", "compact,delete"),
    "retention.bytes": ("-1", "3000", "9000"),
    "retention.ms": ("-1", "-1", str(6 * HOUR_MS)),
    "min.compaction.lag.ms": ("0", str(HOUR_MS)),
    "max.compaction.lag.ms": (str(2 * HOUR_MS), "9223372036854775807"),
    "delete.retention.ms": (str(HOUR_MS), str(8 * HOUR_MS)),
    "segment.bytes": ("1500", "4000"),
    "file.delete.delay.ms": (str(12 * HOUR_MS), str(24 * HOUR_MS)),
}
"""What an operator alters, and to what."""

HELD_US = 12 * HOUR_US
"""How long the files of a version stay after it was superseded: the least file.delete.delay.ms of the topics."""

SLACK_US = 4 * HOUR_US
"""How long a commit may stand still between the moment when it notes the time and the moment when it is there."""


class Pace:
    """Seconds in which everybody is at work, then minutes to days in which nobody is: races, and age."""

    def __init__(self, seed: int, start_us: int) -> None:
        self._random = random.Random(f"pace {seed}")
        self._end_us = start_us
        self._start_us = start_us
        self._next()

    def _next(self) -> None:
        self._start_us = self._end_us + int(10 ** self._random.uniform(1.5, 5.5) * SECOND_US)
        self._end_us = self._start_us + int(self._random.uniform(2, 12) * SECOND_US)

    def at_work_us(self, at_us: int) -> int:
        """The moment `at_us`, or the next begin of work after it."""
        while at_us > self._end_us:
            self._next()
        return max(at_us, self._start_us)


@dataclass
class Simulation:
    """A world with its store, its manifests, its judge and its hosts."""

    world: World
    store: Store
    logs: DeltaLogs
    judge: Judge
    hosts: list[Host]
    pace: Pace
    numbers: dict[str, int] = field(default_factory=dict)
    followers: list[Any] = field(default_factory=list)
    leases: dict[str, Lease] = field(default_factory=dict)
    history: Any = None

    @property
    def commits(self) -> int:
        """The commits to topics that are there, those of followers included."""
        return self.logs.commits + sum(follower.logs.commits for follower in self.followers)

    @property
    def random(self) -> random.Random:
        return self.world.random

    def open(self) -> LogDir:
        """The log directory, as a process opens it that has just begun."""
        return opened(self.storage(), defaults=DEFAULTS, open_delta_log=self.logs)

    def storage(self, uri: str = URI) -> Storage:
        return Storage(uri, filesystem=self.store)

    def think(self, process: Process, mean_ms: float) -> None:
        """A pause of a process between two things that it does."""
        world, chance = self.world, self.store.faults.clock
        us = world.now_us + int(world.random.expovariate(1 / mean_ms) * 1000)
        if chance and world.random.random() < chance * 20:
            process.host.offset_us = int(world.random.choice((-1, 1)) * 10 ** world.random.uniform(5, 9.5))
        process.rest()
        world.wait(self.pace.at_work_us(us) - world.now_us)

    def number(self, name: str) -> int:
        """The next number of a series."""
        self.numbers[name] = self.numbers.get(name, -1) + 1
        return self.numbers[name]

    def attempt(
        self, process: Process, work: Callable[[], Any], *expected: type[SegmentsError], **intent: Any
    ) -> tuple[Any, SegmentsError | None]:
        """(result, None) of what a process does, or (None, its error). A violation where that error has no cause.

        `intent`: what its commits are to do. Where the error says that nothing was committed, nothing may ever be.
        """
        self.world.note("attempt", process.name, *sorted(intent))
        process.intent = intent
        calls: list[tuple[str, int]] = intent.setdefault("calls", [])
        try:
            result = work()
        except SegmentsError as error:
            self.judge.counts[f"errors: {type(error).__name__}"] += 1
            self.world.note("error", type(error).__name__)
            self.check_cause(process, error, expected)
            if not isinstance(error, UnknownOutcomeError) and intent.get("is_one_commit"):
                if calls:
                    raise Violation(f"{process.name}: {error!r}, but {calls} are there") from error
                intent["refused"] = repr(error)
            return None, error
        except (AssertionError, Violation):
            raise
        except Exception as error:
            raise Violation(f"{process.name}: an error that no caller expects: {error!r}") from error
        finally:
            process.intent = {}
        return result, None

    def attempt_job(
        self,
        process: Process,
        work: Callable[[], Report],
        refused: Callable[[dict[str, Any]], bool] = lambda _: False,
        expected: Sequence[type[SegmentsError]] = (),
        **intent: Any,
    ) -> list[dict[str, Any]]:
        """Runs a job. What its report says that failed needs a cause, too. The failures that `refused` tells to be
        refusals with a way out are returned. `expected`: the errors that it may raise as a whole.
        """
        report, error = self.attempt(process, work, *expected, **intent)
        if error is not None:
            return []
        self.judge.counts[f"jobs: {report.job}"] += 1
        for line in report.failed:
            self.judge.counts[f"jobs that failed: {report.job}"] += 1
            is_refused = line["topic"] == MOVED and "leader" in line["error"]
            is_overtaken = any(text in line["error"] for text in ("came first", "coming first"))
            is_excused = process.is_disturbed or is_overtaken
            if not (is_refused or is_excused or refused(line)):
                raise Violation(
                    f"{process.name}: {report.job} failed without a cause: {line['topic']}: {line['error']}"
                )
        return [line for line in report.failed if refused(line)]

    def check_late(self, topic: str, version: int, error: SegmentsError) -> None:
        """A version, or a file of it, may be gone only after it was out of the log for file.delete.delay.ms."""
        since_us = self.judge.topic(topic).superseded_us.get(version, self.world.now_us)
        self.judge.counts["reads too late"] += 1
        hours = (self.world.now_us - since_us) / HOUR_US
        if hours < (HELD_US - SLACK_US) / HOUR_US:
            text = f"{topic} at version {version}: gone {hours:.1f} hours after it was superseded"
            raise Violation(f"{text}: {error!r}") from error

    def check_cause(self, process: Process, error: SegmentsError, expected: tuple[type[SegmentsError], ...]) -> None:
        """An error needs a cause: what it says itself, a fault of the store, or that others were quicker."""
        if isinstance(error, UnknownTopicError) and f"{error}".startswith(f"Unknown topic {KEPT!r} in {URI}"):
            raise Violation(f"{process.name}: nobody deletes {KEPT}: {error!r}") from error
        if isinstance(error, (CommitConflictError, UnknownTopicError, *expected)):
            return
        if process.flips and (isinstance(error, CorruptBatchError) or "A copy is not what was read" in str(error)):
            return
        if isinstance(error, (StorageError, UnknownOutcomeError)) and (process.faults or process.stalled_us):
            return
        raise Violation(f"{process.name}: an error without a cause: {error!r}") from error
