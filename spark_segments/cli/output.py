"""The output of all commands: text or JSON on standard output, an error in one line on standard error, and progress on
a terminal.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from spark_segments.errors import SegmentsError, escaped

FAILED = 1
FOUND_FAULTS = 3
READER_GONE = 141  # as of a program that the signal SIGPIPE ended

WIDTH_OF_A_FILE = 10_000  # columns: in a file no line is folded, so that a script can search it


class Output(enum.StrEnum):
    """How a command prints its result."""

    TEXT = "text"
    JSON = "json"


def print_json(value: Any) -> None:
    """Prints a JSON document, indented on a terminal."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Prints a table for people, with numbers aligned to the right and thousands separated."""
    rows = [list(row) for row in rows]
    table = Table(
        title=None if title is None else Text(title),
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for number, name in enumerate(columns):
        numeric = all(isinstance(row[number], (int, float)) or row[number] is None for row in rows) and rows
        table.add_column(Text(escaped(name, one_line=True)), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))  # a str would be read as rich's markup
    console = Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE)
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return escaped(str(value), one_line=True)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"


def human_bytes(size: float) -> str:
    """1536 → "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def shown_hole(hole: Mapping[str, Any]) -> str:
    """A hole of a topic in a line."""
    noticed = datetime.fromtimestamp(hole["noticed_ms"] / 1000, UTC).isoformat(timespec="seconds")
    return (
        f"{hole['topic']}-{hole['partition']}: offsets {hole['start_offset']} to {hole['end_offset'] - 1} are missing: "
        f"{hole['reason']} (noticed {noticed})"
    )


def print_report(report: Mapping[str, Any], output: Output) -> None:
    """Prints a maintenance report: a line per partition and the totals, or the whole report as JSON.

    Each failure also has a line on standard error, like every error of a command.
    """
    for line in report["partitions"]:
        if "error" in line:
            where = line["topic"] if line["partition"] is None else f"{line['topic']}-{line['partition']}"
            print(f"error: {where}: {line['error']}", file=sys.stderr)
    details = report["details"]
    if details.get("over_bytes"):
        print(f"warning: {_over(details)}", file=sys.stderr)
    if output is Output.JSON:
        print_json(report)
        return
    lines = report["partitions"]
    if lines:
        columns = [
            name
            for name in dict.fromkeys(name for line in lines for name in line)
            if name != "error" and any(line.get(name) not in (None, {}) for line in lines)
        ]
        print_table(columns, ([_text(name, line) for name in columns] for line in lines))
    tense = "would be" if report["dry_run"] else "were"
    dropped = ", ".join(f"{count:,} by {reason}" for reason, count in report["dropped"].items()) or "none"
    failed = f" ({report['failed']:,} failed)" if report["failed"] else ""
    print(
        f"{report['job']}{' (dry run)' if report['dry_run'] else ''}: {len(lines):,} partitions{failed}, "
        f"{report['records_in']:,} records in, {report['records_out']:,} out, {tense} dropped: {dropped}; "
        f"{human_bytes(report['bytes_in'])} in, {human_bytes(report['bytes_out'])} out, {report['seconds']:.1f} s"
    )

    if "max_bytes" in details:
        print(
            f"--max-bytes {human_bytes(details['max_bytes'])}: {human_bytes(details['live_bytes'])} live, "
            f"{human_bytes(details['waiting_bytes'])} waiting for vacuum"
        )


def _over(details: Mapping[str, Any]) -> str:
    reasons = {
        "held_young_bytes": "are younger than --min-retention",
        "held_active_bytes": "in active segments",
        "held_compacted_bytes": "in topics that are only compacted",
    }
    held = [f"{human_bytes(details[name])} {why}" for name, why in reasons.items() if details.get(name)]
    above = f"{human_bytes(details['over_bytes'])} above --max-bytes {human_bytes(details['max_bytes'])}"
    return f"{above}: {', '.join(held)}" if held else above


def _text(name: str, line: Mapping[str, Any]) -> Any:
    value = line.get(name)
    if name == "sealed" and value is not None and len(value) < line["sealed_segments"]:
        half = len(value) // 2  # a report shows the first and the last few of many offsets
        return ", ".join(map(str, value[:half])) + " … " + ", ".join(map(str, value[half:]))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {count}" for name, count in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value[:6])) + (f" … ({len(value)})" if len(value) > 6 else "")
    return value


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """A function that takes (done, total) and shows them as a bar on standard error, where that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    estimate = (TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *estimate)
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextlib.contextmanager
def silent_without_a_reader() -> Iterator[None]:
    """Ends the command without a word where what reads its output has gone, as in `segments consume … | head -1`."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError as error:
        # Python flushes standard output once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(READER_GONE) from error


def _words(error: Exception) -> str:
    """An error's text; of a file that cannot be opened its name and why, without Python's number for it."""
    if isinstance(error, OSError) and not isinstance(error, SegmentsError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


@contextlib.contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turns this package's errors into a line on standard error and exit code 1."""
    try:
        yield
    except (SegmentsError, OSError) as error:
        print(f"error: {escaped(_words(error), one_line=True)}", file=sys.stderr)
        raise SystemExit(FAILED) from error
    except OverflowError as error:  # of Arrow and numpy, whose numbers have 64 bits at most
        print(f"error: A number is too large for what it stands for ({error})", file=sys.stderr)
        raise SystemExit(FAILED) from error
