"""Damage in a file of a partition directory."""

from __future__ import annotations

from pathlib import Path

LAST = "00000000000000004885"


def damage(directory: Path, file: str, position: int, data: bytes) -> None:
    path = directory / file
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)
