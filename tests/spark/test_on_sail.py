"""The list of Spark's tests that do not run on Sail."""

from __future__ import annotations

import re

from tests.conftest import ROOT
from verification.spark.on_sail import NOT_ON_SAIL, PATHS


def test_every_test_that_does_not_run_on_sail_exists():
    """The command ends where there is no test of a name."""
    files = [
        file for path in PATHS for file in ([ROOT / path] if path.endswith(".py") else (ROOT / path).rglob("*.py"))
    ]
    tests = {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)}
    listed = {name for names in NOT_ON_SAIL.values() for name in names}
    assert listed <= tests | {file.name for file in files}
