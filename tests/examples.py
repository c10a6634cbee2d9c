"""How many examples hypothesis tries."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

PROOF_EXAMPLES, GATE_EXAMPLES = 100, 20
"""Examples of a test that says no number."""


def examples(most: int, **others: Any) -> settings:
    """Settings of a test that tries `most` examples in a proof, a fifth of them in the gate. `others`: hypothesis's."""
    share = settings.default.max_examples / PROOF_EXAMPLES
    return settings(max_examples=max(1, round(most * share)), deadline=None, **others)
