"""`segments verify --repair` of a topic whose manifest is lost."""

from __future__ import annotations

import io
import itertools
import json
import os
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.cli import main
from spark_segments.errors import LogDirError, TopicExistsError
from spark_segments.maintenance import verify
from verification.rebuild.lost import (
    TOPIC,
    all_files,
    append,
    copy,
    forget_notes,
    lose_manifest,
    new_log,
    notes,
    numbers,
)
from verification.world.manifest_rows import forget_rows


@pytest.fixture
def lost(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    copy(log)
    append(log, 10)
    forget_notes(log)
    lose_manifest(log)
    return log


def segments(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 0


def test_json_says_what_is_known_and_what_is_not(lost, capsys):
    segments("verify", lost.uri, TOPIC, "--repair", "--dry-run", "--output", "json")
    planned = json.loads(capsys.readouterr().out)
    assert (planned["job"], planned["dry_run"], planned["details"]["is_exact"]) == ("rebuild-manifest", True, False)
    assert len(planned["details"]["unnamed_files"]) == 2 and planned["details"]["not_known"]
    segments("verify", lost.uri, TOPIC, "--repair", "--yes", "--output", "json")
    done = json.loads(capsys.readouterr().out)
    assert done["details"]["topic_id"] != done["details"]["topic_id_before"]
    assert [one["log_end_offset"] for one in done["partitions"]] == [5, 5]
    assert numbers(lost) == [*range(10)]


def test_text_lists_the_files(lost, capsys):
    segments("verify", lost.uri, TOPIC, "--repair", "--yes")
    text = capsys.readouterr().out
    assert "is rebuilt as version" in text and "no known commit names" in text and "Not known:" in text


def test_text_lists_files_that_are_gone_and_commits_that_nothing_proves(tmp_path, capsys):
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    append(log, 10)
    [first, last] = log.topic(TOPIC).snapshot.live_of(0)
    os.truncate(tmp_path / first.path, 10)
    notes(log, "made")[-1].unlink()
    lose_manifest(log)
    segments("verify", log.uri, TOPIC, "--repair", "--yes")
    text = capsys.readouterr().out
    assert "gone or cut" in text and first.path in text and last.path in text and "nothing proves" in text


def test_on_a_terminal_it_asks_before_the_topic_gets_a_new_id(lost, capsys, monkeypatch):
    """The question is for people, and so is the plan: what a script reads is the document alone."""
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    segments("verify", lost.uri, TOPIC, "--repair", "--output", "json")
    printed = capsys.readouterr()
    assert json.loads(printed.out)["dry_run"] is False
    assert "under a new id?" in printed.err and "would be rebuilt" in printed.err


def test_it_changes_nothing_where_the_answer_is_no(lost, capsys, monkeypatch):
    before = all_files(lost)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    with pytest.raises(SystemExit) as stopped:
        main(["verify", lost.uri, TOPIC, "--repair"])
    assert stopped.value.code == 1 and all_files(lost) == before


def test_it_does_not_ask_where_the_topic_keeps_its_id(tmp_path, capsys, monkeypatch):
    log = new_log(tmp_path)
    append(log, 0)
    copy(log)
    for path in Path(tmp_path, "_manifest", TOPIC, "kind=segment").glob("*.parquet"):
        path.write_bytes(b"no Parquet")
    forget_rows()
    monkeypatch.setattr("sys.stdin", Terminal(""))  # an answer would end the command
    segments("verify", log.uri, TOPIC, "--repair")
    printed = capsys.readouterr()
    assert "keeps its id" in printed.out and printed.err == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_script_says_yes_before_the_topic_gets_a_new_id(lost, capsys):
    before = all_files(lost)
    with pytest.raises(SystemExit) as stopped:
        main(["verify", lost.uri, TOPIC, "--repair"])
    assert stopped.value.code == 1 and "expected --yes" in capsys.readouterr().err
    assert all_files(lost) == before


def aged(log) -> list[Path]:
    """The copies and notes of the topic, which are older than a minute now."""
    files = [*Path(log.uri, "_recovery", TOPIC).iterdir()]
    for file in files:
        os.utime(file, (file.stat().st_mtime - 61,) * 2)
    return files


def test_no_topic_takes_the_place_of_one_whose_manifest_is_lost(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    lose_manifest(log)
    aged(log)
    before = all_files(log)
    with pytest.raises(LogDirError, match=f"verify LOG_DIR {TOPIC} --repair rebuilds it"):
        log.create_topic(TOPIC)
    assert all_files(log) == before
    segments("verify", log.uri, TOPIC, "--repair", "--yes")
    assert numbers(log) == [*range(10)]
    with pytest.raises(TopicExistsError):
        log.create_topic(TOPIC)


def log_with_a_late_first_note(directory: Path) -> LogDir:
    """A log with records. The random name of its first note is in the upper half of all names, so that the first note
    of another topic of this name is listed before it with an even chance at least.
    """
    for number in itertools.count():
        log = new_log(directory / str(number))
        append(log, 0)
        _, commit_id, _ = notes(log)[0].name.split(".")
        if commit_id >= "8":  # hexadecimal
            return log
    raise AssertionError


def test_a_topic_that_was_made_over_a_manifest_lost_just_now_is_a_fault_until_a_repair(tmp_path):
    """A creation cannot see within a minute that commits were made: it is empty to readers, and takes no append."""
    log = log_with_a_late_first_note(tmp_path)
    [lost_first, _] = notes(log)
    while notes(log)[0] == lost_first:  # the first that is listed is the new topic's
        lose_manifest(log)
        log.create_topic(TOPIC)
    assert numbers(log) == []
    [finding] = verify(log).findings
    assert finding.topic == TOPIC and "Commits of topic" in finding.message and "--repair" in finding.message
    with pytest.raises(LogDirError, match="were made that its manifest does not have"):
        append(log, 10)
    segments("verify", log.uri, TOPIC, "--repair", "--yes")
    forget_rows()
    assert numbers(log) == [*range(10)]
    assert verify(log, deep=True).findings == []


def test_a_name_is_free_again_where_nothing_says_that_commits_were_made(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    lose_manifest(log)
    for file in aged(log):
        file.unlink()
    log.create_topic(TOPIC)
    assert numbers(log) == []


def test_a_lost_manifest_is_a_fault_once_a_listing_must_show_it(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    lose_manifest(log)
    assert verify(log).findings == []  # the listing may lag behind the commit
    files = aged(log)
    [finding] = verify(log).findings
    assert (finding.topic, finding.path) == (TOPIC, f"_manifest/{TOPIC}") and "--repair" in finding.message
    for file in files:
        if file.suffix == ".made":  # a note alone may be that of a process that died before its commit
            file.unlink()
    assert verify(log).findings == []
