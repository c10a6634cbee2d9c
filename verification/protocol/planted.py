"""Finds what a planted fault breaks."""

from __future__ import annotations

from verification.protocol.explore import Explored, explore
from verification.protocol.model import Rules
from verification.protocol.scenarios import MOST_FAULTS_TO_FIND, SCENARIOS


def counterexample(rules: Rules) -> Explored | None:
    """A scenario in which a promise breaks, with the shortest way there and as little going wrong as can be."""
    for faults in range(MOST_FAULTS_TO_FIND + 1):
        for scenario in SCENARIOS[:-1]:  # the last one is what the others are, together
            found = explore(scenario.with_faults(faults), rules)
            if found.broken is not None:
                return found
    return None
