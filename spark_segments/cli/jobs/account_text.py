"""The account of a key as sentences: what has it, and until when."""

from __future__ import annotations

from collections import Counter

from spark_segments.cli.page.words import moment
from spark_segments.maintenance.erasure.copies import ACTIVE, LIVE, REMOVED_FILE, KeyAccount, KeyCopy

SHOWN = 20
"""How many files are named at most."""


def account_text(account: KeyAccount) -> str:
    """A sentence for each file, and what nobody can know from the log directory."""
    records: Counter[str] = Counter()
    for copy in account.copies:
        records[copy.state] += copy.values
    live = records[LIVE] + records[ACTIVE]
    lines = [
        f"Key {account.key.decode(errors='replace')!r} of topic {account.topic}, version {account.version}: "
        + (f"{live:,} values in the log" if live else "no value in the log")
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
    lines.append("Nobody can tell from here: exports, backups and copies of files, what readers have taken.")
    return "\n".join(lines)


def _line(copy: KeyCopy) -> str:
    tombstones = copy.records - copy.values
    parts = [f"{copy.values:,} values"] if copy.values or not copy.records else []
    parts += [f"{tombstones:,} tombstones"] if tombstones else []
    parts += [f"{copy.outside:,} records that no reader sees"] if copy.outside else []
    offsets = (
        f", partition {copy.partition}, offsets {copy.first_offset:,} to {copy.last_offset:,}" if copy.records else ""
    )
    bounds = copy.files_deleted
    if bounds is None or bounds.earliest_ms is None:
        until = "it stays until it is erased"
    elif bounds.latest_ms is None:
        until = f"the file goes at {moment(bounds.earliest_ms)} at the earliest, and more than time must pass"
    else:
        until = f"the file goes by {moment(bounds.latest_ms)}, if the jobs run"
    return f"  {copy.state} {copy.path}: {' and '.join(parts)}{offsets}; {until}."
