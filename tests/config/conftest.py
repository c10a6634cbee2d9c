"""A server's configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def defaults_file(tmp_path):
    def write(*lines: str) -> Path:
        path = tmp_path / "segments.properties"
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    return write
