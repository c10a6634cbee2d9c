"""Readers of groups for tests, and a file system that loses replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spark_segments import LogDir
from spark_segments.log.groups.group import Group, Positions, check_position
from spark_segments.storage.local import LocalFiles
from verification.world.opened import opened

__all__ = [
    "STORE",
    "Group",
    "PlayedFiles",
    "Positions",
    "check_position",
    "group_at_store",
    "lost_reply",
    "moved",
]

STORE = "s3://bucket/log"
"""An object store for `PlayedFiles`: paths below it are files below the working directory."""


def moved(log: LogDir, group: str, offsets: Mapping[str, Mapping[int, int]]) -> Positions:
    """The positions after a commit of a reader that goes on from what is there."""
    return log.group(group).commit(log.group(group).positions(), offsets)


class PlayedFiles(LocalFiles):
    """Local files, where `creations` has what is to be done in place of the next creations of whole files."""

    def __init__(self, *creations: Callable[[Callable[[], None]], None]) -> None:
        super().__init__()
        self.creations = list(creations)

    def create(self, path: str, data: Any, *, is_forced: bool = True) -> None:
        def create() -> None:
            super(PlayedFiles, self).create(path, data, is_forced=is_forced)

        play = self.creations.pop(0) if self.creations else (lambda create: create())
        play(create)


def lost_reply(create: Callable[[], None]) -> None:
    """The file is made, and nobody is told."""
    create()
    raise OSError("the reply was lost")


def group_at_store(*creations: Callable[[Callable[[], None]], None], group: str = "audit") -> Group:
    """A group on an object store of its own reader."""
    return opened(STORE, PlayedFiles(*creations)).group(group)
