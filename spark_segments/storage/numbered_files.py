"""Numbered files of a directory, `<20 digits>.json`: of several that make a number one succeeds, the highest counts.

A number whose file was tidied away is free again. So the maker of a file looks afterwards whether it counts.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from spark_segments.errors import StorageError
from spark_segments.storage.storage import FileInfo, Storage

_LOOKS = 30

_LONGEST_NAME = 249
_KEPT_OF_LONG_IDS = 160
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")

T = TypeVar("T")


def crc_line(body: bytes) -> bytes:
    """The line of JSON behind `body` that has its CRC-32."""
    return b'\n{"crc32":%d}\n' % zlib.crc32(body)


def directory_name(identifier: str) -> str:
    """The name of the directory of what has this id.

    Bytes other than a-z A-Z 0-9 . _ - are written as = and two hexadecimal digits. An id that is too long for a file
    name is cut, and followed by == and its SHA-256.
    """
    name = "".join(chr(byte) if byte in _PLAIN else f"={byte:02X}" for byte in identifier.encode())
    if identifier in (".", ".."):
        name = name.replace(".", "=2E", 1)
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_KEPT_OF_LONG_IDS]}=={hashlib.sha256(identifier.encode()).hexdigest()}"
    return name


@dataclass(frozen=True, slots=True)
class NumberedListing:
    """The numbered files of a directory, and all others. `newest`: the highest number; that before the first number
    where there is none.
    """

    newest: int
    numbers: dict[int, FileInfo]
    others: list[FileInfo]

    def before(self, number: int) -> list[FileInfo]:
        """The files up to a number, the lowest first."""
        return [self.numbers[old] for old in sorted(self.numbers) if old <= number]


class NumberedFiles:
    """The numbered files of a directory, whether or not there are any. Holds no state: every call looks afresh."""

    def __init__(self, storage: Storage, directory: str, suffix: str = ".json", *, first: int = 1) -> None:
        self.storage = storage
        self.directory = directory
        self._suffix = suffix
        self._first = first

    @property
    def location(self) -> str:
        """The address of the directory, for errors."""
        return self.storage.location(self.directory)

    def path(self, number: int) -> str:
        """The path of a number's file."""
        return f"{self.directory}/{number:020d}{self._suffix}"

    def listing(self) -> NumberedListing:
        """All files of the directory, by one request."""
        numbers: dict[int, FileInfo] = {}
        others: list[FileInfo] = []
        for info in self.storage.list(self.directory):
            digits = info.path[len(self.directory) + 1 :].removesuffix(self._suffix)
            number = int(digits) if digits.isdecimal() else -1
            if number >= self._first and info.path == self.path(number):
                numbers[number] = info
            else:
                others.append(info)
        return NumberedListing(max(numbers, default=self._first - 1), numbers, others)

    def create(self, number: int, content: Any) -> None:
        """Makes a number's file. FileExistsError where it is taken; after a StorageError it may be there."""
        self.storage.create(self.path(number), content)

    def newest(self, read: Callable[[NumberedListing], T]) -> T:
        """What `read` makes of the newest file, or of none. It is asked again where it raises FileNotFoundError: newer
        files have taken the place of what it looked for.
        """
        for _ in range(_LOOKS):
            try:
                return read(self.listing())
            except FileNotFoundError:
                continue
        raise StorageError("Numbered files are gone as soon as found", path=self.location)
