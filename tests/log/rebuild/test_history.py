"""Histories of a topic by the dice: what a rebuild must keep, and what it must not bring back."""

from __future__ import annotations

import pytest

from tests.log.rebuild.history import check

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(12))
def test_a_rebuild_keeps_what_was_live_and_brings_nothing_back_in_silence(tmp_path, seed):
    check(seed, tmp_path)
