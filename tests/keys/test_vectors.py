"""Runs that were written by docs/format/key-index.md alone are read here, and the other way round."""

from __future__ import annotations

import base64
import json

import numpy as np
import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.keys.hashes import hashes_of
from spark_segments.keys.index_list import IndexFiles
from spark_segments.keys.job import index
from spark_segments.keys.run import Run
from spark_segments.keys.run_file import RunFile
from spark_segments.keys.run_layout import RunFooter
from spark_segments.storage import Storage
from verification.specification import key_run
from verification.world.kafka_bytes.golden_files import GOLDEN

DIRECTORY = GOLDEN / "key-index"
VECTORS = json.loads((DIRECTORY / "vectors.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_run_of_the_kit_has_the_offsets_of_each_key(vector):
    data = (DIRECTORY / vector["file"]).read_bytes()
    footer = RunFooter.of_bytes(data)
    footer_bytes = len(data) - footer.entry_bytes - footer.item_bytes
    own = vector["partition"], vector["base_offset"], vector["end_offset"], vector["manifest_version"]
    run = Run(vector["file"], *own, footer.records, footer.entries, len(data), footer_bytes)
    file = RunFile(Storage(str(DIRECTORY)), run, vector["topic_id"])
    for encoded, offsets in vector["keys"]:
        keys = pa.array([base64.b64decode(encoded)], pa.binary())
        answer = file.find(hashes_of(keys, footer.seed, footer.shape.hash_bits)[0])
        assert answer.is_anywhere == (offsets is None)
        assert answer.offsets.tolist() == (offsets or [])
    assert sum(records.count for records in file.all_records()) == footer.records


def test_a_run_of_this_package_is_read_by_the_pages_of_the_format(tmp_path):
    log = LogDir.create(str(tmp_path))
    log.create_topic("t")
    generator = np.random.default_rng(1)
    keys = [None if number == 0 else b"often" if number < 20 else b"key %d" % number for number in range(3000)]
    chosen = [keys[number] for number in generator.integers(0, 3000, 20_000) // generator.integers(1, 150, 20_000)]
    log.topic("t").append(pa.table({"key": pa.array(chosen, pa.binary()), "value": [b"v"] * len(chosen)}))
    index(log)
    [run] = IndexFiles(log.storage, "t").newest_list().runs
    data = (tmp_path / run.path).read_bytes()
    for key in {*chosen[:300], b"often", b"none"} - {None}:
        assert key_run.find(data, key) == [offset for offset, own in enumerate(chosen) if own == key]


def test_the_kit_is_what_the_pages_of_the_format_say():
    for vector in VECTORS:
        keys, bounds, shape = key_run.VECTORS[vector["name"]]
        written = key_run.write_run(keys, bounds, vector["topic_id"], vector["manifest_version"], **shape)
        assert written == (DIRECTORY / vector["file"]).read_bytes()
