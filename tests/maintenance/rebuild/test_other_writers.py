"""Commits of a writer that writes no notes: those of this package after them are rebuilt all the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.cli import main
from spark_segments.log.manifest.recovery import missing_notes
from spark_segments.log.manifest.recovery.missing_notes import write_note
from spark_segments.maintenance import verify
from spark_segments.storage.numbered_files import crc_line
from verification.rebuild.lost import (
    TOPIC,
    again,
    append,
    copy,
    forget_notes,
    is_usable,
    lose_manifest,
    new_log,
    notes,
    numbers,
    rebuild_manifest,
)
from verification.specification.specification_appender import Appender
from verification.specification.specification_writer import Record
from verification.world.kafka_bytes.golden_files import GOLDEN


def exit_code(*arguments: str) -> object:
    """That of the `segments` command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


def foreign(log: LogDir, number: int, fault: str | None = "no note") -> None:
    """An append of another writer: one record, whose value is the number."""
    text = str(number).encode()
    Appender(Path(log.uri), TOPIC, fault).append({number % 2: [Record(0, text, text)]})


def rebuilt(log: LogDir) -> LogDir:
    """The log directory once its manifest was lost and rebuilt; all commits were known."""
    before = log.topic(TOPIC).snapshot.topic_id
    lose_manifest(log)
    log = again(log)
    report = rebuild_manifest(log, TOPIC)
    assert report.details["is_exact"] and not report.details["unproven"], report.details
    assert again(log).topic(TOPIC).snapshot.topic_id == before
    return again(log)


@pytest.mark.parametrize("fault", ["no note", "cut note", "false note", None])
def test_our_commits_behind_another_writers_are_rebuilt(tmp_path, fault):
    log = new_log(tmp_path)
    append(log, 0)
    append(log, 10)
    foreign(log, 20, fault)
    if fault in ("cut note", "false note"):
        verify(log, topics=[TOPIC], repair=True)
    for first in (30, 40, 50):
        append(log, first)
    before = numbers(log)
    log = rebuilt(log)
    assert numbers(log) == before == [*range(21), *range(30, 60)]
    is_usable(log)


def renamed(log: LogDir, version: int, commit_id: str, name: str, *, is_marked: bool) -> None:
    """Gives a commit the id of another writer, and its note, and its mark if any, the name that this writer has."""
    commit = Path(log.uri, "_manifest", TOPIC, "_delta_log", f"{version:020d}.json")
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        action.get("commitInfo", {}).update(commitId=commit_id, attempt=0)
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))
    directory = Path(log.uri, "_recovery", TOPIC)
    [note] = directory.glob(f"{version:020d}.*.note")
    [mark] = directory.glob(f"{version:020d}.*.made")
    head, _, rest = note.read_bytes().partition(b"\n")
    head = json.dumps(json.loads(head) | {"commit": f"{name}-0"}, separators=(",", ":")).encode()
    _, _, payload = rest.partition(b"\n")
    note.unlink()
    mark.unlink()
    (directory / f"{version:020d}.{name}-0.note").write_bytes(head + crc_line(head) + payload)
    if is_marked:
        (directory / f"{version:020d}.{name}-0.made").write_bytes(b"{}\n")


@pytest.mark.parametrize(
    ("commit_id", "name"),
    [("AB" * 16, "ab" * 16), ("writer-f/7", "5d" * 16)],
    ids=["an id in upper case", "an id that is no name, and a digest of its own"],
)
def test_another_writers_name_of_a_commit_makes_no_second_commit_of_it(tmp_path, commit_id, name):
    log = new_log(tmp_path)
    append(log, 0)
    append(log, 10)
    renamed(log, 1, commit_id, name, is_marked=True)
    renamed(log, 2, commit_id, name, is_marked=False)  # the writer died before its mark, or has not written it yet
    for first in (20, 30, 40):
        append(again(log), first)
    assert verify(again(log), deep=True).findings == []
    log = rebuilt(log)
    assert numbers(log) == [*range(50)]
    is_usable(log)


def test_the_commit_that_finds_several_without_a_note_writes_them_all(tmp_path):
    log = new_log(tmp_path)
    for number in range(5):
        foreign(log, number)
    append(log, 10)
    assert len(notes(log)) == len(notes(log, "made")) == 7
    assert numbers(rebuilt(log)) == [*range(5), *range(10, 20)]


def test_notes_that_a_killed_writer_left_out_are_written_by_the_next(tmp_path, monkeypatch):
    log = new_log(tmp_path)
    for number in range(4):
        foreign(log, number)
    written = []

    def killed(*arguments):
        if written:
            raise KeyboardInterrupt
        written.append(write_note(*arguments))
        return written[0]

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(missing_notes, "write_note", killed)
        append(log, 10)
    append(again(log), 20)
    assert numbers(rebuilt(again(log))) == [*range(4), *range(20, 30)]


