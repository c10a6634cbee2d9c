"""A mirror whose files are copied by Spark's tasks."""

from __future__ import annotations

from spark_segments.maintenance import roll
from verification.world.followers import (
    TOPIC,
    appended,
    appended_often,
    assert_in_step,
    followers_of,
    led,
    mirrored,
)
from verification.world.topics import later


def test_tasks_of_spark_copy_files_as_this_process_does(spark, log):
    led(log)
    appended_often(log)
    roll(log, now_ms=later(log))
    appended(log, 4, first=36)
    follower = followers_of(log)
    first = mirrored(log, follower, spark=spark)
    assert first["bytes_in"] == first["bytes_out"] > 0
    assert_in_step(log, follower)
    damaged = log.storage.location(log.topic(TOPIC).snapshot.live.column("path")[-1].as_py())
    with open(damaged, "r+b") as file:
        file.seek(-1, 2)
        file.write(b"?")
    appended(log, 1, first=40)
    second = mirrored(log, follower, spark=spark)  # what is there already is not read again
    assert (second["details"]["commits"], second["details"]["files"]) == (1, 3)
