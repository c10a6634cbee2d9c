"""Some seconds of what `python -m tests.maintenance` does for minutes."""

from __future__ import annotations

import pytest

from tests.maintenance import crashes, restarts, soak


@pytest.mark.slow
def test_writers_a_reader_and_two_of_every_job_lose_and_double_nothing(tmp_path):
    figures = soak.run(tmp_path, seconds=8)
    assert figures["records_appended"] > 0 and figures["reads"] > 0
    assert all(figures["runs"].values())


@pytest.mark.slow
@pytest.mark.parametrize("job", crashes.JOBS)
def test_the_next_run_finishes_what_a_killed_one_has_begun(tmp_path, job):
    figures = crashes.run(tmp_path, 3, jobs=(job,))
    assert figures[job]["killed"] == 3


@pytest.mark.slow
def test_processes_killed_in_the_midst_of_their_work_lose_and_bring_back_nothing(tmp_path):
    figures = restarts.run(tmp_path, 6)
    assert sum(figures["killed"].values()) >= 6
