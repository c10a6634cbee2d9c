"""A disk that takes no more, or refuses: a clear error, nothing lost, and a log that is usable after.

What needs a mount is a command: `python -m verification.faults`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_segments.errors import StorageError
from verification.faults.scenes import (
    READS,
    WRITES,
    assert_clear,
    assert_unchanged,
    assert_usable,
    contents,
    file_size_limit,
    not_root,
    outcome,
    readable_by_all,
)
from verification.world.log_copies import copy_of
from verification.world.opened import opened

pytestmark = [pytest.mark.cases(1), pytest.mark.xdist_group("faults")]  # one log for both modules

LIMITS = (0, 300, 3000, 30_000)
"""Sizes of files: none, a commit of Delta, a file of rows, and small chunks."""


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that other users can enter, as pytest's own are not."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.parametrize("name", WRITES)
def test_a_file_that_may_not_grow_is_one_clear_error(made, tmp_path, name):
    before = contents(made)
    for limit in LIMITS:
        log = copy_of(made, tmp_path / str(limit) / "log")
        with file_size_limit(limit):
            error = outcome(WRITES[name], log)
        if error is not None:
            assert_clear(error, "File too large")
            assert_unchanged(name, log, before, error)
        assert_usable(log)
        assert limit or error is not None


@pytest.mark.parametrize("name", WRITES)
def test_a_directory_that_may_not_be_written_is_one_clear_error(made, open_directory, name):
    log = copy_of(made, open_directory / "log")
    readable_by_all(Path(log.uri))
    before = contents(log)
    with not_root():
        error = outcome(WRITES[name], log)
    assert error is not None
    assert_clear(error, "Permission denied")
    assert_unchanged(name, log, before, error)
    assert_usable(log)


@pytest.mark.parametrize("name", READS)
def test_a_directory_that_may_not_be_written_is_read(made, open_directory, name):
    log = copy_of(made, open_directory / "log")
    readable_by_all(Path(log.uri))
    with not_root():
        assert outcome(READS[name], log) is None


@pytest.mark.parametrize("name", sorted(READS.keys() - {"topics", "groups"}))
def test_files_that_may_not_be_read_are_one_clear_error(made, open_directory, name):
    """Raised, or for each topic in the report: never as nothing to do, or as a topic that is not there."""
    log = copy_of(made, open_directory / "log")
    for path in Path(log.uri).rglob("*"):
        if not path.is_dir():
            path.chmod(0)
    with not_root():
        if name == "verify":
            report = READS[name](opened(log))
            errors = [f"{one} in {log.storage.location(one.path)}" for one in report.findings]
        elif name == "plan":
            reports = READS[name](opened(log))
            assert all([line["topic"] for line in one.failed] == ["orders", "prices"] for one in reports)
            errors = [line["error"] for one in reports for line in one.failed]
        else:
            with pytest.raises(StorageError) as raised:
                READS[name](opened(log))
            errors = [str(raised.value)]
    assert len(errors) == {"verify": 2, "plan": 8}.get(name, 1)
    for error in errors:
        assert_clear(error, "Permission denied")
