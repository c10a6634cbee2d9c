"""The kit for writers: gives a writer a directory and tasks, then judges what it left there by verify and by a reader.

Every answer of a writer is held against the log: what it says is done is there once, in order, at the offsets that it
named, and nothing else is there.
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from spark_segments.conformance.kit import FAILED, PASSED, UNSUPPORTED

Task = dict[str, Any]
"""What a writer has to do; docs/format/conformance.md has the members of each."""

Answer = dict[str, Any]
Record = dict[str, Any]

Finding = dict[str, Any]
Judge = Callable[[Path], Iterable[Finding]]
"""The findings of `segments verify --deep` in a log directory."""

LogReader = Callable[[Path, str], list[Record]]
"""The records of a topic, by partition and offset, as the kit has them."""

TOPIC = "orders"
_START_MS = 1_700_000_000_000
_RACERS, _RACES = 3, 15
_MANY = 45


class CommandWriter:
    """A writer that is a program: a line of JSON to its standard input is a task, a line of its output the answer."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def __call__(self, task: Task) -> Answer:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(json.dumps(task) + "\n")
            stdin.flush()
            line = stdout.readline()
            answer: Answer = json.loads(line) if line else {"ended": "the writer ended before it answered"}
        except (BrokenPipeError, ValueError) as error:
            return {"ended": f"no answer: {error}"}
        return answer

    def close(self) -> None:
        """Ends the program."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # a program that has ended leaves what was not sent
                    pipe.close()
        self._process.wait()


class WrongError(Exception):
    """A writer did something else than it was asked for."""


class UnsupportedError(Exception):
    """A writer does not know a task."""


class _Written:
    """A log directory that a writer writes, and what it says that it has written."""

    def __init__(self, writer: CommandWriter, log: Path) -> None:
        self.writer, self.log = writer, log
        self.records: dict[int, dict[int, Record]] = defaultdict(dict)
        self._values = 0

    def create(self, partitions: int = 2, **config: str) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        self.done({"task": "create", "partitions": partitions, "config": settings})

    def new_records(
        self, count: int, *, partitions: Sequence[int] = (0, 1), size: int = 10, tag: str = ""
    ) -> list[Record]:
        """Records that nobody has written yet."""
        first, self._values = self._values, self._values + count
        return [
            {
                "partition": partitions[number % len(partitions)],
                "key": _base64(f"key {number % 5}"),
                "value": _base64(f"{tag}{number} ".ljust(size, ".")),
                "timestamp": _START_MS + number,
                "headers": [["from", _base64("the kit")]] if number % 3 == 0 else [],
            }
            for number in range(first, first + count)
        ]

    def append(self, records: Sequence[Record], **more: Any) -> None:
        """Appends, and keeps the records at the offsets that the writer names."""
        self.keep(records, self.done({"task": "append", "records": records, **more}))

    def done(self, task: Task, writer: CommandWriter | None = None) -> dict[str, list[int]]:
        answer = (writer or self.writer)({**task, "log": str(self.log), "topic": TOPIC})
        if "unsupported" in answer:
            raise UnsupportedError(str(answer["unsupported"]))
        if not isinstance(answer.get("done"), dict):
            raise WrongError(f"{task['task']}: expected that it is done, found {json.dumps(answer)[:300]}")
        offsets: dict[str, list[int]] = answer["done"]
        return offsets

    def refused(self, task: Task, rule: str) -> None:
        """Gives a task that a rule forbids."""
        answer = self.writer({**task, "log": str(self.log), "topic": TOPIC})
        if "unsupported" in answer:
            raise UnsupportedError(str(answer["unsupported"]))
        if "refused" not in answer:
            raise WrongError(f"{rule}: {task['task']}: expected that it is refused, found {json.dumps(answer)[:300]}")

    def keep(self, records: Sequence[Record], offsets: dict[str, list[int]]) -> None:
        by_partition: dict[int, list[Record]] = defaultdict(list)
        for record in records:
            by_partition[record["partition"]].append(record)
        if {int(number) for number in offsets} != set(by_partition):
            raise WrongError(f"expected offsets of the partitions {sorted(by_partition)}, found {offsets}")
        for number, part in by_partition.items():
            first, last = offsets[str(number)]
            if last - first + 1 != len(part):
                raise WrongError(f"expected {len(part)} offsets of partition {number}, found {first} to {last}")
            for offset, record in enumerate(part, first):
                if offset in self.records[number]:
                    raise WrongError(f"offset {offset} of partition {number} was given twice")
                self.records[number][offset] = record


def _creates(written: _Written) -> None:
    written.create()


def _creates_once(written: _Written) -> None:
    written.create()
    written.refused({"task": "create", "partitions": 1, "config": {}}, "W22")


def _appends(written: _Written) -> None:
    written.create()
    for count in (1, 20, 3):
        written.append(written.new_records(count))


def _keeps_limits(written: _Written) -> None:
    written.create(max_message_bytes="2000", segment_bytes="5000", index_interval_bytes="500")
    written.append(written.new_records(60, size=300))


def _appends_often(written: _Written) -> None:
    """Often enough for two checkpoints."""
    written.create()
    for _ in range(_MANY):
        written.append(written.new_records(2))


def _sends_again(written: _Written) -> None:
    written.create()
    transaction = {"application_id": "feed", "version": 7}
    records = written.new_records(4)
    written.append(records, transaction=transaction)
    if written.done({"task": "append", "records": records, "transaction": transaction}):
        raise WrongError("expected no offsets of a transaction that is there already")
    older = {"application_id": "feed", "version": 6}
    written.refused({"task": "append", "records": records, "transaction": older}, "W10")
    written.append(written.new_records(4), transaction={"application_id": "feed", "version": 8})


def _refuses_no_key(written: _Written) -> None:
    written.create(cleanup_policy="compact")
    written.append(written.new_records(4))
    records = [{**record, "key": None} for record in written.new_records(1)]
    written.refused({"task": "append", "records": records}, "W12")


def _finds_a_lost_reply(written: _Written) -> None:
    written.create()
    for number in range(3):
        written.append(written.new_records(3), lost_reply=number == 1)


def _races(written: _Written, racers: Sequence[CommandWriter]) -> None:
    written.create()
    appends = [[written.new_records(2, tag=f"racer {racer}: ") for _ in range(_RACES)] for racer in range(len(racers))]

    def run(racer: int) -> list[dict[str, list[int]]]:
        return [written.done({"task": "append", "records": records}, racers[racer]) for records in appends[racer]]

    with ThreadPoolExecutor(len(racers)) as pool:
        for racer, answers in enumerate(pool.map(run, range(len(racers)))):
            for records, offsets in zip(appends[racer], answers, strict=True):
                written.keep(records, offsets)


TASKS: dict[str, Callable[[_Written], None]] = {
    "create": _creates,
    "create a topic that is there": _creates_once,
    "append": _appends,
    "append within the limits of the topic": _keeps_limits,
    "append often": _appends_often,
    "append with transactions": _sends_again,
    "append without a key to a compacted topic": _refuses_no_key,
    "append, and lose the reply": _finds_a_lost_reply,
}

RACE = "append while others do"


def check_writer(
    command: Sequence[str],
    say: Callable[[str], object],
    *,
    tasks: Sequence[str] = (*TASKS, RACE),
    judge: Judge | None = None,
    read: LogReader | None = None,
) -> Counter[str]:
    """Gives a writer tasks, says each failure in a line, and counts the outcomes."""
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        for number, name in enumerate(tasks):
            directory = Path(place) / str(number)
            outcome, problems = _outcome(name, command, directory, judge or verified, read or consumed)
            outcomes[outcome] += 1
            for problem in problems:
                say(f"FAILED {name}: {problem}")
    return outcomes


def _outcome(
    name: str, command: Sequence[str], directory: Path, judge: Judge, read: LogReader
) -> tuple[str, list[str]]:
    """(the outcome of a task, what is wrong): a writer does the task in a new directory, or several race there."""
    writers = [CommandWriter(command) for _ in range(_RACERS if name == RACE else 1)]
    try:
        written = _Written(writers[0], directory)
        _play(name, written, writers)
        problems = list(_problems(written, judge, read))
    except UnsupportedError:
        return UNSUPPORTED, []
    except WrongError as wrong:
        problems = [str(wrong)]
    finally:
        for writer in writers:
            writer.close()
    return FAILED if problems else PASSED, problems


def _play(name: str, written: _Written, writers: Sequence[CommandWriter]) -> None:
    written.log.mkdir()
    if name == RACE:
        _races(written, writers)
    else:
        TASKS[name](written)


def _problems(written: _Written, judge: Judge, read: LogReader) -> Iterator[str]:
    """What is wrong with the directory."""
    for finding in judge(written.log):
        yield f"{finding.get('rule') or 'no rule'}: {finding.get('message')} ({finding.get('path')})"
    yield from _without_marks(written.log)
    expected = [
        {"partition": number, "offset": offset, "timestampType": 0, **record}
        for number, records in sorted(written.records.items())
        for offset, record in sorted(records.items())
    ]
    found = read(written.log, TOPIC)
    for mine, theirs in zip(expected, found, strict=False):
        if mine != theirs:
            yield f"read: expected the record {json.dumps(mine)[:300]}, found {json.dumps(theirs)[:300]}"
            return
    if len(expected) != len(found):
        yield f"read: expected {len(expected)} records, found {len(found)}"


def _without_marks(log: Path) -> Iterator[str]:
    """A writer that lived on has marked each of its commits: verify excuses one that died."""
    directory = log / "_recovery" / TOPIC
    marks = {path.name[:20] for path in directory.glob("*.made")}
    copies = [int(path.stem) for path in directory.glob("*.json")]
    commits = (log / "_manifest" / TOPIC / "_delta_log").glob("*.json")
    for name in sorted(path.name[:20] for path in commits if path.stem.isdigit()):
        if int(name) > max(copies, default=-1) and name not in marks:
            yield f"W23: version {int(name)} has no mark"


def verified(log: Path) -> list[Finding]:
    """What `segments verify --deep` finds."""
    ran = _segments("verify", str(log), "--deep", "--output", "json")
    try:
        report = json.loads(ran.stdout)
    except ValueError:
        return [{"message": f"verify cannot look at it: {ran.stderr.strip()}", "rule": None, "path": None}]
    warnings = [{"message": text, "rule": "W23", "path": None} for text in report["warnings"]]
    return [*report["findings"], *warnings]


def consumed(log: Path, topic: str) -> list[Record]:
    """What `segments consume` reads."""
    ran = _segments("consume", str(log), topic, "--output", "json")
    records = []
    for line in ran.stdout.splitlines():
        record = json.loads(line)
        del record["topic"]
        headers = [[header["key"], _base64(header["value"])] for header in record["headers"]]
        texts = {name: _base64(record[name]) for name in ("key", "value")}
        records.append({**record, **texts, "headers": headers})
    return records


def _segments(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spark_segments", *arguments]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)


def _base64(text: str | None) -> str | None:
    return None if text is None else base64.b64encode(text.encode()).decode()
