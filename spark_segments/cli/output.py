"""The output of all commands: text or JSON on standard output, an error in one line on standard error, and progress on
a terminal.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from types import NoneType
from typing import TYPE_CHECKING, Any, TextIO

from rich.cells import cell_len, chop_cells

from spark_segments.cli.index_output import index_lines, short_of_index
from spark_segments.errors import SegmentsError, escaped
from spark_segments.quantities import Bytes, human_bytes, moment, plural

if TYPE_CHECKING:
    from pathlib import Path

    from spark_segments.face.logdir import LogDir
    from spark_segments.log import Report

FAILED = 1
FOUND_FAULTS = 3
_ERASED = ("records_to_erase", "tombstones_to_append")
_OTHER_FILES = {  # that vacuum deletes, beside the files of partitions
    "manifest_files": "manifest file",
    "group_files": "group file",
}
_EARLIER = "history_segments"  # files of earlier versions that an erasure deletes
READER_GONE = 141  # as of a program that the signal SIGPIPE ended


class Output(enum.StrEnum):
    """How a command prints its result: for people, with all columns, or as JSON."""

    TEXT = "text"
    WIDE = "wide"
    JSON = "json"


def print_json(value: Any) -> None:
    """Prints a JSON document, indented on a terminal."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None, default=str))


class ShownTime(int):
    """A time in ms since 1970 in a table, in UTC: to the second on a terminal, as ISO has it in a file."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints a table.

    On a terminal it is for people: numbers at the right, thousands separated. Where it is wider than the terminal, the
    text of its longest column goes on in a further line, and a word that is longer than the column is cut there. Where
    the other columns leave too little room, each row is a block of lines, in which no number and no word is broken. In
    a file or a pipe a row is a line, cells have tabs between them, and numbers are plain.
    """
    rows = [list(row) for row in rows]
    names = [escaped(name, one_line=True) for name in columns]
    if not sys.stdout.isatty():
        for line in (names, *([_plain(value) for value in row] for row in rows)):
            print("\t".join(line))
        return
    cells = [[_cell(value) for value in row] for row in rows]
    is_number = [
        bool(rows) and all(isinstance(row[number], (int, float, NoneType)) for row in rows)
        for number in range(len(names))
    ]
    widths = _fitting_widths(names, cells, is_number)
    if widths is None:
        _print_stacked(names, cells)
        return
    for line in (names, *cells):
        _print_row(line, widths, is_number)


LEAST_WRAPPED = 16
"""A column whose text goes on in further lines has room for so many characters at least."""


def _fitting_widths(
    names: Sequence[str], cells: Sequence[Sequence[str]], is_number: Sequence[bool]
) -> list[int] | None:
    """The columns' widths, of which the longest takes what the others leave; None where that is too little."""
    widths = [max(cell_len(row[number]) for row in (names, *cells)) for number in range(len(names))]
    excess = sum(widths) + 2 * len(widths) - 2 - _width()
    if excess <= 0:
        return widths
    longest = widths.index(max(widths))
    width = widths[longest] - excess
    if is_number[longest] or width < max(LEAST_WRAPPED, cell_len(names[longest])):
        return None
    widths[longest] = width
    return widths


def _print_row(row: Sequence[str], widths: Sequence[int], is_number: Sequence[bool]) -> None:
    """Prints a row in as many lines as its longest cell needs."""
    wrapped = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
    for line in zip_longest(*wrapped, fillvalue=""):
        padded = []
        for cell, width, to_right in zip(line, widths, is_number, strict=True):
            padding = " " * (width - cell_len(cell))
            padded.append(padding + cell if to_right else cell + padding)
        print("  ".join(padded).rstrip())


def _wrapped(cell: str, width: int) -> list[str]:
    """The lines of a cell: a word is cut only where it is longer than the column."""
    if cell_len(cell) <= width:
        return [cell]
    lines = textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)
    return [part for line in lines for part in chop_cells(line, width)]


