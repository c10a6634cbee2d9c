"""The file system that an address means, and storage options in delta-rs's names translated for pyarrow.fs.

No other module knows both sets of names. Option names are those of delta-rs (its object_store crate), in upper or lower
case. The manifest's Delta tables get them unchanged; for every other file they are translated here. An option that is
not given is taken from the environment variable of the same name, as delta-rs does.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from spark_segments.errors import InvalidOptionError

# our name: delta-rs's names for it, the name of the environment variable first
_S3 = {
    "access_key": ("aws_access_key_id", "access_key_id"),
    "secret_key": ("aws_secret_access_key", "secret_access_key"),
    "session_token": ("aws_session_token", "aws_token", "session_token", "token"),
    "region": ("aws_region", "region", "aws_default_region", "default_region"),
    "endpoint": ("aws_endpoint_url", "aws_endpoint", "endpoint_url", "endpoint", "aws_endpoint_url_s3"),
    "allow_http": ("aws_allow_http", "allow_http"),
    "skip_signature": ("aws_skip_signature", "skip_signature"),
    "virtual_hosted": ("aws_virtual_hosted_style_request", "virtual_hosted_style_request"),
    "role_arn": ("aws_iam_role_arn", "aws_s3_assume_role_arn"),
    "role_session_name": ("aws_iam_role_session_name", "aws_s3_role_session_name"),
    "request_timeout": ("timeout",),
    "connect_timeout": ("connect_timeout",),
    "proxy": ("proxy_url",),
}
# Amazon's client reads these from the environment itself, all together: a key from the options with a token from the
# environment would not match.
_NOT_FROM_ENVIRONMENT = ("access_key", "secret_key", "session_token")
_GCS = {
    "account": (
        "google_service_account",
        "google_service_account_path",
        "service_account",
        "service_account_path",
        "google_application_credentials",
        "application_credentials",
    ),
    "account_key": ("google_service_account_key", "service_account_key"),
    "skip_signature": ("google_skip_signature", "skip_signature"),
    "endpoint": ("google_base_url", "google_endpoint_url"),
}
_AZURE = {
    "account": ("azure_storage_account_name", "account_name"),
    "key": (
        "azure_storage_account_key",
        "azure_storage_access_key",
        "azure_storage_master_key",
        "access_key",
        "account_key",
        "master_key",
    ),
    "client_id": ("azure_storage_client_id", "azure_client_id", "client_id"),
    "client_secret": ("azure_storage_client_secret", "azure_client_secret", "client_secret"),
    "tenant_id": (
        "azure_storage_tenant_id",
        "azure_storage_authority_id",
        "azure_tenant_id",
        "azure_authority_id",
        "tenant_id",
        "authority_id",
    ),
    "sas": ("azure_storage_sas_key", "azure_storage_sas_token", "sas_key", "sas_token"),
    "endpoint": ("azure_storage_endpoint", "azure_endpoint", "endpoint"),
    "emulator": ("azure_storage_use_emulator", "object_store_use_emulator", "use_emulator"),
}
# Options for delta-rs alone: they do not matter for reaching the files beside the manifest.
_DELTA_ONLY = (
    "aws_bucket aws_bucket_name aws_imdsv1_fallback aws_metadata_endpoint aws_unsigned_payload "
    "aws_checksum_algorithm aws_container_credentials_relative_uri aws_container_credentials_full_uri "
    "aws_container_authorization_token_file aws_web_identity_token_file aws_role_arn aws_role_session_name "
    "aws_endpoint_url_sts aws_endpoint_url_dynamodb aws_region_dynamodb aws_access_key_id_dynamodb "
    "aws_secret_access_key_dynamodb aws_session_token_dynamodb aws_copy_if_not_exists aws_conditional_put "
    "aws_disable_tagging aws_disable_bulk_delete aws_s3_express aws_request_payer aws_server_side_encryption "
    "aws_sse_kms_key_id aws_sse_bucket_key_enabled aws_sse_customer_key_base64 aws_s3_allow_unsafe_rename "
    "aws_s3_locking_provider aws_force_credential_load aws_s3_pool_idle_timeout_seconds "
    "aws_sts_pool_idle_timeout_seconds aws_s3_get_internal_server_error_retries aws_profile "
    "aws_ec2_metadata_disabled google_bucket google_bucket_name azure_storage_token azure_msi_endpoint "
    "azure_identity_endpoint azure_object_id azure_msi_resource_id azure_federated_token_file azure_use_azure_cli "
    "azure_skip_signature azure_container_name azure_disable_tagging azure_use_fabric_endpoint "
    "azure_storage_authority_host azure_authority_host azure_fabric_token_service_url azure_fabric_workload_host "
    "azure_fabric_session_token azure_fabric_cluster_identifier "
)

_KNOWN = {name for table in (_S3, _GCS, _AZURE) for names in table.values() for name in names} | set(
    _DELTA_ONLY.split()
)
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/")
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)\s*(ms|s|secs?|seconds?|m|mins?|minutes?)?$")
# The account of Azurite (Azure's emulator), the same on every machine.
_EMULATOR_ACCOUNT = "devstoreaccount1"
_EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_SECRET = re.compile("key|secret|token|sas|password|proxy", re.IGNORECASE)
_SHORTEST_SECRET = 8  # shorter values stand in names and texts by chance
_SIGNATURE = re.compile(r"\b(sig=)[^&\s'\"]+")
SCHEMES = ("file", "s3", "s3a", "gs", "abfs", "abfss")


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed address. `root`: its path for pyarrow.fs (`bucket/key` in an object store, an absolute local path)."""

    uri: str
    scheme: str
    root: str
    host: str
    options: Mapping[str, str]

    @property
    def is_local(self) -> bool:
        return self.scheme == "file"

    def join(self, path: str) -> str:
        return f"{self.root.rstrip('/')}/{path}" if path else self.root

    def hidden(self, text: str) -> str:
        """A text of a store's client without the credentials of the options and of the environment.

        Azure's client names addresses in its errors, and a SAS token is a part of them.
        """
        found = [value for name, value in self.options.items() if _SECRET.search(name)]
        found += [value for name, value in os.environ.items() if name.lower() in _KNOWN and _SECRET.search(name)]
        for value in sorted({one for one in found if len(one) >= _SHORTEST_SECRET}, key=len, reverse=True):
            for spelling in (value, quote(value, safe=""), quote(value)):
                text = text.replace(spelling, "***")
        return _SIGNATURE.sub(r"\1***", text)

    def delta_options(self) -> dict[str, str]:
        """The options for delta-rs, which reads some names in upper case only. Spark passes all names in lower case."""
        if self.is_local:
            return {}
        prefixed = ("aws_", "azure_", "google_", "delta_")
        return {key.upper() if key.lower().startswith(prefixed) else key: text for key, text in self.options.items()}


