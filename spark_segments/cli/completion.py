"""What the shell completes beside commands and options: topics, groups and settings. What fails completes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import typer

from spark_segments.config import parse_overrides
from spark_segments.config.table import KEYS
from spark_segments.errors import SegmentsError

if TYPE_CHECKING:
    from spark_segments.face.logdir import LogDir


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """The topics of LOG_DIR."""
    return _names(ctx, incomplete, lambda log: log.topics())


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """The groups of LOG_DIR."""
    return _names(ctx, incomplete, lambda log: log.groups())


def settings(incomplete: str) -> list[tuple[str, str]]:
    """The topic settings that have an effect, with =."""
    return [
        (f"{name}=", f"default {setting.default}")
        for name, setting in KEYS.items()
        if setting.has_effect and name.startswith(incomplete)
    ]


def setting_names(incomplete: str) -> list[str]:
    """The topic settings."""
    return [name for name in KEYS if name.startswith(incomplete)]


def _names(ctx: typer.Context, incomplete: str, names: Callable[[LogDir], Sequence[str]]) -> list[str]:
    from spark_segments.face.logdir import LogDir

    try:
        log = LogDir.open(ctx.params["log_dir"], parse_overrides(ctx.params.get("storage") or []))
        return [name for name in names(log) if name.startswith(incomplete)]
    except (SegmentsError, OSError, KeyError, TypeError):  # no log directory yet, or a word in its place
        return []
