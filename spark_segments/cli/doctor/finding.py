"""What a check of `segments doctor` found."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check. `hint`: what to do about it, None where nothing is to do."""

    check: str
    status: str
    found: str
    hint: str | None = None
