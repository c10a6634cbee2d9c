"""An import that kills its own process: python -m verification.kills.killed_import KAFKA_DIR LOG_DIR STEP.

Each file that is created, each write to one, and each commit, before and after it, is a step. At step STEP the process
is gone, without any clean-up; where the import takes fewer, it ends and prints how many it took.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from spark_segments import LogDir
from spark_segments.storage import Storage, WriteStream
from verification.world.manifest_rows import Manifest


class Steps:
    """Counts, and ends the process at the last one."""

    def __init__(self, last: int) -> None:
        self.taken = 0
        self._last = last

    def take(self) -> None:
        self.taken += 1
        if self.taken == self._last:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*arguments: Any, **options: Any) -> Any:
            self.take()
            result = method(*arguments, **options)
            self.take()
            return result

        return stepping


def main(kafka_dir: str, log_dir: str, last: str) -> None:
    steps = Steps(int(last))
    for owner, name in ((Storage, "stream"), (WriteStream, "write"), (Manifest, "create"), (Manifest, "commit")):
        setattr(owner, name, steps.around(getattr(owner, name)))
    LogDir.create(log_dir).import_kafka(kafka_dir)
    print(steps.taken)


if __name__ == "__main__":
    main(*sys.argv[1:])
