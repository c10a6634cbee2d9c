"""An option with a credential that is mistyped, given twice or at odds is named; its value is not shown."""

from __future__ import annotations

import pytest

from spark_segments import LogDir
from spark_segments.config.rules import parse_overrides
from spark_segments.errors import InvalidOptionError
from spark_segments.spark.options import load_options
from spark_segments.spark.tables import table_options

SECRET = "user:correct-Horse1"
MISTYPED = f"schema.registry.basic.auth.userinfo={SECRET}"


@pytest.mark.parametrize("command", ["consume", "append", "sql", "page"])
def test_a_mistyped_property_is_named_without_its_value(run, tmp_path, command):
    uri = str(tmp_path / "log")
    LogDir.create(uri).create_topic("orders")
    arguments = {
        "sql": [uri, "SELECT 1"],
        "page": [uri, "--port", "0"],
        "append": [uri, "orders", "--input", "x"],
    }.get(command, [uri, "orders"])
    ran = run(command, *arguments, "--property", MISTYPED)
    assert ran.code == 1
    assert "schema.registry.basic.auth.userinfo" in ran.error
    assert "Did you mean schema.registry.basic.auth.user.info?" in ran.error
    assert "correct" not in ran.error


@pytest.mark.parametrize(
    "texts",
    [[f"aws_secret_access_key:{SECRET}"], [SECRET], [f"key={SECRET}", "key=other"], ["key=other", f"key={SECRET}"]],
)
def test_settings_that_are_none_are_not_shown(texts):
    with pytest.raises(InvalidOptionError) as caught:
        parse_overrides(texts)
    assert "correct" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"schema.registry.basic.auth.userinfo": SECRET},
        {"schema.registry.bearer.auth.tokn": SECRET},
        {"schema.registry.bearer.auth.token": SECRET, "kafka.schema.registry.bearer.auth.token": "other"},
    ],
)
def test_an_option_of_spark_that_is_wrong_is_named_without_its_value(options):
    with pytest.raises(InvalidOptionError, match=r"schema\.registry") as caught:
        load_options({"path": "/data/log", "subscribe": "orders"} | options)
    assert "correct" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"storage.aws_secret_access_key": SECRET},
        {"schema.registry.basic.auth.user.info": SECRET},
        {"kafka.schema.registry.bearer.auth.token": SECRET},
        {"schema.registry": f"https://{SECRET}@registry:8081"},
    ],
)
def test_a_table_of_a_catalog_keeps_no_credentials(options):
    given = {"provider": "segments", "owner": "me", "path": "/data/log", "subscribe": "orders"}
    with pytest.raises(InvalidOptionError, match="cannot keep") as caught:
        table_options(given | options)
    assert "correct" not in str(caught.value)
    assert table_options(given | {"schema.registry": "https://registry:8081/@x"}) is not None
