"""The kit: asks a reader all that the vectors ask, and compares its answers with theirs."""

from __future__ import annotations

import itertools
import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from spark_segments.conformance.vectors import Request, Vector, read_index

Answer = dict[str, Any]

Reader = Callable[[Request], Iterable[Answer]]
"""Answers a request: records, if it asks for such, and one closing line."""

_CLOSING = ("end", "topics", "offsets", "offset", "refused", "unsupported")
_NOTHING_MORE = object()

PASSED, FAILED, UNSUPPORTED = "passed", "failed", "not supported"


def check_reader(root: Path, reader: Reader, say: Callable[[str], object]) -> Counter[str]:
    """Asks a reader everything, says each failure in a line, and counts the outcomes."""
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        for vector in read_index(root):
            directory = vector.lay_out(Path(place))
            for request in vector.requests:
                outcome, why = _judged(vector, request, reader(vector.ask(request, directory)))
                outcomes[outcome] += 1
                if outcome == FAILED:
                    asked = " ".join(str(request[name]) for name in _SAID if name in request)
                    say(f"FAILED {vector.name} ({vector.about}; {', '.join(vector.rules)}): {asked}: {why}")
    return outcomes


_SAID = ("request", "topic", "partition", "timestamp", "version", "isolation_level")


def _judged(vector: Vector, request: Request, answers: Iterable[Answer]) -> tuple[str, str]:
    """(the outcome of a request, what is wrong)."""
    closing: Answer | None = None
    records = vector.expected(request)

    def given() -> Iterator[Answer]:
        nonlocal closing
        for answer in answers:
            if any(name in answer for name in _CLOSING) and "key" not in answer:
                closing = answer
                return
            yield answer

    wrong, count = "", 0
    for number, (mine, theirs) in enumerate(itertools.zip_longest(records or (), given(), fillvalue=_NOTHING_MORE)):
        count += theirs is not _NOTHING_MORE
        if mine != theirs and not wrong:
            there = "no record" if theirs is _NOTHING_MORE else json.dumps(theirs)
            expected = "no record" if mine is _NOTHING_MORE else json.dumps(mine)
            wrong = f"record {number}: expected {expected[:300]}, found {there[:300]}"
    if closing is None:
        return FAILED, "the reader ended before it answered"
    if "unsupported" in closing:
        return UNSUPPORTED, ""
    if request.get("refused"):
        return (PASSED, "") if "refused" in closing else (FAILED, f"expected an error, found {closing}")
    if "refused" in closing:
        return FAILED, f"expected an answer, found the error {closing['refused']}"
    if records is not None:
        wrong = wrong or ("" if closing.get("end") == count else f"expected end {count}, found {closing}")
        return (FAILED, wrong) if wrong else (PASSED, "")
    name = next(name for name in ("topics", "offsets", "offset") if name in request)
    if closing.get(name, _NOTHING_MORE) != request[name]:
        return FAILED, f"expected {name} {request[name]}, found {closing}"
    return PASSED, ""


class CommandReader:
    """A reader that is a program: a line of JSON to its standard input is a request, its lines are the answers."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, request: Request) -> Iterator[Answer]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
        except BrokenPipeError:
            self.close()
            return
        for line in stdout:
            answer = json.loads(line)
            yield answer
            if any(name in answer for name in _CLOSING) and "key" not in answer:
                return
        self.close()  # it has ended: the next request starts it again

    def close(self) -> None:
        """Ends the program."""
        if self._process is not None:
            process, self._process = self._process, None
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.wait()
