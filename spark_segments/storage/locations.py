"""Addresses of log directories, parsed and checked, with the options that go with them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from spark_segments.errors import InvalidOptionError
from spark_segments.storage.storage_options import KNOWN, refuse_unknown

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/")
_SECRET = re.compile("key|secret|token|sas|password|proxy", re.IGNORECASE)
_SHORTEST_SECRET = 8  # shorter values stand in names and texts by chance
_SIGNED = re.compile(
    r"(\b(?:sig|Credential|Signature)=|\b(?:Bearer|SharedKey) |\bx-amz-security-token:"
    r"|<(?:AWSAccessKeyId|SignatureProvided)>)[^&\s,'\"<]+"
)
_QUERIED = re.compile(r"([?&#;][^=&#;]*=)[^&#;]*")
SCHEMES = ("file", "s3", "s3a", "gs", "abfs", "abfss")


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed address. `root`: `bucket/key` in an object store, an absolute local path."""

    uri: str
    scheme: str
    root: str
    host: str
    options: Mapping[str, str]

    @property
    def is_local(self) -> bool:
        return self.scheme == "file"

    @property
    def bucket(self) -> str:
        """The bucket or container of an object store."""
        return self.root.partition("/")[0]

    def join(self, path: str) -> str:
        return f"{self.root.rstrip('/')}/{path}" if path else self.root

    def hidden(self, text: str) -> str:
        """A text of a store's client without the credentials of the options and of the environment.

        Azure's client names addresses in its errors, and a SAS token is a part of them. A store may repeat what came in
        the header Authorization, with keys of a file or of a machine's role.
        """
        secrets = [value for name, value in self.options.items() if _SECRET.search(name)]
        secrets += [value for name, value in os.environ.items() if name.lower() in KNOWN and _SECRET.search(name)]
        for value in sorted({secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}, key=len, reverse=True):
            for spelling in (value, quote(value, safe=""), quote(value)):
                text = text.replace(spelling, "***")
        return _SIGNED.sub(r"\1***", text)

    def delta_options(self) -> dict[str, str]:
        """The options for delta-rs, which reads some names in upper case only. Spark passes all names in lower case."""
        if self.is_local:
            return {}
        prefixed = ("aws_", "azure_", "google_", "delta_")
        return {key.upper() if key.lower().startswith(prefixed) else key: text for key, text in self.options.items()}


def parse_location(uri: str, options: Mapping[str, object]) -> Location:
    """Parses an address. A relative local path is resolved against the working directory. Raises InvalidOptionError."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    refuse_unknown(texts)
    if not uri:
        raise InvalidOptionError("The location of the log directory is empty", expected="a path or a URI", found="''")
    if "\0" in uri:
        raise InvalidOptionError("The location of the log directory holds a NUL character", found=repr(uri))
    match = _SCHEME.match(uri)
    if match is None:
        return _local_path(uri, texts)
    scheme = match.group(1).lower()
    if scheme == "file":
        return _file_uri(uri, texts)
    if scheme not in SCHEMES:
        expected = "a local path, " + ", ".join(f"{name}://" for name in SCHEMES)
        raise InvalidOptionError("Unknown kind of file system", expected=expected, found=_shown(uri))
    return _bucket_uri(uri, scheme, uri[match.end() :], texts)


def _local_path(uri: str, options: dict[str, str]) -> Location:
    if uri == "~" or uri.startswith(("~/", "~\\")):
        # Taken as it is, it would be a new directory of the name ~, and an empty log in it.
        raise InvalidOptionError(
            "Only a shell knows ~, and it does not look into quotes",
            found=uri,
            hint=f'Write "$HOME{uri[1:]}", or in Python os.path.expanduser({uri!r}); '
            f"./{uri} is a directory of that name",
        )
    path = os.path.abspath(uri)
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise InvalidOptionError(
            "The location of the log directory cannot be a name of a file here", found=repr(uri)
        ) from None
    return Location(path, "file", path, "", options)


def _file_uri(uri: str, options: dict[str, str]) -> Location:
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost"):
        raise InvalidOptionError("A file:// URI names no host", expected="file:///path", found=_shown(uri))
    path = os.path.abspath(unquote(parts.path))
    return Location(path, "file", path, "", options)


def _bucket_uri(uri: str, scheme: str, rest: str, options: dict[str, str]) -> Location:
    """An address in an object store. `rest`: what stands behind the scheme."""
    # delta-rs reads these characters as parts of a URL, obstore as part of a name: the two would use different places.
    if re.search(r"[?#%\s]", uri):
        raise InvalidOptionError("The URI holds one of the characters ? # % or a space", found=_shown(uri))
    authority, _, path = rest.removeprefix("/").partition("/")
    if ":" in authority:
        raise InvalidOptionError(
            "The URI has credentials or a port in it",
            expected=f"{scheme}://bucket/path",
            found=_shown(uri),
            hint="Give credentials and endpoints as storage options",
        )
    is_azure = scheme.startswith("abfs")
    container, _, host = authority.partition("@")
    if not container or (host and not is_azure):
        form = "abfss://container@account.dfs.core.windows.net/path" if is_azure else f"{scheme}://bucket/path"
        raise InvalidOptionError("The URI names no bucket or container", expected=form, found=_shown(uri))
    # An empty part, as in a//b, would be another key for some clients, and the same one for others.
    key = "/".join(part for part in path.split("/") if part)
    # s3a:// is Hadoop's name for s3://.
    name = {"s3a": "s3"}.get(scheme, scheme)
    clean = f"{name}://{authority}/{key}".rstrip("/")
    return Location(clean, name, f"{container}/{key}".rstrip("/"), host, options)


def _shown(uri: str) -> str:
    """An address without the credentials that old versions of Hadoop took in it, and without what its query says, such
    as the signature of a SAS token or of a presigned URL.
    """
    return _QUERIED.sub(r"\1***", re.sub("//[^@]*:.*@", "//***@", uri))
