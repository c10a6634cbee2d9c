"""Buffers as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

CHUNK_BYTES = 32
"""Bytes that kernels copy by one load and one store."""

COPY_SLACK = CHUNK_BYTES
"""Bytes that kernels may write past what they copy to a buffer: it must have that much more room."""


def byte_view(buffer: Any) -> np.ndarray:
    """The bytes of any buffer as a read-only uint8[n], without a copy."""
    view = np.frombuffer(buffer, np.uint8)
    view.flags.writeable = False
    return view
