"""Storage options, in delta-rs's names, and what obstore and boto3 call them. clients.py hands them over.

Options have the names of delta-rs (its object_store crate), in upper or lower case, and delta-rs gets them unchanged.
obstore has the same crate inside. The tables have the names of which obstore takes one only, and the names that it
knows otherwise or not at all; `_SAME` has the names that it takes unchanged. Where an option is given by two of its
names, the first in the table counts. A missing option is taken from the environment variable of the same name, as
delta-rs does.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping

from spark_segments.errors import InvalidOptionError

# obstore's name: delta-rs's names for it, the first counts
S3 = {
    "access_key_id": ("aws_access_key_id", "access_key_id"),
    "secret_access_key": ("aws_secret_access_key", "secret_access_key"),
    "session_token": ("aws_session_token", "aws_token", "session_token", "token"),
    "region": ("aws_region", "region", "aws_default_region", "default_region"),
    "endpoint": ("aws_endpoint_url", "aws_endpoint", "endpoint_url", "endpoint", "aws_endpoint_url_s3"),
    "skip_signature": ("aws_skip_signature", "skip_signature"),
    "virtual_hosted_style_request": ("aws_virtual_hosted_style_request", "virtual_hosted_style_request"),
}
GCS = {
    "service_account": (
        "google_service_account",
        "google_service_account_path",
        "service_account",
        "service_account_path",
    ),
    "service_account_key": ("google_service_account_key", "service_account_key"),
    "application_credentials": ("google_application_credentials", "application_credentials"),
    "skip_signature": ("google_skip_signature", "skip_signature"),
    "base_url": ("google_base_url", "google_endpoint_url"),
}
AZURE = {
    "account_name": ("azure_storage_account_name", "account_name"),
    "account_key": (
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
    "sas_key": ("azure_storage_sas_key", "azure_storage_sas_token", "sas_key", "sas_token"),
    "token": ("azure_storage_token",),
    "authority_host": ("azure_storage_authority_host", "azure_authority_host"),
    "msi_endpoint": ("azure_msi_endpoint", "azure_identity_endpoint"),
    "endpoint": ("azure_storage_endpoint", "azure_endpoint", "endpoint"),
    "use_emulator": ("azure_storage_use_emulator", "object_store_use_emulator", "use_emulator"),
}
_SAME = (
    "aws_imdsv1_fallback aws_metadata_endpoint aws_unsigned_payload aws_checksum_algorithm "
    "aws_container_credentials_relative_uri aws_container_credentials_full_uri "
    "aws_container_authorization_token_file aws_web_identity_token_file aws_role_arn aws_role_session_name "
    "aws_endpoint_url_sts aws_copy_if_not_exists aws_conditional_put aws_disable_tagging aws_disable_bulk_delete "
    "aws_s3_express aws_request_payer aws_server_side_encryption aws_sse_kms_key_id aws_sse_bucket_key_enabled "
    "aws_sse_customer_key_base64 azure_object_id azure_msi_resource_id azure_federated_token_file azure_use_azure_cli "
    "azure_skip_signature azure_disable_tagging azure_use_fabric_endpoint azure_fabric_token_service_url "
    "azure_fabric_workload_host azure_fabric_session_token azure_fabric_cluster_identifier"
)
# Options of the client rather than of the store: obstore takes them apart, and panics where they are mixed.
CLIENT = {
    "allow_http": ("aws_allow_http", "azure_allow_http", "google_allow_http", "allow_http"),
    "timeout": ("timeout",),
    "connect_timeout": ("connect_timeout",),
    "proxy_url": ("proxy_url",),
}
# What obstore does not know, and boto3 does.
BOTO3 = {
    "role_arn": ("aws_iam_role_arn", "aws_s3_assume_role_arn"),
    "role_session_name": ("aws_iam_role_session_name", "aws_s3_role_session_name"),
    "profile": ("aws_profile",),
}
# Options for delta-rs alone: they do not matter for reaching the files beside the manifest.
_DELTA_ONLY = (
    "aws_bucket aws_bucket_name aws_endpoint_url_dynamodb aws_region_dynamodb aws_access_key_id_dynamodb "
    "aws_secret_access_key_dynamodb aws_session_token_dynamodb aws_s3_allow_unsafe_rename aws_s3_locking_provider "
    "aws_force_credential_load aws_s3_pool_idle_timeout_seconds aws_sts_pool_idle_timeout_seconds "
    "aws_s3_get_internal_server_error_retries aws_ec2_metadata_disabled google_bucket google_bucket_name "
    "azure_container_name"
)
KNOWN = frozenset(
    name for table in (S3, GCS, AZURE, CLIENT, BOTO3) for names in table.values() for name in names
) | frozenset((*_SAME.split(), *_DELTA_ONLY.split()))


def refuse_unknown(options: Mapping[str, str]) -> None:
    """Raises InvalidOptionError for a name of a store's that nobody knows.

    delta-rs ignores unknown names, so a misspelled name would only show as an odd failure to log in.
    """
    for name in options:
        if name.lower().startswith(("aws_", "azure_", "google_")) and name.lower() not in KNOWN:
            near = difflib.get_close_matches(name.lower(), KNOWN, 1)
            hint = f"Did you mean {near[0].upper()}?" if near else "The names are those of delta-rs's storage_options"
            raise InvalidOptionError("Unknown storage option", found=name, hint=hint)


def values(options: Mapping[str, str], table: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """{obstore's name: value}. The options win over the environment; of several names, the first that is set counts.

    Keys come from the options alone. obstore and boto3 read the keys of the environment themselves, all together: a key
    from the options with a token from the environment would not match.
    """
    by_name = {name.lower(): text for name, text in options.items()}
    chosen = {}
    for ours, names in table.items():
        texts = [by_name[name] for name in names if name in by_name]
        if not texts and ours not in ("access_key_id", "secret_access_key", "session_token"):
            variables = [name.upper() for name in names if name.startswith(("aws_", "azure_", "google_"))]
            texts = [os.environ[name] for name in variables if os.environ.get(name)]
        if texts:
            chosen[ours] = texts[0]
    return chosen


def same(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The options with a prefix that obstore takes unchanged."""
    by_name = {name.lower(): text for name, text in options.items()}
    return {name: by_name[name] for name in _SAME.split() if name.startswith(prefix) and name in by_name}


def is_true(options: Mapping[str, str], name: str) -> bool:
    """Whether an option is there and true."""
    return options.get(name, "false").strip().lower() in ("true", "1", "yes", "on", "y", "t")