def parse_location(uri: str, options: Mapping[str, object]) -> Location:
    """Parses an address. A relative local path is resolved against the working directory. Raises InvalidOptionError."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    _refuse_unknown(texts)
    if not uri:
        raise InvalidOptionError("The location of the log directory is empty", expected="a path or a URI", found="''")
    if "\0" in uri:
        raise InvalidOptionError("The location of the log directory holds a NUL character", found=repr(uri))
    match = _SCHEME.match(uri)
    if match is None:
        path = os.path.abspath(uri)
        return Location(path, "file", path, "", texts)
    scheme = match.group(1).lower()
    if scheme == "file":
        parts = urlsplit(uri)
        if parts.netloc not in ("", "localhost"):
            raise InvalidOptionError("A file:// URI names no host", expected="file:///path", found=_shown(uri))
        path = os.path.abspath(unquote(parts.path))
        return Location(path, "file", path, "", texts)
    if scheme not in SCHEMES:
        expected = "a local path, " + ", ".join(f"{name}://" for name in SCHEMES)
        raise InvalidOptionError("Unknown kind of file system", expected=expected, found=_shown(uri))
    # delta-rs reads these characters as parts of a URL, pyarrow as part of a name: the two would use different places.
    if re.search(r"[?#%\s]", uri):
        raise InvalidOptionError("The URI holds one of the characters ? # % or a space", found=_shown(uri))
    authority, _, key = uri[match.end() :].removeprefix("/").partition("/")
    key = "/".join(part for part in key.split("/") if part)
    if ":" in authority:
        raise InvalidOptionError(
            "The URI has credentials or a port in it",
            expected=f"{scheme}://bucket/path",
            found=_shown(uri),
            hint="Give credentials and endpoints as storage options",
        )
    container, _, host = authority.partition("@")
    if not container or (host and not scheme.startswith("abfs")):
        form = (
            "abfss://container@account.dfs.core.windows.net/path"
            if scheme.startswith("abfs")
            else f"{scheme}://bucket/path"
        )
        raise InvalidOptionError("The URI names no bucket or container", expected=form, found=_shown(uri))
    # s3a:// is Hadoop's name for s3://.
    name = {"s3a": "s3"}.get(scheme, scheme)
    clean = f"{name}://{authority}/{key}".rstrip("/")
    return Location(clean, name, f"{container}/{key}".rstrip("/"), host, texts)


def _shown(uri: str) -> str:
    """An address without the credentials that old versions of Hadoop took in it."""
    return re.sub("//[^@]*:.*@", "//***@", uri)


def open_filesystem(location: Location) -> Any:
    """The pyarrow file system of a location that is not local. Opens no connection yet."""
    if location.scheme == "s3":
        return _open_s3(location)
    return _open_gcs(location) if location.scheme == "gs" else _open_azure(location)


def _open_s3(location: Location) -> Any:
    from pyarrow.fs import S3FileSystem

    given = _values(location.options, _S3)
    settings: dict[str, Any] = {
        # Blocking writes bound memory: with background writes, parts would pile up behind a fast encoder.
        "background_writes": False,
        # A file smaller than a part, as sidecars are, takes one request instead of three.
        "allow_delayed_open": True,
        "region": given.get("region"),
    }
    if "endpoint" in given:
        scheme, host = _endpoint(given["endpoint"], "aws_endpoint_url")
        if scheme == "http" and not _flag(given, "allow_http"):
            raise InvalidOptionError(
                "An endpoint without TLS needs the option aws_allow_http=true", found=given["endpoint"]
            )
        bucket = location.root.partition("/")[0]
        if _flag(given, "virtual_hosted"):  # delta-rs wants the bucket in the endpoint's name, pyarrow adds it itself
            host = host.removeprefix(f"{bucket}.")
            settings["force_virtual_addressing"] = True
        settings |= {"scheme": scheme, "endpoint_override": host, "region": given.get("region", "us-east-1")}
    if _flag(given, "skip_signature"):
        settings["anonymous"] = True
    elif "role_arn" in given:
        settings |= {"role_arn": given["role_arn"], "session_name": given.get("role_session_name")}
    elif "access_key" in given or "secret_key" in given:
        if "access_key" not in given or "secret_key" not in given:
            raise InvalidOptionError(
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY go together", found="only one of them"
            )
        settings |= {key: given.get(key) for key in ("access_key", "secret_key", "session_token")}
    for name in ("request_timeout", "connect_timeout"):
        if name in given:
            settings[name] = _seconds(given[name], name)
    if "proxy" in given:
        settings["proxy_options"] = given["proxy"]
    return S3FileSystem(**settings)


def s3_client_settings(location: Location) -> dict[str, Any] | None:
    """The same for Amazon's own client: arguments of `boto3.client`, with `config` as arguments of botocore's Config.

    None where a role is to be taken on.
    """
    given = _values(location.options, _S3)
    if "role_arn" in given:
        return None
    style = "auto"
    settings: dict[str, Any] = {"region_name": given.get("region")}
    if "endpoint" in given:
        scheme, host = _endpoint(given["endpoint"], "aws_endpoint_url")
        if _flag(given, "virtual_hosted"):
            host, style = host.removeprefix(f"{location.root.partition('/')[0]}."), "virtual"
        else:
            style = "path"
        settings |= {"endpoint_url": f"{scheme}://{host}", "region_name": given.get("region", "us-east-1")}
    config: dict[str, Any] = {"s3": {"addressing_style": style}}
    if _flag(given, "skip_signature"):
        config["signature_version"] = "unsigned"
    elif "access_key" in given:
        settings |= {
            "aws_access_key_id": given["access_key"],
            "aws_secret_access_key": given.get("secret_key"),
            "aws_session_token": given.get("session_token"),
        }
    for ours, theirs in (("request_timeout", "read_timeout"), ("connect_timeout", "connect_timeout")):
        if ours in given:
            config[theirs] = _seconds(given[ours], ours)
    if "proxy" in given:
        config["proxies"] = {"http": given["proxy"], "https": given["proxy"]}
    return settings | {"config": config}


def _open_gcs(location: Location) -> Any:
    from pyarrow.fs import GcsFileSystem

    given = _values(location.options, _GCS)
    settings: dict[str, Any] = {}
    if "endpoint" in given:
        settings["scheme"], settings["endpoint_override"] = _endpoint(given["endpoint"], "google_base_url")
    if _flag(given, "skip_signature"):
        return GcsFileSystem(anonymous=True, **settings)
    if "account_key" in given:
        raise InvalidOptionError(
            "A service account key inside the options cannot be given to pyarrow",
            hint="Write it to a file and name that file in GOOGLE_SERVICE_ACCOUNT",
        )
    if "account" in given:
        # pyarrow takes a service account from this variable of the process and from nowhere else.
        current = os.environ.setdefault("GOOGLE_APPLICATION_CREDENTIALS", given["account"])
        if current != given["account"]:
            raise InvalidOptionError(
                "One process can use one Google service account",
                expected=f"GOOGLE_APPLICATION_CREDENTIALS={given['account']}",
                found=current,
            )
    return GcsFileSystem(**settings)


def _open_azure(location: Location) -> Any:
    from pyarrow.fs import AzureFileSystem

    given = _values(location.options, _AZURE)
    account, _, authority = location.host.partition(".")
    account = account or given.get("account", "")
    settings: dict[str, Any] = {}
    if _flag(given, "emulator"):
        scheme, host = _endpoint(given.get("endpoint", "http://127.0.0.1:10000"), "azure_storage_endpoint")
        for service in ("blob", "dfs"):
            settings[f"{service}_storage_authority"] = host.partition("/")[0]
            settings[f"{service}_storage_scheme"] = scheme
        if not account:
            account = _EMULATOR_ACCOUNT
            given.setdefault("key", _EMULATOR_KEY)
    elif authority and authority != "dfs.core.windows.net":
        blob = authority.replace("dfs.", "blob.", 1)
        settings = {"dfs_storage_authority": f".{authority}", "blob_storage_authority": f".{blob}"}
    if not account:
        raise InvalidOptionError(
            "The Azure storage account is not known",
            expected="abfss://container@account.dfs.core.windows.net/path or the option AZURE_STORAGE_ACCOUNT_NAME",
            found=location.uri,
        )
    if "key" in given:
        settings["account_key"] = given["key"]
    elif "sas" in given:
        settings["sas_token"] = "?" + given["sas"].removeprefix("?")  # pyarrow appends it to the address as it is
    else:
        settings |= {name: given[name] for name in ("client_id", "client_secret", "tenant_id") if name in given}
    return AzureFileSystem(account, **settings)


def _values(options: Mapping[str, str], table: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """{our name: value}. The options win over the environment; in each, the first of delta-rs's names that is set."""
    given = {name.lower(): text for name, text in options.items()}
    found = {}
    for ours, names in table.items():
        texts = [given[name] for name in names if name in given]
        if not texts and ours not in _NOT_FROM_ENVIRONMENT:
            variables = [name.upper() for name in names if name.startswith(("aws_", "azure_", "google_"))]
            texts = [os.environ[name] for name in variables if os.environ.get(name)]
        if texts:
            found[ours] = texts[0]
    return found


