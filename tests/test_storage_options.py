"""Addresses and storage options: what pyarrow is told, in its own terms, and what delta-rs is told."""

from __future__ import annotations

import os

import pytest

from spark_segments.errors import InvalidOptionError, StorageError
from spark_segments.storage.locations import open_filesystem, parse_location
from spark_segments.storage.s3 import s3_client


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)


def settings(uri: str, options: dict[str, str]) -> dict[str, object]:
    """What pyarrow made of it: the arguments it would pickle the file system with."""
    return open_filesystem(parse_location(uri, options)).__reduce__()[1][0]


@pytest.mark.parametrize(
    ("uri", "clean", "root"),
    [
        ("/data/log", "/data/log", "/data/log"),
        ("/data//log/../other/", "/data/other", "/data/other"),
        ("file:///data/log", "/data/log", "/data/log"),
        ("file:/data/my%20log", "/data/my log", "/data/my log"),
        ("file://localhost/data", "/data", "/data"),
        ("s3://bucket/a/b", "s3://bucket/a/b", "bucket/a/b"),
        ("s3a://bucket//a/b/", "s3://bucket/a/b", "bucket/a/b"),
        ("S3A://bucket", "s3://bucket", "bucket"),
        ("gs://bucket/a", "gs://bucket/a", "bucket/a"),
        ("abfs://container/a", "abfs://container/a", "container/a"),
        (
            "abfss://container@account.dfs.core.windows.net/a/b",
            "abfss://container@account.dfs.core.windows.net/a/b",
            "container/a/b",
        ),
    ],
)
def test_addresses(uri, clean, root):
    location = parse_location(uri, {})
    assert (location.uri, location.root) == (clean, root)
    assert location.join("orders-0/0.log") == f"{root}/orders-0/0.log"


def test_relative_paths_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_location("log", {}).root == str(tmp_path / "log")
    assert parse_location(".", {}).root == str(tmp_path)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("", "empty"),
        ("hdfs://namenode/log", "Unknown kind of file system.*s3://.*found hdfs://namenode/log"),
        ("file://server/share", "names no host"),
        ("s3://", "names no bucket"),
        ("s3:///key", "names no bucket"),
        ("s3://user@bucket/key", "names no bucket"),
        ("s3://bucket/a b", "one of the characters"),
        ("s3://bucket/a%20b", "one of the characters"),
        ("gs://bucket/a?x=1", "one of the characters"),
    ],
)
def test_wrong_addresses(uri, message):
    with pytest.raises(InvalidOptionError, match=message):
        parse_location(uri, {})


def test_s3_credentials_and_endpoint_in_any_case():
    given = {
        "AWS_ACCESS_KEY_ID": "id",
        "aws_secret_access_key": "secret",
        "Aws_Session_Token": "token",
        "AWS_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9000/",
        "AWS_ALLOW_HTTP": "true",
        "timeout": "30s",
        "connect_timeout": "500ms",
    }
    made = settings("s3a://bucket/log", given)
    wanted = {
        "access_key": "id",
        "secret_key": "secret",
        "session_token": "token",
        "region": "eu-central-1",
        "scheme": "http",
        "endpoint_override": "127.0.0.1:9000",
        "request_timeout": 30.0,
        "connect_timeout": 0.5,
        "background_writes": False,
    }
    assert {name: made[name] for name in wanted} == wanted


def test_an_endpoint_without_a_region_is_us_east_1():
    made = settings("s3://bucket", {"aws_endpoint_url": "https://minio.example", "aws_skip_signature": "true"})
    assert (made["region"], made["scheme"], made["endpoint_override"], made["anonymous"]) == (
        "us-east-1",
        "https",
        "minio.example",
        True,
    )


def test_virtual_hosting_takes_the_bucket_out_of_the_endpoint():
    options = {
        "aws_endpoint_url": "https://bucket.s3.example",
        "aws_virtual_hosted_style_request": "true",
        "aws_skip_signature": "true",
    }
    made = settings("s3://bucket/log", options)
    assert made["endpoint_override"] == "s3.example"
    assert made["force_virtual_addressing"] is True


@pytest.mark.slow
def test_an_assumed_role():
    made = settings("s3://bucket", {"AWS_S3_ASSUME_ROLE_ARN": "arn:aws:iam::1:role/r", "AWS_REGION": "us-east-1"})
    assert made["role_arn"] == "arn:aws:iam::1:role/r"


