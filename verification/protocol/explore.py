"""Visits every state that a scenario can reach, breadth first, so that a counterexample is as short as can be."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from verification.protocol.model import Rules, steps
from verification.protocol.promises import broken
from verification.protocol.scenarios import Scenario
from verification.protocol.state import State, Step

Trace = list[tuple[Step, State]]
"""Steps from the start of a scenario, each with the state after it."""


@dataclass
class Explored:
    """What an exploration found.

    `reached`: {state: its steps}, all states of the scenario where no promise is broken. `outcomes`: in how many final
    states each outcome of each process stands. `broken`: the first broken promise. `trace`: the way there.
    """

    scenario: Scenario
    reached: dict[State, list[tuple[Step, State]]] = field(default_factory=dict)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    final: int = 0
    broken: str | None = None
    trace: Trace = field(default_factory=list)

    @property
    def transitions(self) -> int:
        return sum(map(len, self.reached.values()))


def explore(scenario: Scenario, rules: Rules | None = None) -> Explored:
    """Explores to exhaustion, or to the first state that breaks a promise."""
    rules = rules or Rules()
    found = Explored(scenario)
    start = scenario.start()
    came_from: dict[State, tuple[State, Step] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        found.broken = broken(state, scenario.programs)
        if found.broken is not None:
            found.trace = _way_to(state, came_from)
            return found
        following = list(steps(state, scenario.programs, rules))
        found.reached[state] = following
        if not following:
            found.final += 1
            for program, process in zip(scenario.programs, state.processes, strict=True):
                found.outcomes[program.name, process.outcome] += 1
        for step, after in following:
            if after not in came_from:
                came_from[after] = (state, step)
                waiting.append(after)
    return found


def _way_to(state: State, came_from: dict[State, tuple[State, Step] | None]) -> Trace:
    trace: Trace = []
    while (before := came_from[state]) is not None:
        trace.append((before[1], state))
        state = before[0]
    return trace[::-1]


def walks(found: Explored, seed: int) -> Iterator[Trace]:
    """Paths from the start to a final state, drawn by the seed, until they have taken every transition of the graph.

    A walk prefers transitions that no walk has taken.
    """
    draw = random.Random(seed)
    start = found.scenario.start()
    left = {state: list(range(len(following))) for state, following in found.reached.items()}
    for numbers in left.values():
        draw.shuffle(numbers)
    untaken = found.transitions
    while untaken:
        state, trace, fresh = start, [], 0
        while following := found.reached[state]:
            if left[state]:
                number = left[state].pop()
                fresh += 1
            else:
                number = draw.randrange(len(following))
            trace.append(following[number])
            state = following[number][1]
        untaken -= fresh
        if fresh:
            yield trace
