"""The log directory that faults are played on."""

from __future__ import annotations

import pytest

from spark_segments import LogDir
from verification.faults.scenes import READS, WRITES, outcome, prepared
from verification.world.log_copies import copy_of


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> LogDir:
    log = prepared(tmp_path_factory.mktemp("faults") / "log")
    for operation in [*WRITES.values(), *READS.values()]:  # compiles kernels and loads modules
        assert outcome(operation, copy_of(log, tmp_path_factory.mktemp("warm") / "log")) is None
    return log