def test_a_note_of_a_try_that_lost_is_not_that_of_the_commit(tmp_path):
    """This package's own note of the version that another writer got first."""
    log = new_log(tmp_path)
    foreign(log, 0)
    version = log.topic(TOPIC).snapshot.version
    Path(tmp_path, "_recovery", TOPIC, f"{version:020d}.{'a' * 32}-0.note").write_bytes(b"of another try")
    append(log, 10)
    assert numbers(rebuilt(log)) == [0, *range(10, 20)]


def test_a_hundred_commits_of_which_every_third_is_foreign_are_rebuilt(tmp_path):
    log = new_log(tmp_path)
    for number in range(100):
        fault = "no note" if number % 2 else None
        foreign(log, number, fault) if number % 3 == 1 else append(log, number, 1)
    assert verify(log, deep=True).findings == []
    assert numbers(rebuilt(log)) == list(range(100))


def test_commits_that_nothing_proves_are_not_played_and_their_files_are_named(tmp_path):
    """The manifest is lost before a commit of ours has written the notes of another writer's."""
    log = new_log(tmp_path)
    append(log, 0)
    before = log.topic(TOPIC).snapshot
    foreign(log, 10)
    foreign(log, 11)
    lose_manifest(log)
    log = again(log)
    details = rebuild_manifest(log, TOPIC).details
    assert (details["known_version"], details["is_exact"]) == (before.version, False)
    assert details["topic_id"] != before.topic_id and len(details["unnamed_files"]) == 2
    assert numbers(again(log)) == [*range(10)]
    is_usable(again(log))


def test_verify_finds_a_commit_without_a_note_and_a_repair_writes_it(tmp_path, capsys):
    log = new_log(tmp_path)
    append(log, 0)
    foreign(log, 10)
    [finding] = verify(log).findings
    assert finding.rule == "W23" and "has no note" in finding.message

    assert exit_code("verify", str(tmp_path), TOPIC, "--repair") == 0
    assert "is written again" in capsys.readouterr().out
    assert verify(log, deep=True).findings == []
    assert numbers(rebuilt(log)) == list(range(11))


@pytest.mark.parametrize("fault", ["cut note", "false note"])
def test_a_deep_look_finds_a_damaged_note(tmp_path, fault):
    log = new_log(tmp_path)
    foreign(log, 0, fault)
    [finding] = verify(log, deep=True).findings
    assert finding.rule == "W23" and "is damaged" in finding.message
    assert exit_code("verify", str(tmp_path), TOPIC, "--repair") == 0
    assert verify(log, deep=True).findings == [] and numbers(rebuilt(log)) == [0]


def test_where_the_rows_of_a_commit_are_gone_a_repair_writes_a_recovery_copy(tmp_path):
    log = new_log(tmp_path)
    foreign(log, 0)
    removed = _removed_partition_file(log)
    append(log, 10)
    for path in notes(log)[1:]:
        path.unlink()
    removed.unlink()
    assert exit_code("verify", str(tmp_path), TOPIC, "--repair") == 0
    assert verify(log, deep=True).findings == []
    assert numbers(rebuilt(log)) == [0, *range(10, 20)]


def test_where_the_rows_of_a_commit_are_gone_the_next_commit_writes_a_recovery_copy(tmp_path):
    log = new_log(tmp_path)
    foreign(log, 0)
    removed = _removed_partition_file(log)
    foreign(log, 1)
    removed.unlink()
    append(log, 10)
    assert verify(log, deep=True).findings == []
    assert numbers(rebuilt(log)) == [0, 1, *range(10, 20)]


def _removed_partition_file(log: LogDir) -> Path:
    """The file of partitions' rows that the next append of any partition takes out of the table."""
    [path] = [file.path for file in log.topic(TOPIC).manifest.state().files if file.kind == "partition"]
    return Path(log.uri, "_manifest", TOPIC, path)


def test_a_log_from_before_notes_gives_a_warning_and_no_fault(tmp_path, caplog, capsys):
    log = new_log(tmp_path)
    append(log, 0)
    copy(log)
    append(log, 10)
    forget_notes(log)
    shutil.rmtree(Path(tmp_path, "_recovery", TOPIC, "kind=topic"), ignore_errors=True)
    report = verify(log, deep=True)
    assert report.findings == [] and ["W23" in text for text in report.warnings] == [True]
    assert exit_code("verify", str(tmp_path), "--deep", "--output", "json") == 0
    assert json.loads(capsys.readouterr().out)["errors"] == 0
    append(log, 20)
    assert verify(again(log), deep=True).warnings == []


def test_the_literal_notes_of_the_specification_are_played(tmp_path):
    shutil.copytree(GOLDEN / "vectors" / "noted", tmp_path / "log")
    shutil.rmtree(tmp_path / "log" / "_manifest" / "fruit")
    log = LogDir.open(str(tmp_path / "log"))
    assert rebuild_manifest(log, "fruit").details["is_exact"]
    assert again(log).topic("fruit").offsets() == {0: (0, 3)}
