"""What Spark shows of a query's options: no credentials."""

from __future__ import annotations

import pytest

from spark_segments import LogDir
from spark_segments.spark.session import hide_credentials

SECRET = "correct-horse"
OPTIONS = {
    "storage.aws_secret_access_key": f"{SECRET}1",
    "storage.aws_access_key_id": f"{SECRET}2",
    "storage.aws_session_token": f"{SECRET}3",
    "storage.azure_storage_account_key": f"{SECRET}4",
    "storage.azure_storage_master_key": f"{SECRET}5",
    "storage.azure_storage_sas_key": f"{SECRET}6",
    "storage.azure_storage_client_secret": f"{SECRET}7",
    "storage.google_application_credentials": f"{SECRET}8",
    "schema.registry": f"http://user:{SECRET}9@127.0.0.1:1",
    "schema.registry.basic.auth.user.info": f"user:{SECRET}10",
    "schema.registry.bearer.auth.token": f"{SECRET}11",
}


@pytest.mark.parametrize("way", ["read", "readStream"])
def test_explain_shows_no_credentials(spark, tmp_path, capsys, way):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders")
    name = "spark.sql.redaction.options.regex"
    before = spark.conf.get(name)
    hide_credentials(spark)
    try:
        reader = getattr(spark, way).format("segments").options(subscribe="orders", **OPTIONS)
        reader.load(log.uri).explain(True)
        shown = capsys.readouterr().out
    finally:
        spark.conf.set(name, before)
    assert "segments" in shown and SECRET not in shown
    assert way == "read" or "subscribe=orders" in shown
