"""Whether a topic's own row, the rows of its transactions and the clocks of its segments' rows can be true."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import LogDirError
from spark_segments.format.sidecars.checkpoints import is_topic_id
from spark_segments.log.findings import Findings
from spark_segments.log.manifest.role import Role
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import Captured, CapturedBatch, Hole, Undecided
from spark_segments.log.manifest.transaction import Transaction

AHEAD_MS = 24 * 60 * 60 * 1000
"""How far a writer's clock may be ahead of the store's."""


def readable(snapshot: Snapshot, findings: Findings) -> Snapshot:
    """The snapshot without states that cannot be read, each of which is a finding: other checks go by the rest."""
    states = {}
    for name, value in snapshot.states.items():
        try:
            for kind in (Hole, Undecided, Captured, CapturedBatch):
                kind.of({name: value})
            states[name] = value
        except LogDirError as error:
            findings.add_error(error, rule="M27" if kind in (Hole, Undecided) else None)
    return snapshot if len(states) == len(snapshot.states) else dataclasses.replace(snapshot, states=states)


def check_topic(snapshot: Snapshot, findings: Findings) -> None:
    """Checks the topic's row."""
    if not is_topic_id(snapshot.topic_id):
        expected = "22 characters of URL-safe base64: a UUID"
        findings.add("The topic id is no UUID", rule="M29", expected=expected, found=snapshot.topic_id)
    try:
        role = snapshot.role.name
    except LogDirError as error:
        role = str(error)
    roles = (Role.LEADER, Role.FOLLOWER, Role.FENCED)
    if role not in roles:
        findings.add("The topic's role is unknown", rule="M26", expected=", ".join(roles), found=role)
    for hole in Hole.of(snapshot.states):
        if not 0 <= hole.start_offset < hole.end_offset:
            found = f"{hole.start_offset} to {hole.end_offset}"
            findings.add("A hole has no offsets", rule="M27", partition=hole.partition, expected="some", found=found)
    for transaction in Undecided.of(snapshot.states):
        message, expected = "A captured transaction is undecided", "its end (segments capture --recapture: a true copy)"
        findings.add(message, partition=transaction.partition, expected=expected, found=transaction)
    for number, one in Captured.of(snapshot.states).items():
        if one.late:
            expected = "within delete.retention.ms of the time before"
            findings.add("A compacted partition was captured late", partition=number, expected=expected, found="later")


def check_shared_rows(live: pa.Table, findings: Findings) -> None:
    """Rows of shared objects are chunks."""
    sealed = pc.and_(pc.is_valid(live.column("index_position")), pc.equal(live.column("state"), "sealed"))
    for path, partition in _places(live.filter(sealed)):
        message = "A run of a shared object is sealed by its row"
        findings.add(message, rule="O5", partition=partition, path=path, expected="chunk", found="sealed")


def check_clocks(segments: pa.Table, now_ms: int, findings: Findings) -> None:
    """No row was written, or left the log, in the future: rolls, retention and vacuum would wait for it."""
    for name in ("created_ms", "removed_ms"):
        ahead = pc.fill_null(pc.greater(segments.column(name), now_ms + AHEAD_MS), False)
        rows = segments.filter(ahead)
        for (path, partition), moment_ms in zip(_places(rows), rows.column(name).to_pylist(), strict=True):
            findings.add(
                f"A row's {name} lies in the future",
                severity=Findings.WARNING,  # of a clock that was wrong for a while; no record is
                rule="M17",
                partition=partition,
                path=path,
                expected=f"at most {now_ms + AHEAD_MS}, a day after the store's clock",
                found=moment_ms,
            )


def check_applications(transactions: Sequence[Transaction], findings: Findings) -> None:
    """Each application has one last transaction."""
    for application, count in Counter(one.application for one in transactions).items():
        if count > 1:
            message = "An application has several rows of transactions"
            findings.add(message, rule="M25", expected="one row", found=f"{count} of {application}")


def _places(rows: pa.Table) -> list[tuple[str, int]]:
    return list(zip(rows.column("path").to_pylist(), rows.column("partition").to_pylist(), strict=True))
