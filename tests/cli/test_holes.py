"""Holes of topics, as commands show them."""

from __future__ import annotations

import random

from verification.simulation.broker.disk import PlayedDisk


def test_a_hole_is_shown_and_ends_the_import_with_faults_found(run, tmp_path):
    disk = PlayedDisk(tmp_path / "kafka", random.Random(5))
    partition = disk.partitions["orders", 0]
    for _ in range(3):
        partition.append()
        partition.settle()
        partition.roll()
    disk.settle()
    start, end = partition.segments[1][0], partition.segments[2][0]
    for file in partition.directory.glob(f"{start:020d}.*"):
        file.unlink()  # it was lost
    source, target = str(disk.root), str(tmp_path / "log")
    text = f"orders-0: offsets {start} to {end - 1} are missing"
    imported = run("import", source, target)
    assert imported.code == 3 and text in imported.error
    again = run("import", source, target)
    assert again.code == 0 and "missing" not in again.error
    for command in ("describe", "verify"):
        shown = run(command, target, "orders")
        assert shown.code == 0 and text in shown.text
    described = run("describe", target, "orders", "--output", "json").json
    assert [(one["start_offset"], one["end_offset"]) for one in described["holes"]] == [(start, end)]
