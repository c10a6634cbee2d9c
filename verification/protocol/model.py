"""The commit protocol as a function from a state to the states that can follow it.

A commit reads the latest version, plans, and sends a request that makes the next version only if it is not there. After
any failure it reads again and looks for its commit id in all versions since its first try. It says that nothing was
committed only if none of its tries can happen any more.

`Rules` has a field for each thing that the protocol does for safety. A field that is False plants the fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from verification.protocol.state import FENCED, LEADER, Late, Process, Row, State, Step, Try, Version, shared

FAILURES = 2
"""Failed tries in a row, and looks in doubt, before a commit gives up."""

ACKNOWLEDGED, REPEATED, NOTHING, REFUSED = "acknowledged", "repeated", "nothing", "refused"
UNKNOWN, DEAD = "unknown", "dead"
DEFINITE = (REPEATED, NOTHING, REFUSED)
"""Outcomes that say: this commit added nothing, and never will."""


@dataclass(frozen=True)
class Append:
    """Appends one record. With a transaction its caller sends it again, up to `lives` times, until it has an answer."""

    name: str
    record: str
    transaction: str | None = None
    lives: int = 1


@dataclass(frozen=True)
class Compact:
    """Compacts the sealed segments: reads them, then commits what is left of them in their place."""

    name: str
    lives: int = 1


@dataclass(frozen=True)
class DeleteRecords:
    """Moves the log start up to an offset."""

    name: str
    before: int
    lives: int = 1


@dataclass(frozen=True)
class Fence:
    """Takes the topic out of use, as a promotion of another topic does."""

    name: str
    lives: int = 1


Program = Append | Compact | DeleteRecords | Fence


@dataclass(frozen=True)
class Rules:
    """What the protocol does for safety. False plants a fault."""

    looks_after_failure: bool = True
    looks_after_conflict: bool = True
    looks_at_all_versions: bool = True
    one_id_for_all_tries: bool = True
    knows_doubt: bool = True
    looks_in_doubt: bool = True
    checks_transaction: bool = True
    checks_transaction_each_try: bool = True
    gives_offsets_again: bool = True
    checks_role_each_try: bool = True
    checks_rows: bool = True
    swaps: bool = True


class Refused(Exception):
    """The plan does not hold: the topic takes no such commit any more."""


class _Plan(NamedTuple):
    """What a try is made of."""

    program: Program
    process: Process
    rules: Rules


def steps(state: State, programs: Sequence[Program], rules: Rules) -> Iterator[tuple[Step, State]]:
    """Every step that is possible, and the state after it."""
    for number, (program, process) in enumerate(zip(programs, state.processes, strict=True)):
        for what, after in _of_process(state, _Plan(program, process, rules), number):
            yield Step(program.name, what), after
    for late in state.late:
        after = state._replace(late=tuple(one for one in state.late if one != late))
        yield Step(late.process, "lands"), _carried_out(after, late.request, rules)


def _of_process(state: State, plan: _Plan, number: int) -> Iterator[tuple[str, State]]:
    process = plan.process

    def moved(to: Process, at: State = state, faults: int = 0) -> State:
        there = (*at.processes[:number], to, *at.processes[number + 1 :])
        return at._replace(processes=there, faults=at.faults - faults)

    if process.phase == "done":
        if process.outcome in (UNKNOWN, DEAD) and process.life < plan.program.lives:
            yield "again", moved(Process(life=process.life + 1))
        return
    if process.phase == "new" and isinstance(plan.program, Compact):
        yield "begin", moved(_begun(state, process))
    elif process.phase in ("new", "working", "read"):
        yield "read", moved(_read(state, plan))
    elif process.phase == "doubt":
        yield "read", moved(_look(state, plan))
    elif process.phase == "send":
        assert process.planned is not None
        request = Try(process.base, process.planned)
        sent = process._replace(phase="read", sent=(*process.sent, request), planned=None)
        if process.base == state.latest or not plan.rules.swaps:
            done = _carried_out(state, request, plan.rules)
            yield "carried out", moved(_done(sent, ACKNOWLEDGED, len(sent.sent) - 1), done)
            if state.faults:
                yield "reply lost", moved(sent, done, faults=1)
                yield "refused", moved(sent, faults=1)
                late = tuple(sorted((*state.late, Late(plan.program.name, request))))
                yield "late", moved(sent, state._replace(late=late), faults=1)
        else:
            conflict = sent if plan.rules.looks_after_conflict else sent._replace(sent=())
            yield "taken", moved(conflict)
    if state.faults and process.phase != "new":
        yield "dies", moved(_done(process, DEAD), faults=1)
        if process.phase in ("read", "doubt"):
            unread = process._replace(phase="doubt") if process.phase == "read" else _looked(process)
            yield "cannot read", moved(_undecided(unread, plan.rules), faults=1)


def _carried_out(state: State, request: Try, rules: Rules) -> State:
    """The state after the store makes the version. A request that comes too late changes nothing."""
    if rules.swaps:
        if request.base != state.latest:
            return state
        made = request.version
    else:  # rebased in silence: the rows that the request adds join whatever is there
        there = {row.name for row in state.versions[request.base].rows}
        added = tuple(row for row in request.version.rows if row.name not in there)
        latest = state.versions[-1]
        made = shared(request.version._replace(rows=(*latest.rows, *added)))
    versions = (*state.versions, made)
    late = tuple(one for one in state.late if one.request.base == len(versions) - 1 or not rules.swaps)
    return state._replace(versions=versions, late=late)


def _begun(state: State, process: Process) -> Process:
    version = state.versions[-1]
    if max(version.first_dirty, version.log_start) >= _active_base(version):
        return _done(process, NOTHING)
    return process._replace(phase="working", work=version)


def _read(state: State, plan: _Plan) -> Process:
    """Reads the latest version, looks for an earlier try, and plans the next one."""
    process, rules, latest = plan.process, plan.rules, state.latest
    if process.phase == "read":
        if process.sent and rules.looks_after_failure:
            found = _found(state, plan)
            if found is not None:
                return _done(process, ACKNOWLEDGED, found)
        failures = process.failures + 1 if process.base == latest else 0
        process = process._replace(failures=failures)
        if failures >= FAILURES:
            return _undecided(process._replace(phase="doubt"), rules)
    try:
        version, transaction = state.versions[-1], getattr(plan.program, "transaction", None)
        first = process.phase != "read"
        if first and isinstance(plan.program, Append) and version.role != LEADER:
            raise Refused  # before any record is written, and so before the transaction is looked for
        checks = rules.checks_transaction and (first or rules.checks_transaction_each_try)
        if checks and transaction in version.transactions:
            return _done(process, REPEATED)
        planned = _planned(version, plan._replace(process=process), first=first)
    except Refused:
        return _undecided(process._replace(phase="doubt"), rules) if process.sent else _done(process, REFUSED)
    if planned is None:
        if not _may_happen(process, latest):
            return _done(process, NOTHING)
        return process._replace(phase="read", base=latest)
    return process._replace(phase="send", base=latest, planned=shared(planned))


def _look(state: State, plan: _Plan) -> Process:
    """A look in doubt: an error came after a try was sent."""
    process = plan.process
    found = _found(state, plan) if plan.rules.looks_in_doubt and process.sent else None
    if found is not None:
        return _done(process, ACKNOWLEDGED, found)
    if not _may_happen(process, state.latest):
        return _done(process, REFUSED)
    return _undecided(_looked(process), plan.rules)


def _looked(process: Process) -> Process:
    return process._replace(looks=process.looks + 1)


def _undecided(process: Process, rules: Rules) -> Process:
    """In doubt, until the looks are used up."""
    if not rules.knows_doubt:
        return _done(process, REFUSED)
    return _done(process, UNKNOWN) if process.looks >= FAILURES else process


def _may_happen(process: Process, latest: int) -> bool:
    return bool(process.sent) and process.sent[-1].base == latest


def _found(state: State, plan: _Plan) -> int | None:
    """The number of the try that a version since the first try was made by."""
    process, rules = plan.process, plan.rules
    versions = state.versions[process.sent[0].base + 1 :]
    ids = {one.version.commit_id for one in process.sent[-1:]}  # all tries have the same, unless a fault is planted
    for version in versions if rules.looks_at_all_versions else versions[-1:]:
        if version.commit_id in ids:
            return version.attempt
    return None


def _done(process: Process, outcome: str, attempt: int | None = None) -> Process:
    offsets = None
    if attempt is not None:
        made = process.sent[attempt].version
        mine = [row for row in made.rows if row.name == made.commit_id]
        offsets = (mine[0].base, mine[0].end - 1) if mine and not mine[0].sealed else None
    return Process("done", process.life, outcome=outcome, offsets=offsets)


def _planned(version: Version, plan: _Plan, *, first: bool) -> Version | None:
    """The version that the process wants to make of the latest one. None where nothing is to do."""
    program, process, rules = plan.program, plan.process, plan.rules
    commit_id = f"{program.name}.{process.life}"
    if not rules.one_id_for_all_tries:
        commit_id += f".{len(process.sent)}"
    made = version._replace(commit_id=commit_id, attempt=len(process.sent))
    if isinstance(program, Fence):
        return made._replace(operation="promote", role=FENCED)
    after = _changed(made, version, plan, commit_id)
    if after is not None and version.role != LEADER and (first or rules.checks_role_each_try):
        raise Refused
    return after


def _changed(made: Version, version: Version, plan: _Plan, commit_id: str) -> Version | None:
    program, process, rules = plan.program, plan.process, plan.rules
    if isinstance(program, Append):
        base = version.log_end
        if process.sent and not rules.gives_offsets_again:
            base = process.sent[0].version.log_end - 1
        row = Row(commit_id, base, base + 1, ((base, program.record),))
        transactions = version.transactions | ({program.transaction} if program.transaction else set())
        return made._replace(operation="append", rows=(*version.rows, row), log_end=base + 1, transactions=transactions)
    if isinstance(program, DeleteRecords):
        if program.before <= version.log_start:
            return None
        first_dirty = max(version.first_dirty, program.before)
        return made._replace(operation="delete-records", log_start=program.before, first_dirty=first_dirty)
    assert isinstance(program, Compact) and process.work is not None
    return _compacted(made, version, process.work, commit_id, checks_rows=rules.checks_rows)


def _compacted(made: Version, version: Version, work: Version, commit_id: str, *, checks_rows: bool) -> Version | None:
    """`version` with what compaction left of the segments of `work` in place of them."""
    start, end = version.log_start, _active_base(work)
    read = [row for row in work.rows if row.sealed]
    if checks_rows:
        if max(version.first_dirty, start) != max(work.first_dirty, start) or start < work.log_start:
            return None
        if any(row not in version.rows for row in read):
            return None
    newest = {_key(text): offset for row in read for offset, text in row.records}
    kept = tuple((at, text) for row in read for at, text in row.records if newest[_key(text)] == at)
    output = Row(commit_id, read[0].base, end, kept, sealed=True)
    rows = tuple(row for row in version.rows if row not in read)
    return made._replace(operation="compact", rows=(output, *rows), first_dirty=max(end, start))


def _active_base(version: Version) -> int:
    return max(row.end for row in version.rows if row.sealed)


def _key(text: str) -> str:
    return text.partition("=")[0]
