"""How deep an append is where it opens its files: frames of this package, from the face's method to the file system."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest

import spark_segments
from spark_segments import ProducerOptions
from verification.world.opened import LocalFiles, created
from verification.world.topics import live

PACKAGE = str(Path(spark_segments.__file__).parent)
FRAMES = {".log": 8, ".index": 9, ".timeindex": 9, "rows": 10, "version": 9}
"""The most frames on any path of an append. docs/design/decisions.md has the same figures."""

SMALL = {"segment.bytes": "3000"}
UNCOMPRESSED = ProducerOptions("none", 1000)


class DeepFiles(LocalFiles):
    """The machine's files. `frames` has the frames of the package above each opening, by what is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: dict[str, list[list[str]]] = defaultdict(list)

    def stream(self, path: str, *, unique: bool = False):
        self._count(path)
        return super().stream(path, unique=unique)

    def create(self, path: str, data: object, *, is_forced: bool = True) -> None:
        self._count(path)
        super().create(path, data, is_forced=is_forced)

    def _count(self, path: str) -> None:
        codes = []
        frame = sys._getframe(2)
        while frame is not None:
            codes.append(frame.f_code)
            frame = frame.f_back
        names = [f"{code.co_filename}:{code.co_name}" for code in codes if code.co_filename.startswith(PACKAGE)]
        self.frames[kind_of(Path(path))].append(names)


def kind_of(path: Path) -> str:
    if "_manifest" not in path.parts:
        return path.suffix
    return "version" if path.parent.name == "_delta_log" else "rows"


def random_rows(count: int, size: int, partitions: int) -> pa.Table:
    return pa.table(
        {
            "value": [bytes([number % 256]) * size for number in range(count)],
            "partition": pa.array([number % partitions for number in range(count)], pa.int32()),
        }
    )


@pytest.mark.parametrize(
    ("rows", "partitions", "config", "limits_of_appender"),
    [
        pytest.param(random_rows(1, 10, 1), 1, {}, {}, id="a record"),
        pytest.param(random_rows(40, 10, 20), 20, {}, {}, id="a shared object"),
        pytest.param(random_rows(900, 100, 2), 2, SMALL, {}, id="segments that fill up in the middle of a flush"),
        pytest.param(
            random_rows(400, 1000, 20), 20, {}, {"WAITING_BYTES": 50_000}, id="an object in the middle of a flush"
        ),
        pytest.param(
            random_rows(400, 1000, 20), 20, SMALL, {"MAX_OPEN_CHUNKS": 3}, id="more partitions than open chunks"
        ),
    ],
)
def test_an_append_is_not_deeper_where_it_opens_a_file(tmp_path, limits, rows, partitions, config, limits_of_appender):
    limits(**limits_of_appender)
    files = DeepFiles()
    log = created(tmp_path / "log", files)
    log.create_topic("t", partitions, config)
    topic = log.topic("t")
    files.frames.clear()
    for _ in range(2):  # the first reads the log's state; the second plans on what the first left
        topic.append(rows, options=UNCOMPRESSED)
    assert sum(row.records for number in range(partitions) for row in live(log, "t", number)) == 2 * rows.num_rows
    assert {"rows", "version", ".log"} <= files.frames.keys()
    for kind, most in FRAMES.items():
        for names in files.frames[kind]:
            assert names[-1].endswith("face/topic.py:append")
            assert len(names) <= most, f"{kind}: {' < '.join(names)}"
