"""Writers, a reader, two of every job, an operator and imports at once on one log; then the judge.

By hand: python -m tests.maintenance soak --seconds 120
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.maintenance.long_runs.actors import ACTORS, Run
from tests.maintenance.long_runs.judge import judge
from tests.maintenance.long_runs.processes import Processes, make_log


def run(directory: Path, seconds: float, *, delay_ms: int = 10_000, seed: int = 1) -> dict[str, Any]:
    """Runs everything for so many seconds and then looks at what is left. Raises AssertionError where that is wrong."""
    started = time.monotonic()
    chosen = Run(str(directory / "log"), str(directory / "notes"), seed, delay_ms, started + seconds, dies=False)
    log = make_log(chosen)
    with Processes(chosen) as processes:
        for actor in ACTORS:
            processes.start(actor)
        processes.join()
    found = judge(log, chosen)
    return {"seed": seed, "seconds": seconds} | found | {"seconds_in_all": round(time.monotonic() - started)}
