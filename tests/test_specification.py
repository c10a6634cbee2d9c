"""The pages of docs/format: every rule has a number and is shown by something; examples and schemas are true."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_segments.conformance.vectors import read_index
from spark_segments.log.manifest.files.delta.actions import table_actions
from tests.conftest import ROOT
from verification.world.kafka_bytes.golden_files import GOLDEN

PAGES = ROOT / "docs" / "format"
TEXTS = {path.name: path.read_text() for path in sorted(PAGES.glob("*.md"))}
RULE = r"[DMBIORWGK][0-9]+"
RULES = [number for text in TEXTS.values() for number in re.findall(rf"\*\*({RULE})\*\*", text)]


def _in_code(directory: Path, pattern: str) -> set[str]:
    texts = (path.read_text() for path in sorted(directory.rglob("*.py")))
    return {number for text in texts for found in re.findall(pattern, text) for number in re.findall(RULE, found)}


def test_every_rule_is_shown_by_a_vector_a_check_of_verify_or_a_test():
    vectors = {number for vector in read_index(GOLDEN) for number in (*vector.rules, *vector.findings)}
    checks = _in_code(ROOT / "spark_segments" / "maintenance" / "verification", rf'"{RULE}"')
    tests = _in_code(ROOT / "tests", r"pytest\.mark\.rule\(([^)]*)\)")

    assert len(set(RULES)) == len(RULES)
    assert vectors | checks | tests == set(RULES), sorted((vectors | checks | tests) ^ set(RULES))


@pytest.mark.parametrize("page", TEXTS)
def test_whatever_must_be_done_has_a_number(page):
    blocks = re.split(r"\n\n|\n(?=[*|] |\d\. )", TEXTS[page])
    lacking = [block for block in blocks if "MUST" in block and "RFC 2119" not in block and not re.search(RULE, block)]

    assert not lacking


def test_the_examples_are_files_of_the_vectors():
    blocks = re.findall(r'^```(\w+) title="([^"]+)"\n(.*?)^```$', TEXTS["examples.md"], re.MULTILINE | re.DOTALL)

    for kind, path, text in blocks:
        content = (ROOT / path).read_bytes()
        if path.endswith(".note"):
            assert content.startswith(text.encode()) and text.count("\n") == 2
            continue
        if kind == "json":
            assert text == content.decode() + "\n"
            continue
        end = 0
        for position, octets in re.findall(r"^ *([0-9]+)  ((?:[0-9a-f]{2} ?)+) ", text, re.MULTILINE):
            piece = bytes.fromhex(octets)
            assert int(position) >= end and content[int(position) :].startswith(piece)
            assert end in (0, int(position))
            end = int(position) + len(piece)
        assert end == len(content)
    assert len(blocks) == 8


def test_the_schema_is_that_of_the_table():
    metadata = next(action["metaData"] for action in table_actions("t") if "metaData" in action)
    published = json.loads((PAGES / "schemas" / "table-2.json").read_text())

    assert published["fields"] == json.loads(metadata["schemaString"])["fields"]


def test_the_schemas_of_rows_are_those_of_the_files():
    published = (PAGES / "schemas" / "rows.txt").read_text()

    for part in published.split("kind=")[1:]:
        kind, _, schema = part.partition("\n")
        schema = schema.replace("  optional int64 field_id=-1 min_timestamp_ms;\n", "")  # added in 2.4
        path = sorted((GOLDEN / "format-2/log/_manifest/codecs").glob(f"kind={kind}/*.parquet"))[-1]
        assert str(pq.ParquetFile(path).schema).split("\n", 1)[1].strip() == schema.strip()
