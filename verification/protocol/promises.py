"""What must hold in every state of the model, whatever has happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from verification.protocol.model import ACKNOWLEDGED, DEFINITE, REPEATED, Append, Program
from verification.protocol.state import FENCED, State, Version


def broken(state: State, programs: Sequence[Program]) -> str | None:
    """The promise that the state breaks, None where all hold."""
    return _of_versions(state.versions) or _of_appends(state, programs) or _of_outcomes(state, programs)


def _of_versions(versions: Sequence[Version]) -> str | None:
    latest = versions[-1]  # every version was the latest of an earlier state
    if any(before.end > after.base for before, after in pairwise(latest.rows)) or latest.rows[-1].end > latest.log_end:
        return "rows overlap or reach beyond the log end"
    if len(versions) < 2:
        return None
    before = versions[-2]
    if latest.log_end < before.log_end or latest.log_start < before.log_start:
        return "an offset went back"
    if before.role == FENCED and latest.operation != "promote":
        return "a fenced topic took a commit"
    there = dict(latest.records)
    for offset, text in before.records:
        if offset >= latest.log_start and offset not in there:
            newer = [at for at, other in latest.records if at > offset and _key(other) == _key(text)]
            if not newer or latest.operation != "compact":
                return "a record is gone that is the newest of its key"
        elif offset >= latest.log_start and there[offset] != text:
            return "a record has another offset than before"
    return None


def _of_appends(state: State, programs: Sequence[Program]) -> str | None:
    added = Counter(text for _, text in state.versions[-1].records)
    for program in programs:
        if isinstance(program, Append) and added[program.record] > 1:
            return "an append is in the log twice"
    return None


def _of_outcomes(state: State, programs: Sequence[Program]) -> str | None:
    for program, process in zip(programs, state.processes, strict=True):
        commit_id = f"{program.name}.{process.life}"
        made = [version for version in state.versions if version.commit_id.startswith(commit_id)]
        pending = [one for one in state.late if one.request.version.commit_id.startswith(commit_id)]
        if process.outcome == ACKNOWLEDGED:
            if len(made) != 1:
                return f"an acknowledged commit happened {len(made)} times"
            if isinstance(program, Append) and (process.offsets or (-1,))[0] not in dict(state.versions[-1].records):
                return "an acknowledged record is not in the log"
            if isinstance(program, Append) and dict(state.versions[-1].records)[process.offsets[0]] != program.record:
                return "an acknowledged record has another offset than its writer was told"
        elif process.outcome in DEFINITE:
            if made:
                return "a commit happened whose caller was told that it did not"
            if any(one.request.base == state.latest for one in pending):
                return "a commit may happen yet whose caller was told that it did not"
            is_there = isinstance(program, Append) and program.record in dict(state.versions[-1].records).values()
            if process.outcome == REPEATED and not is_there:
                return "an append was called a repeat that is not in the log"
    return None


def _key(text: str) -> str:
    return text.partition("=")[0]
