"""A topic of three partitions, which has a manifest alone."""

from __future__ import annotations

import pytest

from verification.world.chunk_rows import new_manifest
from verification.world.manifest_rows import Manifest


@pytest.fixture
def manifest(tmp_path) -> Manifest:
    return new_manifest(tmp_path)
