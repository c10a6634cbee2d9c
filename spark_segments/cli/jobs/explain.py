"""`segments explain`: why a record is still in the log and when it goes, as sentences for the people who run a log."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from spark_segments.cli.command_options import (
    KEY,
    KEY_BASE64,
    NOW_MS,
    OUTPUT,
    TOPIC,
    ConfiguredLogOptions,
    key_bytes,
    option,
    with_options,
)
from spark_segments.cli.output import Output, print_json, print_text, searched_segments
from spark_segments.cli.page.words import UNITS, duration, when
from spark_segments.errors import InvalidOptionError
from spark_segments.maintenance.explanation.record_explanation import (
    Explanation,
    RecordState,
    Rule,
    Step,
    TimeBounds,
    Wait,
)
from spark_segments.maintenance.retention.retention_plan import BELOW_LOG_START, RETENTION_BYTES, RETENTION_MS
from spark_segments.maintenance.rolling.roll_plan import EXPIRED
from spark_segments.quantities import Duration, human_bytes, moment, plural, span_ms

if TYPE_CHECKING:
    from spark_segments.face.topic import Topic
    from spark_segments.maintenance.erasure.copies import KeyAccount, KeyCopy


@with_options
def explain(
    location: ConfiguredLogOptions,
    topic: str = TOPIC,
    partition: int | None = option("The partition; needed where the topic has several."),
    offset: int | None = option("The record at this offset.", min=0),
    at: str | None = option("The first record of this time or later.", "--time", metavar="TIME"),
    key: list[str] | None = KEY,
    key_base64: list[str] | None = KEY_BASE64,
    every: str = option("How often each job runs.", default="1h", metavar="DURATION"),
    output: Output = OUTPUT,
    now_ms: int | None = NOW_MS,
) -> None:
    """Says which rule keeps a record, what must happen before it goes, and when.

    "At the earliest" holds for any later appends. "At the latest" holds if
    each job runs again after --every at most.

    --key names every file that has records of a key, also files that only
    readers of earlier versions see, and until when. It reads every segment,
    but for those in which the index of the topic's keys does not have it.

    Example: segments explain /data/log orders --partition 0 --offset 1234
    Example: segments explain /data/log orders --time 2026-01-31T12:00:00Z
    Example: segments explain /data/log customers --key ada@example.org
    """
    keys = key_bytes(key, key_base64)
    if (offset is not None) + (at is not None) + len(keys) != 1:
        raise typer.BadParameter("--offset, --time or --key must name the record, and only one of them")
    here = location.open().topic(topic)
    explanation, text = explained(here, partition, offset, at, keys, every_ms=every, now_ms=now_ms)
    if output is Output.JSON:
        print_json(explanation.to_dict())
    else:
        is_missing = isinstance(explanation, Explanation) and explanation.state == RecordState.NOT_WRITTEN
        print_text(text, sys.stderr if is_missing else sys.stdout)


def explained(
    topic: Topic,
    partition: int | None,
    offset: int | None,
    at: str | None,
    keys: Sequence[bytes],
    *,
    every_ms: Duration,
    now_ms: int | None = None,
) -> tuple[Explanation | KeyAccount, str]:
    """What is known of a record, or of a key, as a value and as text."""
    if keys:
        from spark_segments.maintenance.erasure.copies import key_account

        account = key_account(topic.log, topic.name, keys[0], every_ms=span_ms(every_ms), now_ms=now_ms)
        return account, account_text(account)
    number = _only_partition(topic.offsets()) if partition is None else partition
    explanation = topic.explain(number, offset, at, every_ms=every_ms, now_ms=now_ms)
    return explanation, explanation_text(explanation)


def _only_partition(offsets: dict[int, tuple[int, int]]) -> int:
    if len(offsets) > 1:
        raise InvalidOptionError(
            "The topic has several partitions", expected=f"--partition 0 to {len(offsets) - 1}", found="none"
        )
    return next(iter(offsets))


_WAITS = {
    Wait.RECORDS: "more records must be appended first",
    Wait.KEYS: "the newest record of a key stays",
    Wait.CLEANING: "cleaning may join its segment with younger segments, and retention waits for those",
    Wait.TIMESTAMPS: "timestamps are missing, or far ahead of the clock",
    Wait.LOG_START: "the log start must pass the end of its segment",
}

_KEPT_BY: Mapping[str, str] = {
    Rule.ACTIVE_SEGMENT: "It is kept because no job removes records from the active segment.",
    Rule.NEWEST_OF_KEY: "It is kept because cleaning has found no newer record of its key.",
    Rule.FILE_DELETE_DELAY_MS: "Its file is kept by file.delete.delay.ms.",
}


def exactly(length_ms: int) -> str:
    """A duration without rounding, in a single unit while its number is below 100: "25 h", "23 min", "7 d 1 h"."""
    for name, unit_ms in UNITS:
        if length_ms % unit_ms == 0 and 0 < length_ms // unit_ms < 100:
            return f"{length_ms // unit_ms} {name}"
    parts = []
    for name, unit_ms in UNITS:
        number, length_ms = divmod(length_ms, unit_ms)
        if number:
            parts.append(f"{number} {name}")
    return " ".join(parts) or "0 ms"


def explanation_text(explanation: Explanation) -> str:
    """Text of an explanation: where the record is, when it goes, and the steps until then."""
    lines = [_where(explanation)]
    if explanation.steps:
        lines.append(_kept(explanation))
    if explanation.leaves_log is not None:
        lines.append(
            _when("It leaves the log", "It does not leave the log", explanation.leaves_log, explanation.now_ms)
        )
    if explanation.files_deleted is not None:
        happens = "The last file that holds it is deleted"
        never = "The last file that holds it is not deleted"
        lines.append(_when(happens, never, explanation.files_deleted, explanation.now_ms))
    if explanation.waits_for:
        lines.append(f"No latest time can be given: {'; '.join(_WAITS[reason] for reason in explanation.waits_for)}.")
    if explanation.steps:
        lines += ["", f"Next steps, if each job runs every {exactly(explanation.every_ms)}:"]
        lines += [f"  {step.job}: {text}" for step in explanation.steps for text in _step(step, explanation)]
    return "\n".join(lines)


def _where(explanation: Explanation) -> str:
    name = f"Offset {explanation.offset} of {explanation.topic}-{explanation.partition}"
    if explanation.timestamp_ms is not None:
        name += f", with timestamp {moment(explanation.timestamp_ms)},"
    if explanation.state == RecordState.NOT_WRITTEN:
        return f"{name} is not written yet."
    if explanation.state == RecordState.GONE or explanation.segment is None:
        return f"{name} is gone: no file has it any more."
    segment = explanation.segment
    offsets = f"offsets {segment.base_offset} to {segment.next_offset - 1}"
    if explanation.state == RecordState.REMOVED:
        since = "" if (segment.removed_ms or 0) < 0 else f" at {when(segment.removed_ms or 0, explanation.now_ms)}"
        return f"{name} has left the log{since}. The file with {offsets} is kept for readers that began before."
    is_active = explanation.state == RecordState.ACTIVE
    where = "is in the active segment" if is_active else f"is in the sealed segment with {offsets}"
    if explanation.leaves_log is None:
        where += ", below the log start: readers do not see it"
    elif explanation.state == RecordState.SEALED and "compact" in explanation.settings["cleanup.policy"]:
        where += ", if cleaning has not dropped it yet"
    return f"{name} {where}."


def _kept(explanation: Explanation) -> str:
    first = explanation.steps[0]
    if first.job == "roll" and EXPIRED in first.facts["due"]:
        return (
            "No rule keeps it any longer: the next roll seals it and the next retain removes it, unless a younger "
            "record is appended before."
        )
    if first.facts.get("due") is True:
        return "No rule keeps it any longer: the next run of retain removes it."
    if len(explanation.kept_by) == 1:
        [rule] = explanation.kept_by
        return _KEPT_BY.get(rule, f"It is kept by {rule}.")
    rules = ", ".join(explanation.kept_by)
    job = explanation.steps[0].job
    return f"Rules that the next {job} applies: {rules}. Any one of them can remove it; none does yet."


def _when(does: str, does_not: str, bounds: TimeBounds, now_ms: int) -> str:
    if bounds.earliest_ms is None:
        return f"{does_not} under the topic's present settings."
    return f"{does} {_span(bounds, now_ms)}."


def _span(bounds: TimeBounds, now_ms: int) -> str:
    if bounds.earliest_ms is None:
        return "never"
    earliest = "now" if bounds.earliest_ms <= now_ms else when(bounds.earliest_ms, now_ms)
    if bounds.latest_ms is None:
        return f"at the earliest {earliest}"
    return f"at the earliest {earliest}, at the latest {when(bounds.latest_ms, now_ms)}"


def _step(step: Step, explanation: Explanation) -> Iterator[str]:
    """The lines of a step: what the job does, and when."""
    rule = {
        RETENTION_MS: _retention_ms,
        RETENTION_BYTES: _retention_bytes,
        BELOW_LOG_START: _log_start,
        Rule.FILE_DELETE_DELAY_MS: _delay,
    }.get(step.rule, _roll if step.job == "roll" else _compact)
    yield f"{rule(step, explanation)}: {_span(step.window, explanation.now_ms)}"
    if step.job == "compact" and step.facts["tombstones"]:
        yield _tombstones(step, explanation)


def _roll(step: Step, explanation: Explanation) -> str:
    if EXPIRED in step.facts["due"]:
        return (
            "all of the active segment has expired and is due to be rolled, unless a younger record is appended before"
        )
    due = step.facts["due"]
    if due:
        text = f"the active segment is due to be rolled ({', '.join(due)})"
        # Roll seals full segments and leaves the rest: a record near the end can wait for a later run.
        is_all_rolled = step.window.latest_ms == explanation.now_ms + explanation.every_ms
        return text if is_all_rolled else f"{text}, but the record may be in the part that stays active"
    size = human_bytes(step.facts["log_bytes"])
    full = human_bytes(int(explanation.settings["segment.bytes"]))
    text = f"the active segment, which has {size}, is rolled once it has segment.bytes ({full})"
    if step.window.latest_ms is not None:
        segment_ms = step.facts["segment_ms"]
        by_clock = "segment.ms" if int(explanation.settings["segment.ms"]) == segment_ms else "max.compaction.lag.ms"
        text = f"{text}, or once {by_clock} ({duration(segment_ms)}) has passed"
    if "expires_ms" in step.facts:
        expires = when(step.facts["expires_ms"], explanation.now_ms)
        text = f"{text}, or at {expires} if nothing is appended: all of it has expired then"
    return text


def _retention_ms(step: Step, explanation: Explanation) -> str:
    all_older = f"all its records are older than retention.ms ({_ms(explanation, RETENTION_MS)})"
    if "due" in step.facts:
        return f"its segment is removed because {all_older}"
    older = f"its segment is removed once {all_older}"
    if "segment_base_offset" in step.facts:
        largest = moment(step.facts["largest_timestamp_ms"])
        base_offset = step.facts["segment_base_offset"]
        if (
            explanation.state != RecordState.ACTIVE
            and explanation.segment is not None
            and base_offset == explanation.segment.base_offset
        ):
            return f"{older}; its largest timestamp is {largest}"
        return f"{older}, and the segments before it; the segment at {base_offset} has the largest timestamp, {largest}"
    bounds = []
    for word in ("from", "to"):
        at_ms = step.facts[f"largest_timestamp_{word}_ms"]
        if at_ms is not None:
            bounds.append(f"{word} {moment(at_ms)}")
    return f"{older}; its largest timestamp will be {' '.join(bounds)}" if bounds else older


def _retention_bytes(step: Step, explanation: Explanation) -> str:
    kept = f"retention.bytes ({human_bytes(int(explanation.settings[RETENTION_BYTES]))})"
    if "due" in step.facts:
        return f"its segment is removed because the log has {kept} without it"
    if "more_bytes" in step.facts:
        more = human_bytes(step.facts["more_bytes"])
        return f"its segment is removed once {more} more are appended: then the log has {kept} without it"
    return f"its segment is removed once {kept} are appended after it"


def _log_start(step: Step, explanation: Explanation) -> str:
    if step.waits_for == Wait.LOG_START:
        return "its segment is removed once all of it lies below the log start"
    return "its segment is removed because all of it lies below the log start"


def _compact(step: Step, explanation: Explanation) -> str:
    if not step.facts["dirty"]:
        first_dirty = step.facts["first_dirty_offset"]
        return (
            f"cleaning has read the log up to {first_dirty} and kept the record; it drops it for a newer one of its key"
        )
    by_ms = step.facts["cleaned_by_ms"]
    looked = "" if by_ms is None else f"; it has looked for such a record by {when(by_ms, explanation.now_ms)}"
    return f"cleaning drops the record if it finds a newer record of its key{looked}"


def _tombstones(step: Step, explanation: Explanation) -> str:
    horizon_ms = step.facts["delete_horizon_ms"]
    retention = _ms(explanation, "delete.retention.ms")
    kept = f"a tombstone stays for delete.retention.ms ({retention}) after its first cleaning"
    return (
        kept
        if horizon_ms is None
        else f"{kept}; the first delete horizon of its segment is {when(horizon_ms, explanation.now_ms)}"
    )


def _delay(step: Step, explanation: Explanation) -> str:
    delay = _ms(explanation, Rule.FILE_DELETE_DELAY_MS)
    return f"its file is deleted file.delete.delay.ms ({delay}) after it has left the log"


def _ms(explanation: Explanation, name: str) -> str:
    return duration(int(explanation.settings[name]))


SHOWN = 20
"""How many files are named at most."""


def account_text(account: KeyAccount) -> str:
    """A sentence for each file, and what nobody can know from the log directory."""
    from spark_segments.maintenance.erasure.copies import ACTIVE, LIVE, REMOVED_FILE

    records: Counter[str] = Counter()
    for copy in account.copies:
        records[copy.state] += copy.values
    live = records[LIVE] + records[ACTIVE]
    lines = [
        f"Key {account.key.decode(errors='replace')!r} of topic {account.topic}, version {account.version}: "
        + (f"{plural(live, 'value')} in the log" if live else "no value in the log")
        + (f", {records[REMOVED_FILE]:,} in files that left it." if records[REMOVED_FILE] else ".")
    ]
    lines += [_line(copy) for copy in account.copies[:SHOWN]]
    if len(account.copies) > SHOWN:
        lines.append(f"  … and {len(account.copies) - SHOWN:,} further files: --output json names them all.")
    if live:
        lines.append("`segments erase` takes the records out of the log; with --history the files go at once.")
    lines.append(
        "Files that no commit names, of writers and jobs that failed, may have the key: vacuum deletes those that are "
        f"there now by {moment(account.uncommitted_until_ms)}."
    )
    if account.followers:
        lines.append(
            f"These have mirrored the topic: {', '.join(account.followers)}. What the leader erases goes there with "
            "their next mirror and vacuum; `segments explain` there names the files."
        )
    lines.append(f"Searched: {searched_segments(account.segments_read, account.segments_by_index)}.")
    lines.append("Nobody can tell from here: exports, backups and copies of files, what readers have taken.")
    return "\n".join(lines)


def _line(copy: KeyCopy) -> str:
    tombstones = copy.records - copy.values
    parts = [plural(copy.values, "value")] if copy.values or not copy.records else []
    parts += [plural(tombstones, "tombstone")] if tombstones else []
    parts += [f"{plural(copy.outside, 'record')} that no reader sees"] if copy.outside else []
    offsets = (
        f"offset {copy.first_offset:,}"
        if copy.first_offset == copy.last_offset
        else f"offsets {copy.first_offset:,} to {copy.last_offset:,}"
    )
    place = f", partition {copy.partition}, {offsets}" if copy.records else ""
    bounds = copy.files_deleted
    if bounds is None or bounds.earliest_ms is None:
        until = "it stays until it is erased"
    elif bounds.latest_ms is None:
        until = f"the file goes at {moment(bounds.earliest_ms)} at the earliest; how late depends on later appends"
    else:
        until = f"the file goes by {moment(bounds.latest_ms)}, if the jobs run"
    return f"  {copy.state} {copy.path}: {' and '.join(parts)}{place}; {until}."
