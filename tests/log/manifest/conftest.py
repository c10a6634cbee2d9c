"""A topic of three partitions, which has a manifest alone."""

from __future__ import annotations

import pytest

from tests.log.chunk_rows import new_manifest
from tests.manifest_rows import Manifest


@pytest.fixture
def manifest(tmp_path) -> Manifest:
    return new_manifest(tmp_path)
