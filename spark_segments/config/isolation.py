"""isolation.level, the setting of a reader."""

from __future__ import annotations

from spark_segments.errors import InvalidOptionError

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"


def check_isolation_level(isolation_level: str) -> str:
    """The level itself. Raises InvalidOptionError for an unknown level."""
    if isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        raise InvalidOptionError(
            "Unknown isolation.level", expected=f"{READ_UNCOMMITTED} or {READ_COMMITTED}", found=repr(isolation_level)
        )
    return isolation_level
