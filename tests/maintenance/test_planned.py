"""A dry run of all jobs says what the run would do: each job plans on what those before it would leave."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.cli import main
from spark_segments.face.in_order import jobs_in_order
from verification.world.opened import opened

HOUR_MS = 3_600_000
FIGURES = ("topic", "partition", "records_in", "records_out", "dropped", "log_start_offset", "removed_segments")


def topics(log: LogDir, chance: random.Random) -> int:
    """Topics of many settings with chunks of many ages. The time of the last record."""
    start_ms = log.storage.now_ms() - 20 * 24 * HOUR_MS
    for number in range(3):
        config = {
            "segment.bytes": str(chance.choice([300, 900, 1 << 30])),
            "segment.ms": str(chance.choice([HOUR_MS, 24 * HOUR_MS])),
            "retention.ms": str(chance.choice([-1, 5 * HOUR_MS, 48 * HOUR_MS])),
            "retention.bytes": str(chance.choice([-1, 500])),
            "cleanup.policy": chance.choice(["delete", "delete", "compact,delete"]),
            "min.cleanable.dirty.ratio": "0",
        }
        log.create_topic(f"t{number}", 2, config)
        for _ in range(chance.randint(1, 12)):
            count = chance.randint(1, 8)
            at_ms = start_ms + chance.randrange(72) * HOUR_MS
            rows = {
                "key": [b"%d" % chance.randrange(5) for _ in range(count)],
                "value": [bytes(chance.randrange(60)) for _ in range(count)],
                "partition": pa.array([chance.randrange(2) for _ in range(count)], pa.int32()),
                "timestamp": pa.array([at_ms * 1000] * count, pa.timestamp("us", "UTC")),
            }
            log.topic(f"t{number}").append(pa.table(rows))
    return start_ms + 72 * HOUR_MS


@pytest.mark.cases(2)
@pytest.mark.parametrize("seed", range(20))
def test_a_dry_run_of_all_jobs_is_what_the_run_does(tmp_path, seed):
    chance = random.Random(seed)
    log = LogDir.create(str(tmp_path / "log"))
    now_ms = topics(log, chance) + chance.choice([0, 12, 200]) * HOUR_MS
    now_ms = max(now_ms, log.storage.now_ms() + 8 * 24 * HOUR_MS) if chance.random() < 0.3 else now_ms
    said = [job(opened(log), dry_run=True, now_ms=now_ms) for job in jobs_in_order()]
    done = [job(opened(log), now_ms=now_ms) for job in jobs_in_order()]
    assert [figures(line) for line in said[1].partitions] == [figures(line) for line in done[1].partitions]
    picked = {(line["topic"], line["partition"]) for line in said[2].partitions if line["action"] == "compact"}
    assert picked == {(line["topic"], line["partition"]) for line in done[2].partitions}


def figures(line: dict) -> dict:
    return {name: line[name] for name in FIGURES if name in line}


def test_what_goes_by_a_time_is_said_of_every_job(tmp_path, capsys):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t", 1, {"segment.ms": "86400000", "retention.ms": "172800000", "file.delete.delay.ms": "60000"})
    log.topic("t").append([{"value": "v"}] * 7)
    for by, jobs in [("in 1 hour", []), ("in 36 hours", ["roll"]), ("in 3 days", ["roll", "retain", "vacuum"])]:
        main_of(["maintain", log.uri, "--dry-run", "--by", by, "--output", "json"])
        lines = [line for line in capsys.readouterr().out.splitlines() if '"partition": 0' in line]
        assert [name for name in ("roll", "retain", "compact", "vacuum") if any(name in line for line in lines)] == jobs
    with pytest.raises(SystemExit) as end:
        main(["maintain", log.uri, "--by", "in 1 hour"])
    assert end.value.code == 1 and "expected --dry-run" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main(["maintain", log.uri, "--dry-run", "--by", "2026-01-31"])
    assert end.value.code == 1
    assert "expected a time to come" in (said := capsys.readouterr().err) and "2026-01-31 00:00:00Z" in said
    main_of(["maintain", log.uri, "--dry-run", "--by", "2100-01-31T12:00+02:00"])
    assert capsys.readouterr().err.startswith("by 2100-01-31 10:00:00Z, if nothing is appended:\n")


def main_of(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert not end.value.code
