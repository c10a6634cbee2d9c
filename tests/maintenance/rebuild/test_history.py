"""Histories of a topic by the dice: a manifest that is lost after any commit is rebuilt as it was."""

from __future__ import annotations

import pytest

from verification.rebuild.history import check

pytestmark = pytest.mark.cases(1)


@pytest.mark.parametrize("seed", range(5))
def test_a_manifest_lost_after_any_commit_is_rebuilt_as_it_was(tmp_path, seed):
    check(seed, tmp_path)
