"""Making Spark's Python workers, which are used again for task after task, quick at the next one."""

from __future__ import annotations

import functools
import gc


@functools.cache
def freeze_imports() -> None:
    """Takes what is there by the end of a worker's first task out of all later garbage collections.

    Spark runs a full one after every task, and so do its processes that load, plan and commit. Over the objects that
    imports leave it takes 40 to 60 ms, which is more than many a task; over what a task leaves it takes none. Only the
    first call of a process does anything.
    """
    gc.collect()
    gc.freeze()
