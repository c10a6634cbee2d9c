"""The clients of object stores that a location's options make: obstore's stores, and boto3's sessions for roles and
profiles.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from spark_segments.errors import InvalidOptionError, MissingExtraError, StorageError
from spark_segments.quantities import duration_ms
from spark_segments.storage.locations import Location
from spark_segments.storage.storage_options import AZURE, BOTO3, CLIENT, GCS, S3, is_true, same, values

_TIMEOUT = timedelta(minutes=2)  # of a request with its body; obstore's 30 seconds cut large parts on slow lines
# The account of Azurite (Azure's emulator), the same on every machine.
EMULATOR_ACCOUNT = "devstoreaccount1"
EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def open_store(location: Location, retries: Mapping[str, Any]) -> Any:
    """obstore's store of the bucket or container of a location that is not local. Opens no connection yet."""
    opened = {"s3": _open_s3, "gs": _open_gcs}.get(location.scheme, _open_azure)
    return opened(location, {"client_options": _client_options(location), "retry_config": dict(retries)})


def _open_s3(location: Location, settings: dict[str, Any]) -> Any:
    from obstore.store import S3Store

    options = values(location.options, S3)
    config: Any = {**same(location.options, "aws_"), **options}
    if "endpoint" in options:
        _check_endpoint(options["endpoint"], "aws_endpoint_url", "aws_allow_http", settings)
        config["aws_endpoint_url_s3"] = options["endpoint"]  # which wins, and may be in the environment
    provider = None if is_true(options, "skip_signature") else _s3_credentials(location, config)
    config.setdefault("region", getattr(provider, "config", {}).get("region", "us-east-1"))
    return S3Store(location.bucket, config=config, credential_provider=provider, **settings)


def _s3_credentials(location: Location, config: dict[str, str]) -> Any:
    """A provider of credentials; it takes the keys of the options out of `config`.

    None where object_store finds them itself: in the environment, of the container or of the machine.
    """
    names = {"access_key_id": "access_key_id", "secret_access_key": "secret_access_key", "session_token": "token"}
    keys: dict[str, Any] = {theirs: config.pop(ours) for ours, theirs in names.items() if ours in config}
    if len({"access_key_id", "secret_access_key"} & keys.keys()) == 1:
        raise InvalidOptionError("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY go together", found="only one of them")
    options = values(location.options, BOTO3)
    if "role_arn" in options:
        role = {"RoleArn": options["role_arn"], "RoleSessionName": options.get("role_session_name", "spark-segments")}
        return _boto3("Roles to take on").StsCredentialProvider(boto3_session(location), **role)
    if keys:
        # Not by `config`: obstore would put a token of the environment beside them.
        return lambda: {"token": None, "expires_at": None, **keys}
    is_meant = "profile" in options or _is_there("AWS_SHARED_CREDENTIALS_FILE", "credentials")
    if "AWS_ACCESS_KEY_ID" in os.environ or not (is_meant or _is_there("AWS_CONFIG_FILE", "config")):
        return None
    try:
        return _boto3("Amazon's profiles").Boto3CredentialProvider(boto3_session(location))
    except ValueError:  # the profile has no credentials
        return None
    except MissingExtraError:
        if is_meant:
            raise
        return None


def _is_there(variable: str, name: str) -> bool:
    """Whether there is a file of Amazon's tools, which object_store does not read."""
    return os.path.exists(os.environ.get(variable) or os.path.expanduser(f"~/.aws/{name}"))


def _boto3(needed_by: str) -> Any:
    try:
        from obstore.auth import boto3
    except ImportError as error:
        raise MissingExtraError("s3", needed_by, "boto3") from error
    return boto3


def boto3_session(location: Location) -> Any:
    """boto3's session, with the keys or the profile of the options. Raises StorageError where boto3 refuses them."""
    import boto3
    from botocore.exceptions import BotoCoreError

    keys = values(location.options, S3)
    profile = values(location.options, BOTO3).get("profile")
    names = [name for name in ("access_key_id", "secret_access_key", "session_token") if name in keys]
    credentials: Any = {f"aws_{name}": keys[name] for name in names} if names else {"profile_name": profile}
    try:
        return boto3.Session(**credentials, region_name=keys.get("region"))
    except BotoCoreError as error:  # such as a profile that is not there
        raise StorageError(f"boto3 takes no such settings: {location.hidden(str(error))}", path=location.uri) from error


def _open_gcs(location: Location, settings: dict[str, Any]) -> Any:
    from obstore.store import GCSStore

    options = values(location.options, GCS)
    if "base_url" in options:
        _check_endpoint(options["base_url"], "google_base_url", None, settings)
    config: Any = {**same(location.options, "google_"), **options}
    return GCSStore(location.bucket, config=config, **settings)


def _open_azure(location: Location, settings: dict[str, Any]) -> Any:
    from obstore.store import AzureStore

    options = values(location.options, AZURE)
    account, _, authority = location.host.partition(".")
    config: Any = {**same(location.options, "azure_"), **options}
    if account:
        config["account_name"] = account
    if is_true(options, "use_emulator"):
        # Not by its own option, which takes the address from the environment alone.
        del config["use_emulator"]
        if "account_name" not in config:
            config["account_name"] = EMULATOR_ACCOUNT
            config.setdefault("account_key", EMULATOR_KEY)
        config.setdefault("endpoint", f"http://127.0.0.1:10000/{config['account_name']}")
    elif authority and authority != "dfs.core.windows.net":
        config.setdefault("endpoint", f"https://{account}.{authority.replace('dfs.', 'blob.', 1)}")
    if "endpoint" in config:
        _check_endpoint(config["endpoint"], "azure_storage_endpoint", None, settings)
    if "account_name" not in config:
        raise InvalidOptionError(
            "The Azure storage account is not known",
            expected="abfss://container@account.dfs.core.windows.net/path or the option AZURE_STORAGE_ACCOUNT_NAME",
            found=location.uri,
        )
    if "sas_key" in config:
        config["sas_key"] = config["sas_key"].removeprefix("?")
    return AzureStore(location.bucket, config=config, **settings)


def _client_options(location: Location) -> dict[str, Any]:
    options: dict[str, Any] = values(location.options, CLIENT)
    client = {"timeout": _TIMEOUT, **options, "allow_http": is_true(options, "allow_http")}
    for name in ("timeout", "connect_timeout"):
        if name in options:
            try:
                client[name] = timedelta(milliseconds=duration_ms(options[name], "s"))
            except InvalidOptionError as error:
                error.message = f"Storage option {name} is no duration"
                error.expected = "as in 30s or 2m"
                raise
    return client


def _check_endpoint(text: str, name: str, flag: str | None, settings: dict[str, Any]) -> None:
    """Refuses what is no URL; and http:// without `flag`, where it needs one."""
    scheme, separator, host = text.rstrip("/").partition("://")
    if not separator or scheme not in ("http", "https") or not host:
        raise InvalidOptionError(
            f"Storage option {name} is no URL", expected="http://host:port or https://host", found=text
        )
    client = settings["client_options"]
    if scheme == "http" and flag is not None and not client["allow_http"]:
        raise InvalidOptionError(f"An endpoint without TLS needs the option {flag}=true", found=text)
    client["allow_http"] = client["allow_http"] or scheme == "http"
