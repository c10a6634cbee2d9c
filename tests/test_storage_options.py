"""Addresses and storage options: what obstore and boto3 are told, in their own terms, and what delta-rs is told."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from spark_segments.errors import InvalidOptionError, StorageError
from spark_segments.storage import Storage
from spark_segments.storage.clients import open_store
from spark_segments.storage.locations import parse_location
from spark_segments.storage.storage_options import KNOWN


@pytest.fixture(autouse=True)
def no_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)


def opened(uri: str, options: dict[str, str]):
    return open_store(parse_location(uri, options), {})


def settings(uri: str, options: dict[str, str]) -> dict[str, object]:
    """What obstore made of it, with the options of its client, and the keys that its requests are signed with."""
    store = opened(uri, options)
    keys = store.credential_provider() if getattr(store, "credential_provider", None) else {}
    return {**_texts(store.config), **_texts(store.client_options or {}), **keys}


def _texts(given: Mapping[str, object]) -> dict[str, object]:
    """obstore shows numbers and truth values as texts."""
    truth = {"true": True, "false": False}
    return {name: truth.get(str(value), value) for name, value in given.items()}


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
        "access_key_id": "id",
        "secret_access_key": "secret",
        "token": "token",
        "region": "eu-central-1",
        "endpoint": "http://127.0.0.1:9000/",
        "allow_http": True,
        "timeout": "30s",
        "connect_timeout": "500ms",
    }
    assert {name: made[name] for name in wanted} == wanted


def test_an_endpoint_without_a_region_is_us_east_1():
    made = settings("s3://bucket", {"aws_endpoint_url": "https://minio.example", "aws_skip_signature": "true"})
    wanted = {"region": "us-east-1", "endpoint": "https://minio.example", "skip_signature": True, "allow_http": False}
    assert {name: made[name] for name in wanted} == wanted


def test_an_option_given_by_two_of_its_names_counts_once():
    given = {"endpoint": "https://second", "AWS_ENDPOINT_URL": "https://first", "aws_endpoint_url_s3": "https://third"}
    keys = {"aws_access_key_id": "first", "access_key_id": "second", "aws_secret_access_key": "secret"}
    made = settings("s3://bucket", given | keys)
    assert (made["endpoint"], made["endpoint_url_s3"], made["access_key_id"]) == ("https://first",) * 2 + ("first",)
    account = {"azure_storage_account_name": "first", "account_name": "second", "azure_storage_access_key": "Zm9v"}
    assert settings("abfs://c/p", account | {"account_key": "YmFy"})["account_name"] == "first"


@pytest.mark.proof
def test_every_option_is_taken_by_obstore_or_known_to_be_for_others():
    flags = {"aws_s3_express", "aws_server_side_encryption", "aws_checksum_algorithm", "aws_conditional_put"}
    texts = {"aws_copy_if_not_exists": "multipart", "timeout": "3s", "connect_timeout": "3s", "proxy_url": "http://p"}
    texts |= dict.fromkeys(
        [name for name in KNOWN if re.search("_endpoint|endpoint_url|base_url|^endpoint$", name)], "https://host"
    )
    texts["azure_use_fabric_endpoint"] = "true"
    texts |= dict.fromkeys([name for name in KNOWN if "sas" in name], "sv=1&sig=c2ln")
    addresses = {"azure": "abfss://c@account.dfs.core.windows.net/p", "google": "gs://bucket/p"}
    for name in sorted(KNOWN - flags):
        if re.search("_key_id|access_key_id|secret_access_key|profile|role_arn|credentials$|service_account", name):
            continue  # of two that go together, of boto3, of a file
        store = opened(addresses.get(name.partition("_")[0], "s3://bucket/p"), {name: texts.get(name, "true")})
        assert "bucket" in str(store) or "container" in str(store) or "c" in str(store)


def test_virtual_hosting_keeps_the_bucket_in_the_endpoint():
    options = {
        "aws_endpoint_url": "https://bucket.s3.example",
        "aws_virtual_hosted_style_request": "true",
        "aws_skip_signature": "true",
    }
    made = settings("s3://bucket/log", options)
    assert (made["endpoint"], made["virtual_hosted_style_request"]) == ("https://bucket.s3.example", True)


def test_an_assumed_role(monkeypatch):
    """boto3 asks Amazon's service for tokens; moto answers in its place."""
    import moto

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the environment")
    role = {"AWS_S3_ASSUME_ROLE_ARN": "arn:aws:iam::123456789012:role/r", "AWS_REGION": "us-east-1"}
    with moto.mock_aws():
        made = settings("s3://bucket", role)
        assert made["access_key_id"].startswith("ASIA") and made["token"]
        assert made["expires_at"] > datetime.now(UTC)
        keys = {"aws_access_key_id": "id", "aws_secret_access_key": "secret"}
        assert settings("s3://bucket", role | keys)["access_key_id"].startswith("ASIA")


