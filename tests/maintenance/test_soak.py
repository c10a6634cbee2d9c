"""Some seconds of what `python -m verification.kills` does for minutes."""

from __future__ import annotations

import pytest

from verification.kills import crashes, mirrors, model_rounds, restarts, soak


@pytest.mark.proof
def test_everything_done_at_once_to_a_log_loses_and_doubles_nothing(tmp_path):
    figures = soak.run(tmp_path, seconds=6)
    assert figures["appends_answered"] > 0 and figures["reads"] > 0 and figures["imports_done"] > 0
    assert figures["runs_of_jobs"].keys() == {"roll", "retain", "compact", "vacuum"}


@pytest.mark.proof
def test_rounds_of_compaction_by_several_threads_leave_what_the_model_says(tmp_path):
    assert model_rounds.run(tmp_path, 6)["records"] > 1000


@pytest.mark.cases(1)
@pytest.mark.parametrize("job", [*crashes.JOBS, *crashes.ACTIONS])
def test_the_next_run_finishes_what_a_killed_one_has_begun(tmp_path, job):
    figures = crashes.run(tmp_path, 2, jobs=(job,))
    assert figures[job]["killed"] == 2


@pytest.mark.proof
def test_processes_killed_in_the_midst_of_their_work_lose_and_bring_back_nothing(tmp_path):
    figures = restarts.run(tmp_path, 4)
    assert figures["kills"] >= 4


@pytest.mark.proof
def test_mirrors_killed_in_the_midst_of_their_work_are_at_every_moment_past_states_of_their_leader(tmp_path):
    figures = mirrors.run(tmp_path, 4)
    assert figures["kills"] >= 4 and figures["states_compared"] > 10
