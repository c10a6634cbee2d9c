"""Memory for tests of kernels: what reads or writes beyond it crashes."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np


class Guarded:
    """Memory between two pages that the process may neither read nor write: a step beyond it is a crash."""

    def __init__(self, most_bytes: int) -> None:
        page = mmap.PAGESIZE
        self.size = -(-most_bytes // page) * page
        self._map = mmap.mmap(-1, self.size + 2 * page)
        whole = np.frombuffer(self._map, np.uint8)
        self._view = whole[page : page + self.size]
        begin = whole.__array_interface__["data"][0]
        self.end = begin + page + self.size
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for guard in (begin, self.end):
            assert protect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0, ctypes.get_errno()

    def hold(self, data: bytes, *, at_start: bool = False) -> np.ndarray:
        """The data, right before the second page or, `at_start`, right behind the first."""
        view = self._view[: len(data)] if at_start else self._view[self.size - len(data) : self.size]
        view[:] = np.frombuffer(data, np.uint8)
        return view

    def tail(self, size: int) -> bytes:
        """The last bytes."""
        return self._view[self.size - size :][:size].tobytes()
