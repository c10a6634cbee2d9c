"""A topic of three partitions, which has a manifest alone."""

from __future__ import annotations

import pytest

from spark_segments.log.manifest.manifest import Manifest
from tests.log.chunk_rows import new_manifest


@pytest.fixture
def manifest(tmp_path) -> Manifest:
    return new_manifest(tmp_path)
