"""Writes metrics in the OpenMetrics text format, for the textfile collector of Prometheus' node_exporter.

The rules are those of https://prometheus.io/docs/specs/om/open_metrics_spec/. Every metric is a gauge: a file holds
what was true when it was written. No sample has a timestamp, because node_exporter refuses such files.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


@dataclass(frozen=True, slots=True)
class Sample:
    """A value and its labels."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Family:
    """A gauge with its samples. `unit` is empty, or the last word of the name."""

    name: str
    help: str
    samples: tuple[Sample, ...]
    unit: str = ""

    def __post_init__(self) -> None:
        assert not self.unit or self.name.endswith(f"_{self.unit}"), "OpenMetrics wants the unit last in the name"


def openmetrics_text(families: Iterable[Family]) -> str:
    """The families as a document, in the order given. A family without samples is left out."""
    lines = []
    for family in families:
        if not family.samples:
            continue
        lines.append(f"# TYPE {family.name} gauge")
        if family.unit:
            lines.append(f"# UNIT {family.name} {family.unit}")
        lines.append(f"# HELP {family.name} {family.help.translate(_ESCAPES)}")
        lines += [f"{family.name}{_labels(sample.labels)} {sample.value!r}" for sample in family.samples]
    return "\n".join([*lines, "# EOF\n"])


def write_metrics(path: Path, text: str) -> None:
    """Puts the text in place of the file in one step: a collector reads the old text or the new text.

    The file is readable by whom the umask allows: node_exporter usually runs as another user. Its temporary file does
    not end in .prom, so that no collector reads it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _labels(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""
