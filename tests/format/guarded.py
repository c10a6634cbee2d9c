"""Memory for tests of kernels: what reads or writes beyond it crashes."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np


class Guarded:
    """Memory that ends where the process may read and write no further: a step beyond it is a crash."""

    def __init__(self, most_bytes: int) -> None:
        page = mmap.PAGESIZE
        self.size = -(-most_bytes // page) * page
        self._map = mmap.mmap(-1, self.size + page)
        self._view = np.frombuffer(self._map, np.uint8)
        self.end = self._view.__array_interface__["data"][0] + self.size
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        assert protect(ctypes.c_void_p(self.end), ctypes.c_size_t(page), 0) == 0, ctypes.get_errno()

    def hold(self, data: bytes) -> np.ndarray:
        view = self._view[self.size - len(data) : self.size]
        view[:] = np.frombuffer(data, np.uint8)
        return view

    def tail(self, size: int) -> bytes:
        """The last bytes."""
        return self._view[self.size - size :][:size].tobytes()
