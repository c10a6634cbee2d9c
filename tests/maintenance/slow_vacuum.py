"""A vacuum that is slow: it knows which files to delete, and deletes them when others have done much since."""

from __future__ import annotations

from collections.abc import Sequence

from spark_segments import LogDir
from spark_segments.maintenance import vacuum
from verification.world.opened import opened
from verification.world.stores.played_files import Go, PlayedFiles


class SlowVacuum:
    """A vacuum of a log directory that has marked the rows and deleted nothing yet."""

    def __init__(self, log: LogDir, now_ms: int) -> None:
        self.files: list[str] = []

        def held_up(paths: Sequence[str], go: Go) -> None:
            self.files += paths
            raise OSError("The process is held up")

        assert vacuum(opened(log, PlayedFiles(delete=held_up)), now_ms=now_ms).failed

    def goes_on(self) -> None:
        """Deletes the files. It cannot know what has become of the rows."""
        assert self.files
        PlayedFiles().delete(self.files)
