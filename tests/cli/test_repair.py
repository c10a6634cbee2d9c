"""`segments verify --repair` of a topic whose manifest is lost."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.cli import main
from spark_segments.errors import LogDirError, TopicExistsError
from spark_segments.maintenance import mirror, verify
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


def made_over(log) -> None:
    """Loses the manifest, and makes a topic in its place. The creation sees behind its own commit that others were."""
    lose_manifest(log)
    with pytest.raises(LogDirError, match=f"verify LOG_DIR {TOPIC} --repair rebuilds it"):
        log.create_topic(TOPIC)


def test_a_topic_that_was_made_over_a_manifest_lost_just_now_is_a_fault_until_a_repair(tmp_path):
    """Within a minute no listing proves before that commits were made: the topic is empty, and takes no append."""
    log = new_log(tmp_path)
    append(log, 0)
    made_over(log)
    assert numbers(log) == []
    [finding] = verify(log).findings
    assert finding.topic == TOPIC and "Commits of topic" in finding.message and "--repair" in finding.message
    with pytest.raises(LogDirError, match="were made that its manifest does not have"):
        append(log, 10)
    segments("verify", log.uri, TOPIC, "--repair", "--yes")
    forget_rows()
    assert numbers(log) == [*range(10)]
    assert verify(log, deep=True).findings == []
    append(log, 10)
    assert numbers(log) == [*range(20)]


def test_a_follower_whose_only_commit_is_lost_is_rebuilt_with_its_records(tmp_path):
    """The first run of a mirror brings all records in the first commit: the new topic has as many commits."""
    leader = new_log(tmp_path / "leader")
    append(leader, 0)
    follower = LogDir.create(str(tmp_path / "follower"))
    mirror(follower, leader=leader)
    made_over(follower)
    assert numbers(follower) == []
    [finding] = verify(follower).findings
    assert "expected one commit of version 0" in str(finding) and "--repair" in finding.message
    with pytest.raises(LogDirError, match="made over a lost manifest"):
        append(follower, 10)
    segments("verify", follower.uri, TOPIC, "--repair", "--yes")
    forget_rows()
    assert numbers(follower) == [*range(10)]
    assert verify(follower, deep=True).findings == []
    append(leader, 10)
    mirror(follower, leader=leader)
    assert numbers(follower) == [*range(20)]


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