def print_rows(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Prints these columns of rows as a table."""
    print_table(columns, ([row[name] for name in columns] for row in rows))


def _print_stacked(names: Sequence[str], cells: Iterable[Sequence[str]]) -> None:
    indent = max(map(cell_len, names)) + 2
    for number, row in enumerate(cells):
        if number:
            print()
        for name, cell in zip(names, row, strict=True):
            lines = textwrap.wrap(
                cell, max(_width() - indent, 1), break_long_words=False, break_on_hyphens=False
            ) or [""]  # fmt: skip
            print(f"{name:{indent}}" + f"\n{'':{indent}}".join(lines))


def _width() -> int:
    return shutil.get_terminal_size().columns


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Bytes):
        return human_bytes(value)
    if isinstance(value, ShownTime):
        return moment(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return escaped(str(value), one_line=True)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"


def _plain(value: Any) -> str:
    if isinstance(value, ShownTime):
        return moment(value).replace(" ", "T", 1)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(int(value))
    return f"{value:.3f}" if isinstance(value, float) else _cell(value)


def shown_hole(hole: Mapping[str, Any]) -> str:
    """A hole of a topic in a line."""
    return (
        f"{hole['topic']}-{hole['partition']}: offsets {hole['start_offset']} to {hole['end_offset'] - 1} are missing: "
        f"{hole['reason']} (noticed {moment(hole['noticed_ms'])})"
    )


def print_report(report: Mapping[str, Any], output: Output) -> None:
    """Prints a maintenance report: a line per partition and the totals, or the whole report as JSON.

    Each failure and each warning also has a line on standard error, like every error of a command.
    """
    _print_errors(report)
    if output is Output.JSON:
        print_json(report)
        return
    details = report["details"]
    if details.get("expired_records"):
        print_summary(_expired(report))
    if report["partitions"]:
        _print_lines(report, is_short=output is Output.TEXT and sys.stdout.isatty())
    print_summary(f"{report['job']}{' (dry run)' if report['dry_run'] else ''}: {_sums(report)}")
    if "max_bytes" in details:
        print_summary(
            f"--max-bytes {human_bytes(details['max_bytes'])}: {human_bytes(details['live_bytes'])} live, "
            f"{human_bytes(details['waiting_bytes'])} waiting for vacuum"
        )
    if report["job"] == "index":
        for topic, facts in details.items():
            for line in index_lines(facts if "runs" in facts else None, facts.get("field_indexes", {})):
                print_summary(f"{topic}: {line}")
    if report["job"] == "table":
        for topic, facts in details.items():
            print_summary(_table_line(topic, facts))


def _print_errors(report: Mapping[str, Any]) -> None:
    """A line on standard error for each failure and each warning."""
    for line in report["partitions"]:
        if "error" in line:
            where = line["topic"] if line["partition"] is None else f"{line['topic']}-{line['partition']}"
            print(f"error: {where}: {line['error']}", file=sys.stderr)
    warnings = [*report["warnings"]]
    if report["details"].get("over_bytes"):
        warnings.append(_over(report["details"]))
    for text in warnings:
        print(f"warning: {text}", file=sys.stderr)


def _print_lines(report: Mapping[str, Any], *, is_short: bool) -> None:
    """The table of a report: the columns of which any line has a value."""
    rows = [_short(line, report["job"]) if is_short else line for line in report["partitions"]]
    columns = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if name != "error" and any(row.get(name) not in (None, {}) for row in rows)
    ]
    print_table(columns, ([_text(name, row) for name in columns] for row in rows))


def _expired(report: Mapping[str, Any]) -> str:
    """Up to 0.3 such records stayed until segment.ms had passed, so the first run after an upgrade takes them."""
    does = "is sealed" if report["dry_run"] else "was sealed"
    records = plural(report["details"]["expired_records"], "record")
    return f"All has expired in active segments with {records}: this {does}, and the next retain removes it"


def _table_line(topic: str, details: Mapping[str, Any]) -> str:
    if details["version"] is None:
        return f"{topic}: no table yet"
    counts = {name: details.get(f"rows_{name}") for name in ("added", "removed")}
    changes = ", ".join(f"{plural(number, 'row')} {name}" for name, number in counts.items() if number)
    line = f"{topic}: version {details['version']} of its table, {plural(details['rows'], 'row')}"
    line += f": {changes or 'as it was'}"
    if details["why"]:
        line += f" ({details['why']})"
    return line


def tell(report: Report, told: set[str]) -> set[str]:
    """Prints the errors and warnings of a job's report that are not in `told`. Returns all of them."""
    errors = [f"error: {line['topic']}: {line['error']}" for line in report.failed]
    texts = [*errors, *(f"warning: {text}" for text in report.warnings)]
    for text in texts:
        if text not in told:
            print(text, file=sys.stderr, flush=True)
    return set(texts)


def write_copied(
    path: Path | None, log: LogDir, report: Report, records: str, size: str, lag: Mapping[str, int] | None = None
) -> None:
    """Writes the metrics of a copy, where they are wanted. `records`, `size`: figures of its report."""
    if path is not None:
        from spark_segments.cli.metrics import write_copy_metrics

        write_copy_metrics(path, log.uri, report.job, report.by_topic(records), report.by_topic(size), lag)


def print_summary(text: str) -> None:
    """Prints a sentence about all that was done. It goes to standard error: standard output has rows alone."""
    print_text(text, sys.stderr)


def print_text(text: str, file: TextIO | None = None) -> None:
    """Prints sentences. On a terminal no word is broken, and what does not fit goes on in the next line, further in."""
    file = file or sys.stdout
    for line in text.split("\n"):
        if file.isatty():
            further = " " * (len(line) - len(line.lstrip()) + 2)
            line = textwrap.fill(
                line, _width(), subsequent_indent=further, break_long_words=False, break_on_hyphens=False
            )  # fmt: skip
        print(line, file=file, flush=True)


def _sums(report: Mapping[str, Any]) -> str:
    lines = report["partitions"]
    details = report["details"]
    took = f"{report['seconds']:.1f} s"
    if not lines and not any(details.values()):
        return f"nothing to do, {took}"
    failed = f" ({report['failed']:,} failed)" if report["failed"] else ""
    partitions = _partitions(report) + failed
    if "cleanable_bytes" in details:
        dirty = human_bytes(details["cleanable_bytes"])
        clean = human_bytes(details["clean_bytes"])
        return f"{partitions}, {dirty} to clean beside {clean} that are clean. Which records go, only their keys say"
    if any("records_to_erase" in line for line in lines):
        return ", ".join([partitions, *_sums_to_erase(report), took])
    sums = [partitions] if lines else []
    sums += _sums_done(report)
    searched = [*_sums_searched(details)]
    return ", ".join([*(sums or ["nothing to do"]), *searched, took])


def _partitions(report: Mapping[str, Any]) -> str:
    """How many partitions a job worked on. Indexes have several lines of one partition."""
    lines = report["partitions"]
    if report["job"] != "index":
        return plural(len(lines), "partition")
    partitions = {(line["topic"], line["partition"]) for line in lines}
    indexes = len({(line["topic"], line.get("on")) for line in lines})
    return f"{indexes:,} index{'' if indexes == 1 else 'es'}, {plural(len(partitions), 'partition')}"


def _sums_to_erase(report: Mapping[str, Any]) -> Iterator[str]:
    """Of a dry run of an erasure."""
    erased, tombstones = (sum(line.get(name, 0) for line in report["partitions"]) for name in _ERASED)
    yield f"{plural(erased, 'record')} would be erased"
    if tombstones:
        yield f"{plural(tombstones, 'tombstone')} would be appended"
    earlier = report["details"].get(_EARLIER)
    if earlier:
        yield f"{plural(earlier, 'earlier file')} would be deleted"
    yield from _sums_searched(report["details"])


def _sums_done(report: Mapping[str, Any]) -> Iterator[str]:
    """What a job did to records, bytes and files."""
    details = report["details"]
    records = report["records_in"], report["records_out"]
    if any(records):
        yield f"{shown_change('records', *records)} record{'' if records == (1, 1) else 's'}"
    log_bytes = report["bytes_in"], report["bytes_out"]
    if any(log_bytes):
        yield shown_change("bytes", *log_bytes)
    if report["dropped"]:
        yield f"dropped: {_reasons(report['dropped'])}"
    for name, noun in _OTHER_FILES.items():
        if details.get(name):
            yield plural(details[name], noun)
    if details.get(_EARLIER):
        yield f"{plural(details[_EARLIER], 'earlier file')} deleted"


def _sums_searched(details: Mapping[str, Any]) -> Iterator[str]:
    """What an erasure read to find its records."""
    if "segments_read" in details:
        yield searched_segments(details["segments_read"], details["segments_by_index"])


def searched_segments(read: int, by_index: int) -> str:
    """How many segments a search of keys read: "3 segments read, 97 spared by the index"."""
    spared = f", {by_index:,} spared by the index" if by_index else ""
    return f"{plural(read, 'segment')} read{spared}"


def _over(details: Mapping[str, Any]) -> str:
    reasons = {
        "held_young_bytes": "are younger than --min-retention",
        "held_active_bytes": "in active segments",
        "held_compacted_bytes": "in topics that are only compacted",
    }
    held = [f"{human_bytes(details[name])} {why}" for name, why in reasons.items() if details.get(name)]
    above = f"{human_bytes(details['over_bytes'])} above --max-bytes {human_bytes(details['max_bytes'])}"
    return f"{above}: {', '.join(held)}" if held else above


def _short(line: Mapping[str, Any], job: str) -> dict[str, Any]:
    """What changed: the columns of a terminal. --output wide has all."""
    columns = {name: line.get(name) for name in ("topic", "partition", "action", "reason")}
    columns |= {"action": None} if line["action"] == job else {}
    for name in ("records", "bytes"):
        before = line.get(f"{name}_in", 0)
        after = line.get(f"{name}_out", 0)
        if before or after:
            columns[name] = shown_change(name, before, after)
    if job == "index":
        columns |= short_of_index(line)
    for name in ("dirty_ratio", "cleanable_bytes", *_ERASED):  # of a dry run
        columns[name.removesuffix("_to_append").replace("records_", "")] = line.get(name)
    return columns | {"dropped": _reasons(line.get("dropped") or {}) or None}


def _reasons(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())


def shown_change(name: str, before: int, after: int) -> str:
    """What became of so many records or bytes: "119,497 → 55", or one number where they are as many."""
    shown = human_bytes if name == "bytes" else "{:,}".format
    return shown(after) if before == after else f"{shown(before)} → {shown(after)}"


def _text(name: str, line: Mapping[str, Any]) -> Any:
    value = line.get(name)
    if name == "sealed" and value is not None and len(value) < line["sealed_segments"]:
        half = len(value) // 2  # a report shows the first and the last few of many offsets
        return ", ".join(map(str, value[:half])) + " … " + ", ".join(map(str, value[half:]))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {count}" for name, count in value.items())
    if name.endswith("bytes") or name in ("bytes_in", "bytes_out"):
        return value if value is None or isinstance(value, str) else Bytes(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value[:6])) + (f" … ({len(value)})" if len(value) > 6 else "")
    return value


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


