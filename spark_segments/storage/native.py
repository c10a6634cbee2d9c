"""Calls into obstore and delta-rs: no fork hangs in them, and no panic of theirs leaves them.

Both keep threads for their requests. A forked child has none of them: obstore waits for them for ever, delta-rs panics.
A panic is no Exception, so that no handler of errors would catch it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from spark_segments.errors import StorageError

_used: set[str] = set()
_used_before_fork: set[str] = set()


@contextlib.contextmanager
def native(library: str) -> Iterator[None]:
    """Around each call into "obstore" or "delta-rs".

    Raises StorageError in a process whose parent had called the library before it was forked, and OSError for a panic.
    """
    if library in _used_before_fork:
        raise StorageError(
            f"This process was forked from one that had used {library}, whose threads are not in it",
            hint="Start processes by spawn (multiprocessing.set_start_method), or fork before the first use",
        )
    _used.add(library)
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise OSError(f"{library} panicked: {error}") from None


os.register_at_fork(after_in_child=lambda: _used_before_fork.update(_used))
