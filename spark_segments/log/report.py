"""What a job did, or in a dry run would do: for people and as JSON."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from spark_segments.errors import UnknownTopicError
from spark_segments.log.findings import Finding, Findings
from spark_segments.printing import Printed, Prints
from spark_segments.quantities import Bytes

SHOWN = 10
"""How many offsets a list in a report has at most."""

_FIGURES = ("records_in", "records_out", "bytes_in", "bytes_out")
_COLUMNS = ("severity", "topic", "partition", "action", *_FIGURES, "path", "message", "error")

_logger = logging.getLogger(__name__)


@dataclass(repr=False)
class Report(Prints):
    """What a job did. records_in = records_out + all of `dropped`.

    `partitions` has a line for each partition that the job worked on: topic, partition, action and figures. A list of
    offsets in a line is bounded, and a figure beside it says how many there are: see `first_and_last`. `details` has
    what is the job's own and of no partition. `warnings` are sentences about what the job did by its rules and a user
    may not want. `findings` are faults of the log, which verify looks for; they are no failures of the job.

    An error has a line, too, whose action is FAILED and whose `error` is one line of text. The job leaves that
    partition unchanged, or that topic (`partition` is None then), and goes on with the others. The figures of such a
    line count the commits before the error, which stand. No error is raised, so callers look at `failed`.
    """

    FAILED: ClassVar = "failed"
    LOST: ClassVar = "lost to another job"

    job: str
    dry_run: bool
    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    partitions: list[dict[str, Any]] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    _started: float = field(default_factory=time.monotonic, repr=False)

    def add(
        self,
        topic: str,
        partition: int | None,
        action: str,
        *,
        records_in: int = 0,
        records_out: int = 0,
        bytes_in: int = 0,
        bytes_out: int = 0,
        dropped: dict[str, int] | None = None,
        **figures: Any,
    ) -> None:
        """Adds a partition's line, and its figures to the totals."""
        dropped = dropped or {}
        assert records_in == records_out + sum(dropped.values()), "every record is kept or dropped for a reason"
        self.records_in += records_in
        self.records_out += records_out
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out
        self.dropped.update(dropped)
        line: dict[str, Any] = {"topic": topic, "partition": partition, "action": action}
        line |= {"records_in": records_in, "records_out": records_out, "bytes_in": bytes_in, "bytes_out": bytes_out}
        if dropped:
            line["dropped"] = dict(dropped)
        self.partitions.append(line | figures)

    def add_copied(
        self, topic: str, partition: int, action: str, segments: int, records: int, log_bytes: int, **figures: Any
    ) -> None:
        """Adds the line of a partition of which so many segments were copied, with all their records."""
        self.add(
            topic, partition, action, records_in=records, records_out=records, bytes_in=log_bytes, bytes_out=log_bytes,
            segments=segments, **figures,
        )  # fmt: skip

    def fail(self, topic: str, partition: int | None, error: Exception) -> None:
        """Adds the line of a partition, or of a whole topic, that an error kept the job from.

        A topic that was deleted meanwhile needs no work: its line says so and is no failure.
        """
        if isinstance(error, UnknownTopicError):
            self.add(topic, partition, Report.LOST)
        else:
            self.add(topic, partition, Report.FAILED, error=str(error))

    def count(self, **figures: int) -> None:
        """Adds to figures in `details`."""
        for name, number in figures.items():
            self.details[name] = self.details.get(name, 0) + number

    def warn(self, text: str) -> None:
        """Keeps a warning, and logs it."""
        self.warnings.append(text)
        _logger.warning(text)

    def by_topic(self, figure: str) -> dict[str, int]:
        """{topic: the sum of a figure of its lines}"""
        sums = dict.fromkeys(self.topics, 0)
        for line in self.partitions:
            sums[line["topic"]] += line[figure]
        return sums

    @property
    def topics(self) -> list[str]:
        """The topics that have a line, sorted."""
        return sorted({line["topic"] for line in self.partitions})

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The lines of partitions and topics that failed, each with its `error`."""
        return [line for line in self.partitions if line["action"] == Report.FAILED]

    @property
    def errors(self) -> int:
        """How many findings are errors, and no warnings."""
        return sum(finding.severity == Findings.ERROR for finding in self.findings)

    @property
    def ok(self) -> bool:
        """Whether nothing failed and nothing was found, not even a warning about the log."""
        return not self.failed and not self.findings

    def finish(self) -> Report:
        """Stops the clock and returns the report."""
        self.seconds = time.monotonic() - self._started
        return self

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, ready for JSON."""
        return {
            "job": self.job,
            "dry_run": self.dry_run,
            "seconds": round(self.seconds, 3),
            "topics": self.topics,
            "records_in": self.records_in,
            "records_out": self.records_out,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "dropped": dict(self.dropped),
            "failed": len(self.failed),
            "ok": self.ok,
            "errors": self.errors,
            "findings": [finding.to_dict() for finding in self.findings],
            "warnings": self.warnings,
            "partitions": self.partitions,
            "details": self.details,
        }

    def _printed(self) -> Printed:
        figures = self.to_dict() | {"dropped": dict(self.dropped), "findings": len(self.findings)}
        facts = {"job": self.job, "seconds": figures["seconds"]}
        facts |= {
            name: figures[name] for name in ("dry_run", *_FIGURES, "dropped", "failed", "findings") if figures[name]
        }
        lines = [finding.to_dict() for finding in self.findings] or self.partitions
        columns = [name for name in _COLUMNS if any(line.get(name) is not None for line in lines)]
        rows = [[_sized(name, line.get(name)) for name in columns] for line in lines]
        return Printed("Report", {name: _sized(name, fact) for name, fact in facts.items()}, columns, rows)


def _sized(name: str, value: Any) -> Any:
    return Bytes(value) if name in ("bytes_in", "bytes_out") and value is not None else value


def first_and_last(offsets: Sequence[int]) -> list[int]:
    """All offsets, or the first and the last SHOWN / 2 where there are more than SHOWN."""
    return [*offsets] if len(offsets) <= SHOWN else [*offsets[: SHOWN // 2], *offsets[-SHOWN // 2 :]]
