"""Copies of .log files that an import makes while it examines them, so that it reads each byte once.

Whether a copy is wanted shows when all files of its partition were examined: where the log ends, what Kafka's cleaner
took, whether it is the log that is here. Until a row names it, a copy is a file that does not exist for the log.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator

from spark_segments.errors import SegmentsError
from spark_segments.format.file_names import LOG_SUFFIX
from spark_segments.log import Segment
from spark_segments.storage import FileInfo, Storage, WriteStream


class EarlyCopies:
    """The copies of a pass over a topic's partitions, which threads make. They are `most_bytes` at most: that is what a
    process that dies leaves to vacuum. Files beyond are copied when they are known to be wanted.
    """

    def __init__(self, target: Storage, topic: str, most_bytes: int) -> None:
        self._target = target
        self._topic = topic
        self._left_bytes = most_bytes
        self._lock = threading.Lock()
        self._copies: dict[str, tuple[str, int]] = {}  # by the path of the .log: (path of its copy, bytes)
        self._made: set[str] = set()

    @contextlib.contextmanager
    def copy(self, partition: int, base_offset: int, log: FileInfo) -> Iterator[WriteStream | None]:
        """The stream to write to what is examined of a .log, from its first byte on; None where it is not to be copied
        now. What was written is its copy if no error comes.
        """
        with self._lock:
            has_room = log.size <= self._left_bytes
            self._left_bytes -= log.size if has_room else 0
        if not has_room:
            yield None
            return
        path = Segment.new_stem(self._topic, partition, base_offset) + LOG_SUFFIX
        with self._target.stream(path, unique=True) as stream:
            self._made.add(path)
            yield stream
        self._copies[log.path] = path, stream.bytes_written

    def of(self, path: str, log_bytes: int) -> str | None:
        """The path of the copy of the first `log_bytes` of a .log, None where there is none."""
        copied, copied_bytes = self._copies.get(path, (None, 0))
        return copied if copied_bytes == log_bytes else None

    def keep(self, paths: Collection[str]) -> None:
        """From now on these files are a commit's, and vacuum's if that fails."""
        self._made -= set(paths)

    def discard(self) -> None:
        """Deletes all copies but the kept ones."""
        with contextlib.suppress(SegmentsError, OSError):  # vacuum takes what is left
            self._target.delete(sorted(self._made))