def test_a_profile_of_amazons_tools(monkeypatch, tmp_path):
    files = tmp_path / ".aws"
    files.mkdir()
    text = "[default]\naws_access_key_id=one\naws_secret_access_key=x\n"
    (files / "credentials").write_text(f"{text}[other]\naws_access_key_id=two\naws_secret_access_key=y\n")
    assert settings("s3://bucket", {})["access_key_id"] == "one"
    assert settings("s3://bucket", {"aws_profile": "other"})["access_key_id"] == "two"
    (files / "config").write_text("[default]\nregion=eu-west-3\n")
    assert settings("s3://bucket", {})["region"] == "eu-west-3"
    assert settings("s3://bucket", {"aws_region": "eu-west-1"})["region"] == "eu-west-1"
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert settings("s3://bucket", {})["access_key_id"] == "two"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "three")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "z")
    assert opened("s3://bucket", {}).credential_provider is None, "obstore reads the environment"


def test_a_profile_that_is_not_there_is_one_error():
    with pytest.raises(StorageError, match="nobody-has-this"):
        Storage("s3://bucket/log", {"aws_profile": "nobody-has-this"}).exists("a")


def test_the_environment_stands_in_for_what_is_not_given(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://from.environment")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    made = settings("s3://bucket", {"aws_region": "eu-north-1", "aws_skip_signature": "true"})
    assert (made["endpoint"], made["region"], made["allow_http"]) == ("http://from.environment", "eu-north-1", True)


def test_an_endpoint_of_the_options_wins_over_one_of_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://from.environment")
    made = settings("s3://bucket", {"aws_endpoint_url": "https://given", "aws_skip_signature": "true"})
    assert (made["endpoint"], made["endpoint_url_s3"]) == ("https://given", "https://given")


def test_credentials_are_never_put_together_from_options_and_environment(monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of somebody else")
    options = {"aws_access_key_id": "id", "aws_secret_access_key": "secret", "aws_region": "us-east-1"}
    made = settings("s3://bucket", options)
    assert (made["access_key_id"], made["secret_access_key"], made["token"]) == ("id", "secret", None)


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
    assert made["allow_http"] is True


def test_azure_account_from_the_address_or_the_options():
    key = {"AZURE_STORAGE_ACCOUNT_KEY": "Zm9v"}
    made = settings("abfss://c@account.dfs.core.windows.net/p", key)
    assert (made["account_name"], made["account_key"]) == ("account", "Zm9v")
    assert "endpoint" not in made
    made = settings("abfs://c/p", {"azure_storage_account_name": "other", **key})
    assert (made["account_name"], made["account_key"]) == ("other", "Zm9v")
    with pytest.raises(InvalidOptionError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        settings("abfs://c/p", key)


def test_azure_in_other_clouds_with_other_credentials():
    options = {"azure_tenant_id": "t", "azure_client_id": "i", "azure_client_secret": "s"}
    made = settings("abfss://c@account.dfs.core.chinacloudapi.cn/p", options)
    assert made["endpoint"] == "https://account.blob.core.chinacloudapi.cn"
    assert (made["tenant_id"], made["client_id"], made["client_secret"]) == ("t", "i", "s")


@pytest.mark.parametrize("token", ["sv=2024&sig=c2ln%3D", "?sv=2024&sig=c2ln%3D"])
def test_an_azure_sas_token_may_begin_as_the_portal_shows_it(token):
    made = settings("abfss://c@account.dfs.core.windows.net/p", {"azure_storage_sas_token": token})
    assert made["sas_key"] == "sv=2024&sig=c2ln%3D"


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
    assert made["endpoint"] == "http://127.0.0.1:10000/devstoreaccount1"
    assert (made["account_name"], made["allow_http"]) == ("devstoreaccount1", True)


def test_google_service_accounts_by_their_file_and_by_themselves(tmp_path):
    account = {"gcs_base_url": "http://h", "disable_oauth": True, "client_email": "", "private_key": ""}
    text = json.dumps({**account, "private_key_id": ""})
    (tmp_path / "account.json").write_text(text)
    path = str(tmp_path / "account.json")
    assert settings("gs://bucket", {"GOOGLE_SERVICE_ACCOUNT": path})["service_account"] == path
    assert settings("gs://bucket", {"GOOGLE_SERVICE_ACCOUNT_KEY": text})["service_account_key"] == text


@pytest.mark.parametrize(
    "scheme", ["abfss://logs@account.dfs.core.windows.net", "https://account.blob.core.windows.net"]
)
def test_a_signature_in_an_address_is_not_shown(scheme):
    with pytest.raises(InvalidOptionError) as raised:
        parse_location(f"{scheme}/log?sv=2024-01-01&sig=PLANTED%2Fsecret", {})
    assert "PLANTED" not in str(raised.value) and "sig=***" in str(raised.value)


def test_google_without_credentials():
    made = settings("gs://bucket", {"google_skip_signature": "true", "google_endpoint_url": "http://127.0.0.1:4443"})
    wanted = {"skip_signature": True, "base_url": "http://127.0.0.1:4443", "allow_http": True}
    assert {name: made[name] for name in wanted} == wanted


def test_settings_that_boto3_refuses_are_one_error_without_secrets(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody-has-this-profile")
    secrets = {"AWS_SECRET_ACCESS_KEY": "hush-hush-hush", "AWS_ACCESS_KEY_ID": "key"}
    role = {"AWS_S3_ASSUME_ROLE_ARN": "arn:aws:iam::123456789012:role/r"}
    with pytest.raises(StorageError, match="nobody-has-this-profile") as raised:
        opened("s3://bucket/log", secrets | role)
    assert "hush" not in str(raised.value)
