"""Writers, a reader, two of every job, an operator and imports at once on one log; then the judge.

By hand: python -m verification.kills soak --seconds 120
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

from verification.long_runs.actors import ACTORS, Run
from verification.long_runs.judge import judge
from verification.long_runs.processes import Processes, make_log

WORKERS = [actor for actor in ACTORS if actor != "operator"]  # which may be late all along


def run(directory: Path, seconds: float, *, delay_ms: int = 10_000, seed: int = 1) -> dict[str, Any]:
    """Runs everything for so many seconds, and until each actor has done some of its work, and then looks at what is
    left. Raises AssertionError where that is wrong.
    """
    started = time.monotonic()
    chosen = Run(str(directory / "log"), str(directory / "notes"), seed, delay_ms, dies=False)
    log = make_log(chosen)
    with Processes(chosen) as processes:
        for actor in ACTORS:
            processes.start(actor)
        while time.monotonic() - started < seconds or not all(map(partial(_has_worked, chosen), WORKERS)):
            time.sleep(0.2)
            processes.check()
        chosen.end()
        processes.join()
    found = judge(log, chosen)
    return {"seed": seed, "seconds": seconds} | found | {"seconds_in_all": round(time.monotonic() - started)}


def _has_worked(run: Run, actor: str) -> bool:
    """Whether an actor has noted an append that was answered, a read, an import or a run of a job."""
    path = Path(run.directory) / f"{actor}.jsonl"
    text = path.read_text() if path.exists() else ""
    return any(f'"{word}"' in text for word in ("answered", "saw", "done"))
