from __future__ import annotations

import pytest

from spark_segments import LogDir
from verification.world.kafka_bytes.golden_files import LEGACY_DIRECTORIES, expected_batches, golden_dir


@pytest.mark.parametrize("name", LEGACY_DIRECTORIES)
def test_a_range_may_begin_and_end_inside_a_compressed_message(name):
    log, topic = LogDir.open(str(golden_dir(name))), name.removesuffix("-0")
    wrappers = [batch for batch in expected_batches(name) if batch["recordsIterated"] > 3]
    for batch in (wrappers[0], wrappers[-1]):
        start, end = batch["baseOffset"] + 1, batch["lastOffset"]
        for bounds in ((start, end), (start - 1, start), (end, end + 1), (0, start)):
            parts = log.topic(topic).scan(partition=0, offsets=(bounds[0], bounds[1]), columns=["offset"]).batches()
            assert [offset for part in parts for offset in part["offset"].to_pylist()] == list(range(*bounds))
