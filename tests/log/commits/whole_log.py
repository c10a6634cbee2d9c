"""A check that commits have neither lost nor repeated anything."""

from __future__ import annotations

from verification.world.manifest_rows import Manifest, Segment


def assert_log_is_whole(manifest: Manifest) -> dict[int, list[Segment]]:
    """Offsets are dense from 0 to the log end, and no file is there twice."""
    snapshot = manifest.snapshot()
    found = {}
    for partition in snapshot.partitions.to_pylist():
        rows = snapshot.live_of(partition["partition"])
        ends = [0, *(row.next_offset for row in rows)]
        assert [row.base_offset for row in rows] == ends[:-1]
        assert ends[-1] == partition["log_end_offset"]
        found[partition["partition"]] = rows
    paths = [row.path for rows in found.values() for row in rows]
    assert len(paths) == len(set(paths))
    return found
