"""What is said of a log that ends in an open transaction: Kafka's `txn-0`, whose last stable offset is 3138."""

from __future__ import annotations

import shutil

from verification.world.kafka_bytes.golden_files import golden_dir


def test_a_last_stable_offset_that_is_behind_is_told_with_its_producers(segments, tmp_path):
    for name in ("txn-0", "plain-0"):
        shutil.copytree(golden_dir(name), tmp_path / "kafka" / name)
    segments("import", tmp_path / "kafka", tmp_path / "log")
    metrics = tmp_path / "log.prom"
    lines = segments("describe", tmp_path / "log").lines
    [told] = [line for line in lines if line.startswith("Open: ")]
    assert told.startswith(
        "Open: txn-0: 30 offsets from the last stable offset 3138 on wait for the end of a transaction"
    )
    assert "since offset 3138" in told
    [partition] = segments("describe", tmp_path / "log", "txn", "--output", "json").json["partitions"]
    assert (partition["last_stable_offset"], partition["last_stable_offset_lag"]) == (3138, 30)
    segments("describe", tmp_path / "log", "--metrics", metrics)
    lags = [line for line in metrics.read_text().splitlines() if line.startswith("kafka_cluster_partition_last")]
    assert [(line.split('topic="')[1].split('"')[0], line.split()[-1]) for line in lags] == [
        ("plain", "0.0"),
        ("txn", "30.0"),
    ]
