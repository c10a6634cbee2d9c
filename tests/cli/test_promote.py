"""`segments promote`: what it prints, and its exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_segments import LogDir
from verification.world.promoted_copies import TOPIC, add, followed, in_step, led


@pytest.fixture
def leader(tmp_path) -> LogDir:
    return led(tmp_path)


@pytest.fixture
def follower(leader) -> LogDir:
    return followed(leader)


def test_all_followers_are_promoted_and_the_former_leader_is_named(segments, run, leader, follower):
    epochs = "Leader epochs by partition: 0: 1 from 10, 1: 1 from 1."
    planned = segments("promote", follower.uri, "--dry-run").lines
    assert planned == [f"orders: would be promoted over {leader.uri}. {epochs}"]
    found = segments("promote", follower.uri, "--output", "json").json
    [topic] = found["partitions"]
    assert (found["job"], found["failed"], topic["topic"], topic["is_fenced"]) == ("promote", 0, TOPIC, True)
    assert topic["leader_epochs"][0] == {"partition": 0, "leader_epoch": 1, "start_offset": 10}
    again = segments("promote", follower.uri, TOPIC).lines
    assert again == [f"orders: is the leader already. {epochs}"]
    ran = run("append", leader.uri, TOPIC, stdin=b"1\n")
    assert ran.code == 1 and f"The topic in {follower.uri} was promoted in its place: write there" in ran.error
    ran = run("promote", follower.uri)
    assert ran.code == 1 and "No topic here is a follower" in ran.error
    assert f"Fenced: the topic in {follower.uri} was promoted in its place" in segments("describe", leader.uri).lines
    ran = run("promote", leader.uri, TOPIC)
    assert ran.code == 1 and "Topic orders is fenced: a former leader is not promoted again" in ran.error


def test_without_its_leader_a_topic_is_promoted_by_force_and_warns(segments, run, leader, follower):
    away = Path(leader.uri).rename(Path(leader.uri).with_name("away"))
    ran = run("promote", follower.uri)
    assert ran.code == 1 and "error: orders: Not a log directory" in ran.error
    assert "--force promotes without it" in ran.error and "topic create" not in ran.error
    command = [sys.executable, "-m", "spark_segments", "promote", follower.uri, "--force", "--dry-run"]
    planned = subprocess.run(command, capture_output=True, text=True, check=True)
    assert planned.stderr.count("The former leader is out of reach") == 1
    ran = segments("promote", follower.uri, "--force")
    assert "warning: orders: The former leader is out of reach" in ran.error
    assert ran.lines[1] == "orders: the former leader is not fenced. Promote again as soon as it can be reached."
    assert ran.lines[2].startswith("orders: what the former leader committed after its version 3 of 20")
    away.rename(leader.uri)
    add(leader, [77])
    ran = segments("promote", follower.uri, TOPIC)
    assert ran.lines == [
        f"orders: fenced the former leader in {leader.uri}.",
        f"orders: left behind in {leader.uri}: partition 0: 10 to 10. They can be read there.",
    ]


def test_the_page_does_not_ask_for_jobs_at_a_topic_that_takes_none(segments, tmp_path, leader, follower):
    segments("topic", "alter", leader.uri, TOPIC, "--config", "segment.ms=1000")
    in_step(leader, follower)
    later_ms = leader.storage.now_ms() + 3 * 86_400_000
    html = tmp_path / "log.html"
    asked = []
    for log in (leader, follower):
        segments("describe", log.uri, "--html", html, "--now-ms", later_ms)
        asked.append("roll has been due" in html.read_text())
    assert asked == [True, False]


@pytest.fixture
def unfenced(segments, leader, follower) -> LogDir:
    """The former leader of a forced promotion: it was out of reach then, and takes appends since."""
    away = Path(leader.uri).rename(Path(leader.uri).with_name("away"))
    segments("promote", follower.uri, "--force")
    away.rename(leader.uri)
    add(leader, [77])
    return leader


def test_a_run_without_names_fences_the_former_leader_of_a_forced_promotion(segments, run, unfenced, follower):
    LogDir.open(follower.uri).create_topic("never-mirrored")
    planned = segments("promote", follower.uri, "--dry-run")
    assert planned.lines[0] == f"orders: would fence the former leader in {unfenced.uri}."
    ran = segments("promote", follower.uri)
    assert ran.lines[0] == f"orders: fenced the former leader in {unfenced.uri}."
    assert run("append", unfenced.uri, TOPIC, stdin=b"1\n").code == 1
    ran = run("promote", follower.uri)
    assert ran.code == 1 and "No topic here is a follower" in ran.error


def test_a_run_without_names_says_that_a_former_leader_is_still_out_of_reach(run, unfenced, follower):
    Path(unfenced.uri).rename(Path(unfenced.uri).with_name("away"))
    ran = run("promote", follower.uri)
    assert ran.code == 1 and "error: orders: Not a log directory" in ran.error
    assert "If it is gone for good" in ran.error and "name the topics that are to be promoted" in ran.error


def test_a_former_leader_without_the_topic_asks_for_no_fence(segments, run, unfenced, follower):
    segments("topic", "delete", unfenced.uri, TOPIC, "--yes")
    for made_again in (False, True):
        if made_again:
            LogDir.open(unfenced.uri).create_topic(TOPIC)
        ran = run("promote", follower.uri)
        assert ran.code == 1 and "No topic here is a follower" in ran.error