def show_any_text() -> None:
    """Has standard output print a character that its encoding lacks as Python's escape of it: with LC_ALL=C or
    PYTHONIOENCODING=ascii a table would end in a traceback, after the rows before it. Bytes of records stay unchanged.
    """
    reconfigure = getattr(sys.stdout, "reconfigure", None)  # a stream of a notebook may have none
    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    if reconfigure is not None and (sys.stdout.errors == "strict" or not is_utf8):
        reconfigure(errors="backslashreplace")


def words_of(error: Exception) -> str:
    """An error's text; of a file that cannot be opened its name and why, without Python's number for it."""
    if isinstance(error, OSError) and not isinstance(error, SegmentsError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:  # of a stream, which has no name
        return "There is no space left where the output is written to"
    return str(error)


@contextlib.contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turns this package's errors into a line on standard error and exit code 1."""
    try:
        yield
    except (SegmentsError, OSError) as error:
        words = words_of(error) if isinstance(error, SegmentsError) else escaped(words_of(error), one_line=True)
        print(f"error: {words}", file=sys.stderr)
        raise SystemExit(FAILED) from error
    except UnicodeEncodeError as error:  # half of a surrogate pair: an argument whose bytes are not UTF-8
        print(f"error: A text is not UTF-8: character {error.start + 1} of {error.object!r:.100}", file=sys.stderr)
        raise SystemExit(FAILED) from error
    except OverflowError as error:  # of Arrow and numpy, whose numbers have 64 bits at most
        print(f"error: A number is too large for what it stands for ({error})", file=sys.stderr)
        raise SystemExit(FAILED) from error
