"""The judge of a long run: replays what was committed, in the order of versions, and compares it with what was seen."""

from __future__ import annotations

import bisect
import os
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.maintenance import compact, roll, vacuum, verify
from spark_segments.maintenance.removal.vacuum import SUFFIXES
from verification.long_runs.actors import Run, view
from verification.long_runs.journal import Commit, commits_of, read_notes, tries
from verification.long_runs.model import KafkaStep, TopicModel
from verification.long_runs.scenario import IMPORTED, TOPICS, WRITERS, Record, kafka_record, kafka_steps
from verification.world.manifest_rows import every_row
from verification.world.topics import DAY_MS, later

CLOCKS_MS = 2000
"""How far the time of a commit may be from the moment when others see it."""

Lines = dict[str, list[dict[str, Any]]]


def judge(log: LogDir, run: Run) -> dict[str, Any]:
    """Raises AssertionError where anything was lost, doubled, moved or brought back; else what there was to judge."""
    lines = {path.stem: read_notes(path) for path in Path(run.directory).glob("*.jsonl")}
    tried = tries([line for of_actor in lines.values() for line in of_actor])
    commits = {topic: commits_of(log, topic, tried) for topic in TOPICS if log.topic(topic).manifest.log.versions()}
    kafka = _kafka_steps_of(run, commits.get(IMPORTED, []))
    models = {topic: _replay(log, topic, of_topic, lines, kafka) for topic, of_topic in commits.items()}
    report = verify(log, deep=True)
    assert report.errors == 0, report.findings[:3]
    orphans = left_behind(log)
    settle(log, models)
    for path in orphans:
        os.utime(Path(log.uri) / path, (0, 0))
    failed = vacuum(log, now_ms=later(log, 30)).failed
    assert not failed, failed
    assert not left_behind(log)
    for topic, model in models.items():
        _compare_now(log, topic, model)
    report = verify(log, deep=True)
    assert report.ok, report.findings[:3]
    return figures(lines, commits) | {"files_left_behind": len(orphans)}


def _kafka_steps_of(run: Run, commits: list[Commit]) -> dict[int, KafkaStep]:
    wanted = {commit.line["intent"]["step"] for commit in commits if commit.line and commit.operation == "import"}
    found: dict[int, KafkaStep] = {}
    for step, kafka in zip(range(max(wanted, default=-1) + 1), kafka_steps(run.seed, Path("nowhere")), strict=False):
        if step in wanted:
            history = {offset: kafka_record(offset, record) for offset, record in kafka.history.items()}
            found[step] = KafkaStep(history, frozenset(kafka.records()), kafka.log_start_offset, kafka.log_end_offset)
    return found


def _replay(log: LogDir, topic: str, commits: list[Commit], lines: Lines, kafka: dict[int, KafkaStep]) -> TopicModel:
    """The topic as its last version has to be; what was read of each version is compared on the way."""
    wanted = {commit.line["intent"]["restore"] for commit in commits if commit.line and commit.operation == "restore"}
    model = TopicModel(kafka, frozenset(wanted))
    reads = defaultdict(list)
    for line in lines["reader"]:
        if line.get("topic") == topic and "saw" in line:
            reads[line["version"]].append(line["saw"])
    placed: dict[tuple[str, int], list[int]] = defaultdict(list)
    remembered: dict[str, list[int]] = {writer: [] for writer in WRITERS}
    for commit in commits:
        try:
            if commit.line is not None and commit.operation == "append":
                one = commit.line["intent"]["append"]
                placed[one["writer"], one["transaction"]].append(model.partitions[one["partition"]].end)
            model.apply(commit)
            for saw in reads[commit.version]:
                compare(model, saw)
        except AssertionError as error:
            raise AssertionError(f"{topic} at version {commit.version} ({commit.operation}): {error}") from error
        model.save(commit.version)
        for writer in WRITERS:
            remembered[writer].append(-1 if model.is_deleted else model.last.get(writer, -1))
    for writer in WRITERS:
        _check_answers(topic, lines[writer], writer, placed, commits, remembered[writer])
    _check_refusals(lines["importer"], commits if topic == IMPORTED else None)
    _compare_now(log, topic, model)
    return model


def compare(model: TopicModel, saw: dict[str, Any]) -> None:
    """Compares a topic with what a reader saw of it."""
    assert not model.is_deleted
    assert len(saw) == len(model.partitions)
    for number, partition in model.partitions.items():
        seen = saw[str(number)] if str(number) in saw else saw[number]
        assert seen["bounds"] == [partition.start, partition.end]
        partition.see(seen["offsets"], seen["digest"])


def _compare_now(log: LogDir, topic: str, model: TopicModel) -> None:
    assert (topic in log.topics()) != model.is_deleted
    if not model.is_deleted:
        compare(model, view(log, topic))