def test_the_environment_stands_in_for_what_is_not_given(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://from.environment")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    made = settings("s3://bucket", {"aws_region": "eu-north-1", "aws_skip_signature": "true"})
    assert (made["endpoint_override"], made["region"]) == ("from.environment", "eu-north-1")


def test_credentials_are_never_put_together_from_options_and_environment(monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of somebody else")
    options = {"aws_access_key_id": "id", "aws_secret_access_key": "secret", "aws_region": "us-east-1"}
    made = settings("s3://bucket", options)
    assert (made["access_key"], made["secret_key"], made["session_token"]) == ("id", "secret", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aws_acces_key_id": "x"}, "Unknown storage option.*Did you mean AWS_ACCESS_KEY_ID"),
        ({"AWS_ENDPONT_URL": "x"}, "Did you mean AWS_ENDPOINT_URL"),
        ({"aws_endpoint_url": "http://127.0.0.1:9000"}, "aws_allow_http=true"),
        ({"aws_endpoint_url": "127.0.0.1:9000"}, "is no URL"),
        ({"aws_access_key_id": "x"}, "go together"),
        ({"timeout": "soon"}, "is no duration"),
    ],
)
def test_wrong_s3_options(options, message):
    with pytest.raises(InvalidOptionError, match=message):
        settings("s3://bucket", {"aws_region": "us-east-1", **options})


def test_delta_rs_gets_the_options_in_the_case_it_reads():
    options = {"aws_access_key_id": "id", "AWS_Region": "r", "timeout": "30s", "aws_s3_allow_unsafe_rename": "false"}
    assert parse_location("s3://bucket", options).delta_options() == {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_REGION": "r",
        "timeout": "30s",
        "AWS_S3_ALLOW_UNSAFE_RENAME": "false",
    }
    assert parse_location("/data", options).delta_options() == {}


def test_truth_values_may_be_pythons():
    made = settings("s3://b", {"aws_endpoint_url": "http://h:1", "aws_allow_http": True, "aws_skip_signature": True})
    assert made["scheme"] == "http"


def test_azure_account_from_the_address_or_the_options():
    key = {"AZURE_STORAGE_ACCOUNT_KEY": "Zm9v"}
    made = settings("abfss://c@account.dfs.core.windows.net/p", key)
    assert (made["account_name"], made["account_key"]) == ("account", "Zm9v")
    assert made["dfs_storage_authority"] == ".dfs.core.windows.net"
    made = settings("abfs://c/p", {"azure_storage_account_name": "other", **key})
    assert (made["account_name"], made["account_key"]) == ("other", "Zm9v")
    with pytest.raises(InvalidOptionError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        settings("abfs://c/p", key)


def test_azure_in_other_clouds_with_other_credentials():
    options = {"azure_tenant_id": "t", "azure_client_id": "i", "azure_client_secret": "s"}
    made = settings("abfss://c@account.dfs.core.chinacloudapi.cn/p", options)
    assert made["dfs_storage_authority"] == ".dfs.core.chinacloudapi.cn"
    assert made["blob_storage_authority"] == ".blob.core.chinacloudapi.cn"
    assert (made["tenant_id"], made["client_id"], made["client_secret"]) == ("t", "i", "s")


@pytest.mark.parametrize("token", ["sv=2024&sig=c2ln%3D", "?sv=2024&sig=c2ln%3D"])
def test_an_azure_sas_token_begins_as_pyarrow_wants_it(token):
    made = settings("abfss://c@account.dfs.core.windows.net/p", {"azure_storage_sas_token": token})
    assert made["sas_token"] == "?sv=2024&sig=c2ln%3D"


def test_credentials_are_taken_out_of_the_texts_of_clients(monkeypatch):
    secret, token = "wJalrXUtnFEMI/K7MDENG", "sv=2024&se=2030&sig=c2lnbmF0dXJl%3D"
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of the environment")
    location = parse_location("s3://bucket/log", {"aws_secret_access_key": secret, "azure_storage_sas_token": token})
    for text in (secret, "wJalrXUtnFEMI%2FK7MDENG", token, "of the environment"):
        assert location.hidden(f"GET http://host/?{text} failed") == "GET http://host/?*** failed"
    assert location.hidden("https://host/a?x=1&sig=another&y=2") == "https://host/a?x=1&sig=***&y=2"
    assert location.hidden("No such key: orders-0/0.log") == "No such key: orders-0/0.log"


def test_an_address_with_credentials_in_it_is_not_shown():
    with pytest.raises(InvalidOptionError, match=r"s3a://\*\*\*@bucket/log") as raised:
        parse_location("s3a://AKIAEXAMPLE:wJalr/XUtn@bucket/log", {})
    assert "wJalr" not in str(raised.value) and "AKIA" not in str(raised.value)


def test_the_azure_emulator():
    made = settings("abfs://c/p", {"azure_storage_use_emulator": "true"})
    assert (made["blob_storage_authority"], made["blob_storage_scheme"]) == ("127.0.0.1:10000", "http")
    assert made["account_name"] == "devstoreaccount1"


def test_google_service_account_reaches_pyarrow_by_the_process(monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    settings("gs://bucket", {"GOOGLE_SERVICE_ACCOUNT": "/etc/one.json"})
    assert os.environ["GOOGLE_APPLICATION_CREDENTIALS"] == "/etc/one.json"
    with pytest.raises(InvalidOptionError, match="one Google service account"):
        settings("gs://bucket", {"GOOGLE_SERVICE_ACCOUNT": "/etc/two.json"})
    with pytest.raises(InvalidOptionError, match="GOOGLE_SERVICE_ACCOUNT"):
        settings("gs://bucket", {"GOOGLE_SERVICE_ACCOUNT_KEY": "{}"})


def test_google_without_credentials():
    made = settings("gs://bucket", {"google_skip_signature": "true", "google_base_url": "http://127.0.0.1:4443"})
    assert (made["anonymous"], made["endpoint_override"], made["scheme"]) == (True, "127.0.0.1:4443", "http")


def test_settings_that_boto3_refuses_are_one_error_without_secrets(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody-has-this-profile")
    secrets = {"AWS_SECRET_ACCESS_KEY": "hush-hush-hush", "AWS_ACCESS_KEY_ID": "key"}
    with pytest.raises(StorageError, match="nobody-has-this-profile") as raised:
        s3_client(parse_location("s3://bucket/log", secrets))
    assert "hush" not in str(raised.value)
