"""What `segments capture` says of what it took."""

from __future__ import annotations

from verification.kafka_protocol.serving import serving
from verification.world.stores.memory_store import memory_log


def test_a_capture_names_the_groups_that_it_took_and_what_its_bytes_are(segments, tmp_path):
    source = memory_log("/source")
    source.create_topic("orders", partitions=1)
    source.topic("orders").append([{"value": "x" * 3000}] * 2000)
    for group in ("billing", "audit"):
        source.group(group).reset({"orders": {0: 7}})
    with serving(source) as server:
        command = ["capture", f"127.0.0.1:{server.port}", tmp_path / "log", "--once", "--max-rate", "100MiB"]
        taken = segments(*command, "--groups", "b*").lines
        none = segments(*command, "--groups", "z*").lines
    assert taken[-2].startswith("orders: 2,000 records in ") and taken[-2].endswith(" of batches, 0 behind")
    assert taken[-1] == "groups: billing"
    assert none[-1] == "groups: none of z* has a position in these topics"
