"""The kit: asks a reader all that the vectors ask, and compares its answers with theirs."""

from __future__ import annotations

import contextlib
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

PASSED = "passed"
FAILED = "failed"
UNSUPPORTED = "not supported"


def check_reader(root: Path, reader: Reader, say: Callable[[str], object]) -> Counter[str]:
    """Asks a reader everything, says each failure in a line, and counts the outcomes."""
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        for vector in read_index(root):
            directory = vector.lay_out(Path(place))
            for request in vector.requests:
                answers = _while_it_changes(vector, directory, reader(vector.ask(request, directory)))
                outcome, why = _judged(vector, request, answers)
                outcomes[outcome] += 1
                if outcome == FAILED:
                    request_text = " ".join(str(request[name]) for name in _SAID if name in request)
                    say(f"FAILED {vector.name} ({vector.about}; {', '.join(vector.rules)}): {request_text}: {why}")
    return outcomes


_SAID = ("request", "topic", "partition", "timestamp", "version", "isolation_level")


def _while_it_changes(vector: Vector, directory: Path, answers: Iterable[Answer]) -> Iterator[Answer]:
    """The answers but for pauses. At the first one the directory changes, before the reader goes on."""
    has_changed = vector.then is None
    for answer in answers:
        if "paused" not in answer:
            yield answer
        elif not has_changed:
            vector.change(directory)
            has_changed = True


def _judged(vector: Vector, request: Request, answers: Iterable[Answer]) -> tuple[str, str]:
    """(the outcome of a request, what is wrong)."""
    records = vector.expected(request)
    mismatch, count, closing = _compared(records or (), answers)
    if closing is None:
        return FAILED, "the reader ended before it answered"
    if "unsupported" in closing:
        return UNSUPPORTED, ""
    if request.get("refused"):
        return (PASSED, "") if "refused" in closing else (FAILED, f"expected an error, found {closing}")
    if "refused" in closing and request.get("may_refuse"):
        return PASSED, ""
    if "refused" in closing:
        return FAILED, f"expected an answer, found the error {closing['refused']}"
    if records is not None:
        if not mismatch and closing.get("end") != count:
            mismatch = f"expected end {count}, found {closing}"
        return (FAILED, mismatch) if mismatch else (PASSED, "")
    name = next(name for name in ("topics", "offsets", "offset") if name in request)
    if closing.get(name, _NOTHING_MORE) != request[name]:
        return FAILED, f"expected {name} {request[name]}, found {closing}"
    return PASSED, ""


def _compared(records: Iterable[Answer], answers: Iterable[Answer]) -> tuple[str, int, Answer | None]:
    """(the first record that differs, how many records the reader gave, its closing line). All answers are taken up to
    the closing line, also behind a difference: the next request would get the rest.
    """
    mismatch = ""
    count = 0
    closing: Answer | None = None
    expected = iter(records)
    for answer in answers:
        if _is_closing(answer):
            closing = answer
            break
        record = next(expected, _NOTHING_MORE)
        if record != answer and not mismatch:
            mismatch = _mismatch(count, record, answer)
        count += 1
    record = next(expected, _NOTHING_MORE)
    if record is not _NOTHING_MORE and not mismatch:
        mismatch = _mismatch(count, record, _NOTHING_MORE)
    return mismatch, count, closing


def _mismatch(number: int, expected: object, found: object) -> str:
    texts = ["no record" if record is _NOTHING_MORE else json.dumps(record)[:300] for record in (expected, found)]
    return f"record {number}: expected {texts[0]}, found {texts[1]}"


def _is_closing(answer: Answer) -> bool:
    """Whether an answer is no record. A record has an offset, too, but no closing line has a key."""
    return any(name in answer for name in _CLOSING) and "key" not in answer


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
            if _is_closing(answer):
                return
            if "paused" in answer:
                stdin.write("{}\n")
                stdin.flush()
        self.close()  # it has ended: the next request starts it again

    def close(self) -> None:
        """Ends the program."""
        if self._process is not None:
            process = self._process
            self._process = None
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # a program that has ended leaves what was not sent
                        pipe.close()
            process.wait()
