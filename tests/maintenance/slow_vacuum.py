"""A vacuum that is slow: it knows which files to delete, and deletes them when others have done much since."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from unittest import mock

from spark_segments import LogDir
from spark_segments.errors import StorageError
from spark_segments.maintenance import vacuum

VACUUM = sys.modules["spark_segments.maintenance.removal.vacuum"]


class SlowVacuum:
    """A vacuum of a log directory that has marked the rows and deleted nothing yet."""

    def __init__(self, log: LogDir, now_ms: int) -> None:
        self.log = log
        self.files: list[str] = []

        def delete(_: LogDir, spark: None, files: Sequence[str]) -> None:
            self.files += files
            raise StorageError("The process is held up")

        with mock.patch.object(VACUUM, "_delete", delete):
            assert vacuum(log, now_ms=now_ms).failed

    def goes_on(self) -> None:
        """Deletes the files. It cannot know what has become of the rows."""
        assert self.files
        self.log.storage.delete(self.files)
