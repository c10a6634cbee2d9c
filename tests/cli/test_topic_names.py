"""Whatever command names a topic by another path is refused, and a week later nothing of the topic is gone."""

from __future__ import annotations

import shutil

import pytest

from spark_segments.maintenance import vacuum, verify
from verification.world.clock import ORPHAN_AGE_MS, store_clock
from verification.world.kafka_bytes.golden_files import golden_dir
from verification.world.opened import opened
from verification.world.topics import values

ALIASES = ["./orders", "orders/", "x/../orders"]

# LOG, KAFKA and OTHER are directories, TOPIC is the name that is none.
COMMANDS = [
    "append LOG TOPIC",
    "append LOG TOPIC --once key",
    "append LOG TOPIC --txn job:1",
    "capture 127.0.0.1:1 LOG --topic TOPIC --once",
    "compact LOG TOPIC",
    "consume LOG TOPIC",
    "consume LOG TOPIC --group audit",
    "delete-records LOG TOPIC --before-offset -1",
    "describe LOG TOPIC",
    "erase LOG TOPIC --key k",
    "explain LOG TOPIC --partition 0 --offset 0",
    "export LOG OTHER --topic TOPIC",
    "groups reset LOG audit TOPIC --to earliest",
    "groups show LOG audit TOPIC",
    "import KAFKA LOG --topic TOPIC",
    "maintain LOG TOPIC",
    "mirror LOG OTHER --topic TOPIC --once",
    "offsets LOG TOPIC",
    "promote LOG TOPIC",
    "replay LOG 127.0.0.1:1 --topic TOPIC",
    "replay LOG 127.0.0.1:1 --topic orders --rename orders=TOPIC",
    "retain LOG TOPIC",
    "roll LOG TOPIC",
    "serve LOG --port 0 --version TOPIC=1",
    "table LOG TOPIC OTHER",
    "topic alter LOG TOPIC --partitions 3",
    "topic create LOG TOPIC",
    "topic delete LOG TOPIC --yes",
    "topic history LOG TOPIC",
    "topic restore LOG TOPIC --version 1",
    "vacuum LOG TOPIC",
    "verify LOG TOPIC --repair",
]


@pytest.mark.cases(4)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_no_topic_by_another_path(run, log, tmp_path, command):
    shutil.copytree(golden_dir("plain-0"), tmp_path / "kafka" / "plain-0")
    log.create_topic("orders")
    log.topic("orders").append([{"key": "k", "value": value} for value in ("a", "b")])
    log.group("audit").reset({"orders": {0: 1}})
    version, positions = log.topic("orders").version, log.group("audit").positions()
    for name in ALIASES:
        directories = {"LOG": log.uri, "KAFKA": tmp_path / "kafka", "OTHER": tmp_path / "other"}
        words = [str(directories.get(word, word)).replace("TOPIC", name) for word in command.split()]
        ran = run(*words, stdin=b"lost\n")
        assert ran.code == 1 and "Invalid topic name" in ran.error and f"'{name}'" in ran.error
    assert (log.topics(), log.topic("orders").version) == (["orders"], version)
    assert log.group("audit").positions() == positions
    with store_clock(log.storage.now_ms() + ORPHAN_AGE_MS + 60_000):
        vacuum(log, now_ms=log.storage.now_ms())
    found = values(opened(log))
    assert (found, verify(log, deep=True).findings) == ([b"a", b"b"], [])
    assert {path.name for path in tmp_path.iterdir()} <= {"kafka", "log", "other"}
