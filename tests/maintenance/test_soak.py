"""Some seconds of what `python -m tests.maintenance` does for minutes."""

from __future__ import annotations

import pytest

from tests.maintenance import crashes, soak


def test_writers_a_reader_and_two_of_every_job_lose_and_double_nothing(tmp_path):
    figures = soak.run(tmp_path, seconds=8)
    assert figures["records_appended"] > 0 and figures["reads"] > 0
    assert all(figures["runs"].values())


@pytest.mark.parametrize("job", crashes.JOBS)
def test_the_next_run_finishes_what_a_killed_one_has_begun(tmp_path, job):
    figures = crashes.run(tmp_path, 3, jobs=(job,))
    assert figures[job]["killed"] == 3
