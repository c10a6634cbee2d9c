"""Names and patterns of groups: which groups of a log directory or of a cluster they choose."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Sequence

from spark_segments.errors import InvalidOptionError

_HIDDEN = "Brokers hide what a user may not DESCRIBE, and share groups have no positions"


def chosen_groups(existing: Collection[str], patterns: Sequence[str], of: str) -> list[str]:
    """The groups of these names or patterns. `of`: what has them, in words.

    Raises InvalidOptionError for a name, which is no pattern, that is no group there.
    """
    names = {pattern for pattern in patterns if not {*"*?["} & {*pattern}}
    missing = sorted(names - set(existing))
    if missing:
        raise InvalidOptionError(f"{of} no group {', '.join(missing)}", hint=_HIDDEN)
    return sorted(name for name in existing if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))
