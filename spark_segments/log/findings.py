"""The findings of a verification: a value for each fault, with its place, the expected and the found content."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypedDict, Unpack

from spark_segments.errors import SegmentsError, escaped

MOST_OF_A_KIND = 20
"""How many findings with the same message are kept for a topic; further findings are only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault. `path` is relative to the log directory, `byte_position` a byte of the file; None where neither applies.

    `rebuilds`: the .log whose sidecars a repair would rebuild to correct the fault; None where a repair cannot. `rule`:
    the number of the rule of docs/format that is broken; None where the fault breaks no rule of the format.
    """

    severity: str
    topic: str
    partition: int | None
    path: str | None
    byte_position: int | None = None
    expected: object = None
    found: object = None
    message: str
    rebuilds: str | None = None
    rule: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain values, as for JSON."""
        fields = dataclasses.asdict(self)
        del fields["rebuilds"]
        return {name: value if isinstance(value, str | int | None) else str(value) for name, value in fields.items()}

    def __str__(self) -> str:
        place = self.topic if self.partition is None else f"{self.topic}-{self.partition}"
        text = f"{self.severity}: {place}: {self.message}"
        if self.path is not None:
            text += f" in {self.path}"
        if self.byte_position is not None:
            text += f" at position {self.byte_position}"
        facts = [
            f"{name} {fact}" for name, fact in (("expected", self.expected), ("found", self.found)) if fact is not None
        ]
        if facts:
            text += f": {', '.join(facts)}"
        return escaped(text, one_line=True)


class Facts(TypedDict, total=False):
    """What a finding may say beside its message and place: see `Finding`."""

    byte_position: int | None
    expected: object
    found: object
    rebuilds: str | None
    rule: str | None


@dataclass(slots=True)
class Findings:
    """Collects the findings of a topic, and of a partition and file where these are set."""

    ERROR: ClassVar = "error"
    """Records are lost or may be read wrongly, or a read may fail."""

    WARNING: ClassVar = "warning"
    """Nothing is lost or read wrongly, but neither Kafka nor this package leaves it so."""

    topic: str
    partition: int | None = None
    path: str | None = None
    found: list[Finding] = field(default_factory=list)
    left_out: int = 0
    _of_kind: dict[str, int] = field(default_factory=dict)

    def add(
        self,
        message: str,
        *,
        severity: str = ERROR,
        partition: int | None = None,
        path: str | None = None,
        **facts: Unpack[Facts],
    ) -> None:
        """Adds a finding; beyond MOST_OF_A_KIND of the same message it is only counted. `facts`: its other fields."""
        count = self._of_kind[message] = self._of_kind.get(message, 0) + 1
        if count > MOST_OF_A_KIND:
            self.left_out += 1
            return
        partition = self.partition if partition is None else partition
        path = self.path if path is None else path
        finding = Finding(severity=severity, topic=self.topic, partition=partition, path=path, message=message, **facts)
        self.found.append(finding)

    def add_error(self, error: SegmentsError, *, severity: str = ERROR, **facts: Unpack[Facts]) -> None:
        """Adds an error as a finding."""
        facts |= {"byte_position": error.byte_position, "expected": error.expected, "found": error.found}
        self.add(error.message, severity=severity, path=error.path, **facts)
