"""Everything that a soak does, each process killed with SIGKILL at random moments and started again; then the judge.

By hand: python -m verification.kills restarts --trials 50
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from verification.long_runs.actors import ACTORS, Run
from verification.long_runs.judge import judge
from verification.long_runs.processes import Processes, make_log


def run(directory: Path, trials: int, *, delay_ms: int = 20_000, seed: int = 1) -> dict[str, Any]:
    """Has so many processes killed. Raises AssertionError where the log is not as it has to be then."""
    started = time.monotonic()
    chosen = Run(str(directory / "log"), str(directory / "notes"), seed, delay_ms, dies=True)
    log = make_log(chosen)
    killed: Counter[str] = Counter()
    with Processes(chosen) as processes:
        for actor in ACTORS:
            processes.start(actor)
        while killed.total() < trials:
            for actor in processes.wait_for_killed():
                killed[actor] += 1
                processes.start(actor)
    found = judge(log, chosen)
    figures = {"seed": seed, "kills": killed.total(), "killed": dict(killed)} | found
    return figures | {"seconds_in_all": round(time.monotonic() - started)}
