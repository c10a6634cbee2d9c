"""`segments repair`."""

from __future__ import annotations

import json

import pytest

from spark_segments.cli import main
from tests.log.rebuild.lost import TOPIC, append, copy, lose_manifest, new_log, numbers

pytestmark = pytest.mark.slow


@pytest.fixture
def lost(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    copy(log)
    append(log, 10)
    lose_manifest(log)
    return log


def segments(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 0


def test_json_says_what_is_known_and_what_is_not(lost, capsys):
    segments("repair", lost.uri, TOPIC, "--rebuild-manifest", "--dry-run", "--output", "json")
    planned = json.loads(capsys.readouterr().out)
    assert (planned["job"], planned["dry_run"], planned["is_exact"]) == ("rebuild-manifest", True, False)
    assert len(planned["later_files"]) == 2 and planned["not_known"]
    segments("repair", lost.uri, TOPIC, "--rebuild-manifest", "--add", "all", "--output", "json")
    done = json.loads(capsys.readouterr().out)
    assert done["topic_id"] != done["topic_id_before"]
    assert [one["log_end_offset"] for one in done["partitions"]] == [10, 10]
    assert numbers(lost) == [*range(20)]


def test_text_lists_the_files(lost, capsys):
    segments("repair", lost.uri, TOPIC, "--rebuild-manifest")
    text = capsys.readouterr().out
    assert "is rebuilt as version" in text and "can be added" in text and "Not known:" in text


def test_without_rebuild_manifest_the_command_names_it(lost, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["repair", lost.uri, TOPIC])
    assert stopped.value.code == 2
    assert "--rebuild-manifest" in capsys.readouterr().err