def _refuse_unknown(options: Mapping[str, str]) -> None:
    # delta-rs ignores unknown names, so a misspelled name would only show as an odd failure to log in.
    for name in options:
        if name.lower().startswith(("aws_", "azure_", "google_")) and name.lower() not in _KNOWN:
            near = difflib.get_close_matches(name.lower(), _KNOWN, 1)
            hint = f"Did you mean {near[0].upper()}?" if near else "The names are those of delta-rs's storage_options"
            raise InvalidOptionError("Unknown storage option", found=name, hint=hint)


def _flag(given: Mapping[str, str], name: str) -> bool:
    return given.get(name, "false").strip().lower() in ("true", "1", "yes", "on", "y", "t")


def _endpoint(text: str, name: str) -> tuple[str, str]:
    scheme, separator, host = text.rstrip("/").partition("://")
    if not separator or scheme not in ("http", "https") or not host:
        raise InvalidOptionError(
            f"Storage option {name} is no URL", expected="http://host:port or https://host", found=text
        )
    return scheme, host


def _seconds(text: str, name: str) -> float:
    match = _DURATION.match(text.strip())
    if match is None:
        raise InvalidOptionError(f"Storage option {name} is no duration", expected="as in 30s or 2m", found=text)
    unit = match.group(2) or "s"
    return float(match.group(1)) * (0.001 if unit == "ms" else 60 if unit.startswith("m") else 1)
