"""A few failovers with kills; `python -m verification.kills failovers` has many."""

from __future__ import annotations

import pytest

from verification.kills import failovers


@pytest.mark.proof
def test_what_was_acknowledged_is_there_once_after_failovers_that_were_killed(tmp_path):
    found = failovers.run(tmp_path, 2)
    assert found["kills"] >= 2 and found["failovers"] >= 1