def _check_answers(
    topic: str,
    lines: list[dict[str, Any]],
    writer: str,
    placed: dict[tuple[str, int], list[int]],
    commits: list[Commit],
    remembered: list[int],
) -> None:
    """An append whose offsets were told lies there; one that was told to be there already was remembered then."""
    for line in lines:
        if "answered" not in line or line["topic"] != topic or "refused" in line:
            continue
        transaction = line["answered"]
        if line["first"] is not None:
            assert line["first"] in placed[writer, transaction], f"{topic}: {line} is lost"
            continue
        times = [commit.committed_ms for commit in commits]
        first = max(0, bisect.bisect_left(times, line["between_ms"][0] - CLOCKS_MS) - 1)
        last = bisect.bisect_right(times, line["between_ms"][1] + CLOCKS_MS)
        assert max(remembered[first:last], default=-1) >= transaction, f"{topic}: {line} was not there"


def _check_refusals(lines: list[dict[str, Any]], commits: list[Commit] | None) -> None:
    """An import is refused only where a restore has taken records back that Kafka has."""
    if commits is not None:
        restored_ms = [commit.committed_ms for commit in commits if commit.operation == "restore"]
        for line in lines:
            if line.get("refused") == "import":
                assert min(restored_ms, default=line["at_ms"] + 1) <= line["at_ms"], line


def settle(log: LogDir, models: dict[str, TopicModel]) -> None:
    """After a last cleaning of everything, the newest value of every key is there, and nothing else."""
    there = {topic: model for topic, model in models.items() if not model.is_deleted}
    last = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "min.compaction.lag.ms": "0",
        "delete.retention.ms": "100",
    }
    for topic, model in there.items():
        log.topic(topic).alter(last)
        model.config |= last
    for turn in range(2):
        for topic, model in there.items():
            for number, partition in model.partitions.items():
                record = Record(f"last {turn}".encode(), b"last", log.storage.now_ms())
                table = pa.table(
                    {
                        "key": pa.array([record.key], pa.binary()),
                        "value": pa.array([record.value], pa.binary()),
                        "timestamp": pa.array([record.timestamp_ms], pa.timestamp("ms", "UTC")),
                        "partition": pa.array([number], pa.int32()),
                    }
                )
                assert log.topic(topic).append(table) == {number: (partition.end, partition.end)}
                partition.place({partition.end: record})
                partition.end += 1
        now_ms = log.storage.now_ms() + (8 + turn) * DAY_MS
        for job in (roll, compact):
            failed = job(log, now_ms=now_ms).failed
            assert not failed, failed
    for topic, model in there.items():
        saw = view(log, topic)
        for number, partition in model.partitions.items():
            kept = {at for at in partition.newest().values() if partition.placed[at].value is not None}
            assert set(saw[number]["offsets"]) == kept, f"{topic}-{number} keeps the newest values"
            partition.sure &= kept
        compare(model, saw)


def left_behind(log: LogDir) -> list[str]:
    """Files of partitions that no row names."""
    named, found = set(), []
    for topic in TOPICS:
        if not log.topic(topic).manifest.log.versions():
            continue
        for segment in every_row(log, topic):
            named |= {segment.stem + suffix for suffix in SUFFIXES}
    for directory in log.storage.directories(""):
        if re.fullmatch(rf"({'|'.join(TOPICS)})-\d+", directory):
            found += [file.path for file in log.storage.list(directory) if file.path not in named]
    return found


def figures(lines: Lines, commits: dict[str, list[Commit]]) -> dict[str, Any]:
    """What there was in a run."""
    every = [line for of_actor in lines.values() for line in of_actor]
    operations = Counter(commit.operation for of_topic in commits.values() for commit in of_topic)
    imports = [line for line in lines["importer"] if line.get("done") == "import"]
    return {
        "commits": dict(operations.most_common()),
        "records": sum(line["append"]["count"] for writer in WRITERS for line in lines[writer] if "append" in line),
        "appends_answered": sum("answered" in line for line in every),
        "repeats_that_added_nothing": sum("answered" in line and line.get("first", 0) is None for line in every),
        "appends_refused": sum("answered" in line and "refused" in line for line in every),
        "imports_done": len(imports),
        "imports_that_copied_nothing": sum(not line["segments"] for line in imports),
        "reads": sum("saw" in line for line in every),
        "reads_too_late": sum("late" in line for line in every),
        "runs_of_jobs": dict(Counter(line["done"] for line in every if "work" in line)),
        "lost_races": sum("lost" in line for line in every) + sum(line.get("races_lost", 0) for line in every),
        "refused": dict(Counter(line["refused"] for line in every if "refused" in line and "answered" not in line)),
        "versions": {topic: of_topic[-1].version for topic, of_topic in commits.items()},
    }
