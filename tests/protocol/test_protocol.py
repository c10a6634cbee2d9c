"""The commit protocol explored to exhaustion, and paths of the model played on the real code."""

from __future__ import annotations

from itertools import islice

import pytest

from verification.protocol.explore import explore, walks
from verification.protocol.model import ACKNOWLEDGED, DEAD, NOTHING, REFUSED, REPEATED, UNKNOWN, Rules
from verification.protocol.planted import counterexample
from verification.protocol.replay import Theatre, without_waiting
from verification.protocol.scenarios import FAULTS, SCENARIOS

PLAYED = 15


def by_name(scenario) -> str:
    return scenario.name


@pytest.fixture(scope="module")
def theatre():
    with without_waiting():
        yield Theatre()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=by_name)
def test_no_state_that_can_be_reached_breaks_a_promise(scenario):
    found = explore(scenario.with_faults(0 if scenario is SCENARIOS[-1] else 1))
    assert found.broken is None, found.trace
    assert found.final and len(found.reached) > 100


def test_every_outcome_is_reached():
    scenarios = SCENARIOS[0].with_faults(3), SCENARIOS[3].with_faults(1)
    reached = {outcome for scenario in scenarios for _, outcome in explore(scenario).outcomes}
    assert reached == {ACKNOWLEDGED, REPEATED, NOTHING, REFUSED, UNKNOWN, DEAD}


@pytest.mark.cases(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_the_real_code_does_not_have_it(theatre, fault):
    found = counterexample(FAULTS[fault])
    assert found is not None
    with pytest.raises(AssertionError, match="in the model"):
        theatre.play(found.scenario, found.trace)


def test_a_fault_is_planted_for_every_rule():
    assert len(FAULTS) == len(Rules.__dataclass_fields__) == len(set(FAULTS.values()))


@pytest.mark.cases(1)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=by_name)
def test_the_real_code_goes_the_ways_of_the_model(theatre, scenario):
    scenario = scenario.with_faults(0 if scenario is SCENARIOS[-1] else 2)
    played = [theatre.play(scenario, trace) for trace in islice(walks(explore(scenario), seed=7), PLAYED)]
    assert len(played) == PLAYED
