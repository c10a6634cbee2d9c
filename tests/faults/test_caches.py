"""A store behind a cache, and a client that sends requests again: what they answer costs an operation, and no record.

A fault lasts for a whole operation here. What a store has to promise all the same is in docs/design/promises.md.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import SegmentsError
from spark_segments.kafka_protocol.serving.lease import Lease
from spark_segments.maintenance.rebuild.rebuild import rebuild_manifest
from spark_segments.storage.filesystem import Found
from verification.faults.scenes import (
    WRITES,
    append_to_both,
    assert_clear,
    assert_unchanged,
    assert_usable,
    contents,
    outcome,
)
from verification.world.log_copies import copy_of
from verification.world.opened import LocalFiles, opened

pytestmark = [pytest.mark.cases(1), pytest.mark.xdist_group("faults")]  # one log for both modules

DELETED, REPLACED, LISTED, EXISTS, CUT = "deleted and back", "older", "old listing", "it exists", "a reply cut"


class CachedFiles(LocalFiles):
    """The machine's files as a fault shows them. DELETED: what was deleted is read and listed. REPLACED: what was
    replaced is read as before. LISTED: a directory is listed as it was at first, without what is new and with what is
    gone. EXISTS: what was created is said to have been there. CUT: what was replaced is said to have failed, once.
    """

    def __init__(self, fault: str) -> None:
        super().__init__()
        self._fault, self._was_cut = fault, False
        self._kept: dict[str, bytes] = {}
        self._listed: dict[tuple[str, bool], Found] = {}

    def _keep(self, path: str) -> None:
        if Path(path).is_file():
            self._kept.setdefault(path, Path(path).read_bytes())

    def _shown(self, path: str) -> bytes | None:
        return self._kept.get(path) if self._fault == REPLACED or not Path(path).exists() else None

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        if (data := self._shown(path)) is None:
            return super().read(path, offset, length)
        return pa.py_buffer(data[offset:] if length is None else data[offset : offset + length])

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> pa.Buffer:
        if (data := self._shown(path)) is None:
            return super().read_ranges(path, ranges)
        return pa.py_buffer(b"".join(data[start:end] for start, end in ranges))

    def size(self, path: str) -> int:
        return super().size(path) if (data := self._shown(path)) is None else len(data)

    def exists(self, path: str) -> bool:
        return self._shown(path) is not None or super().exists(path)

    def list(self, path: str, recursive: bool) -> Found:
        found = super().list(path, recursive)
        if self._fault == DELETED:
            names, now_ms = {name for name, *_ in found}, self.now_ms("")
            for kept, data in self._kept.items():
                name = kept.removeprefix(f"{path}/")
                if name not in {kept, *names} and (recursive or "/" not in name):
                    found.append((name, len(data), now_ms, ""))
        if self._fault == LISTED:
            found = self._listed.setdefault((path, recursive), found)
        return list(found)

    def stream(self, path: str, *, unique: bool = False) -> Any:
        if not unique and self._shown(path) is not None:  # as an object store is asked
            raise FileExistsError(path)
        return super().stream(path, unique=unique)

    def create(self, path: str, data: Any, *, is_forced: bool = True) -> None:
        super().create(path, data, is_forced=is_forced)
        if self._fault == EXISTS:
            raise FileExistsError(path)

    def replace(self, path: str, data: Any) -> None:
        if self._fault == REPLACED:
            self._keep(path)
        super().replace(path, data)
        if self._fault == CUT and not self._was_cut:
            self._was_cut = True
            raise OSError(errno.EIO, "the reply was cut")

    def delete(self, paths: Sequence[str]) -> None:
        if self._fault == DELETED:
            for path in paths:
                self._keep(path)
        super().delete(paths)


def make_anew(log: LogDir) -> None:
    log.delete_topic("prices")
    log.create_topic("prices")
    append_to_both(log, 5)


def commit_often(log: LogDir) -> None:
    group = log.group("audit")
    positions = group.positions()
    for offset in range(100):
        positions = group.commit(positions, {"orders": {1: offset % 10}})


def hold(log: LogDir) -> None:
    first, second = Lease(log.storage), Lease(log.storage)
    for _ in range(40):
        taken = [first.take(), second.take()]
        assert taken.count(True) <= 1
        assert [first.is_held(), second.is_held()].count(True) <= 1


def lose_the_manifest(log: LogDir) -> None:
    for _ in range(3):
        append_to_both(log, 5)
        with contextlib.suppress(SegmentsError):  # as after a commit: it stands without this work
            log.topic("orders").manifest.merge_files()
    shutil.rmtree(Path(log.uri, "_manifest", "orders"))
    rebuild_manifest(opened(log), "orders")


def delete_by_force(log: LogDir) -> None:
    note = Path(log.uri, "_manifest/orders/deleted.json")
    note.write_text("{}")  # one that is void
    for path in Path(log.uri, "_manifest/orders/_delta_log").iterdir():
        path.write_bytes(b"damaged")
    log.delete_topic("orders", force=True)


MORE: dict[str, Callable[[LogDir], Any]] = {
    "a topic made anew": make_anew,
    "a hundred commits of a group": commit_often,
    "a lease": hold,
    "a deletion by force": delete_by_force,
    "a manifest rebuilt from its copies": lose_the_manifest,
}


@pytest.mark.parametrize("fault", [DELETED, REPLACED, LISTED, EXISTS, CUT])
@pytest.mark.parametrize("name", [*MORE, *WRITES])
def test_what_a_cache_shows_costs_an_operation_and_no_record(made, tmp_path, name, fault):
    operation = (WRITES | MORE)[name]
    before, well = contents(made), copy_of(made, tmp_path / "well" / "log")
    assert outcome(operation, well) is None
    log = copy_of(made, tmp_path / "cached" / "log")
    error = outcome(operation, opened(log, CachedFiles(fault)))
    log = opened(log)
    if error is None:
        assert contents(log) == contents(well)
        assert log.group("audit").positions().offsets == well.group("audit").positions().offsets
    else:
        assert_clear(error, "")
        if name in WRITES:
            assert_unchanged(name, log, before, error)
        if operation is lose_the_manifest:  # a run that failed is run again, unless it failed after its commit
            if outcome(lambda log: log.topic("orders").snapshot, log) is not None:
                rebuild_manifest(log, "orders")
            assert_a_state_before(log, well, is_last=fault != LISTED)
    assert_usable(log)


def assert_a_state_before(log: LogDir, well: LogDir, *, is_last: bool) -> None:
    """What is there are the first records of each partition; all of them, unless the commits were sought in a listing
    that is older than they are.
    """
    there, all_of_it = contents(log), contents(well)
    missing = all_of_it["orders"].keys() - there["orders"].keys()
    assert there == all_of_it | {"orders": {at: all_of_it["orders"][at] for at in there["orders"]}}
    assert not (is_last and missing)
    for partition, offset in missing:
        assert all(at < offset for number, at in there["orders"] if number == partition)
