"""A history's outcome, as a process of its own can be asked for it: what stands in __main__ cannot be sent to one."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

from verification.pairs.histories import Found, History, play


@dataclass(frozen=True, slots=True)
class Asked:
    """Which readers are asked."""

    slow: bool
    without: frozenset[str]
    spark: bool


def outcome_of(history: History, asked: Asked) -> tuple[History, int, str]:
    """The history, how many steps of it were compared, and what was found."""
    with open(os.devnull, "w") as nowhere:
        stderr, sys.stderr = sys.stderr, nowhere  # warnings of jobs, which are not what is judged
        try:
            return (
                history,
                play(history, slow=asked.slow, without=asked.without, session=_session() if asked.spark else None),
                "",
            )
        except Found as found:
            return history, 0, str(found)
        finally:
            sys.stderr = stderr


@cache
def _session() -> Any:
    from spark_segments import spark_session

    session = spark_session("pairs", master="local[2]", config={"spark.ui.enabled": "false"})
    session.sparkContext.setLogLevel("ERROR")
    return session
