"""Local files and object stores behind one small interface, and the rules that choose between them by address.

This layer does not know what a file holds.
"""

from __future__ import annotations

from spark_segments.storage.filesystem import FileSystem
from spark_segments.storage.storage import CLOCK_PROBE, FileInfo, Storage, WriteStream

__all__ = ["CLOCK_PROBE", "FileInfo", "FileSystem", "Storage", "WriteStream"]
