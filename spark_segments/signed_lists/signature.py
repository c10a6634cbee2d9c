"""Signed lists: what a deep look found without a fault, for somebody who was not there.

A list of checksums (checksum_list.py) with a first line that says when, where and by which version it was written, with
the offsets and records of each partition, and with the SHA-256 of each file. The last line has the Ed25519 signature of
all bytes before it, and the public key.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_segments import __version__
from spark_segments.errors import InvalidOptionError, MissingExtraError
from spark_segments.log import Snapshot
from spark_segments.signed_lists.checksum_list import ChecksumList, list_checksums, partitions_of, replace_text
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FORM = "spark_segments verify --deep, 1"
_MAKE_KEYS = "openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out public.pem"


@dataclass(frozen=True, slots=True)
class Signing:
    """How a list is signed and where it goes. `key`: a file with an Ed25519 private key in PEM, without a password."""

    key: Path
    checksums: Path

    def check(self) -> None:
        """Raises InvalidOptionError where there is no such key."""
        _key(self.key, "private")

    def write(
        self, storage: Storage, snapshots: Sequence[Snapshot], verified_ms: int, spark: SparkSession | None = None
    ) -> dict[str, Any]:
        """Writes the list of these topics in place of an older one. What it says of itself, and the key that signed."""
        checksums = list_checksums(storage, snapshots, {}, spark, with_sha256=True)
        for snapshot in snapshots:
            checksums.topics[snapshot.topic]["partitions"] = partitions_of(snapshot)
        facts = {
            "signed_list": _FORM,
            "tool": f"spark-segments {__version__}",
            "log_directory": storage.uri,
            "verified_ms": verified_ms,
        }
        lines = [json.dumps(facts), *checksums.lines()]
        body = "".join(f"{line}\n" for line in lines)
        key = _key(self.key, "private")
        public = key.public_key().public_bytes_raw()
        signature = {"ed25519": _text(key.sign(body.encode())), "public_key": _text(public)}
        replace_text(self.checksums, f"{body}{json.dumps(signature)}\n")
        return {**facts, "list": str(self.checksums), "files": len(checksums.files), "key": fingerprint(public)}


def read_signed(path: Path, public_key: Path | None = None) -> tuple[ChecksumList, dict[str, Any]]:
    """(the list, what it says of itself and the key that signed it). Raises InvalidOptionError where nobody signed it,
    where it was changed since, or where the key is not `public_key`, a file in PEM.
    """
    expected = None if public_key is None else _key(public_key, "public").public_bytes_raw()
    data = path.read_bytes()
    signed_bytes = data.rstrip(b"\n").rfind(b"\n") + 1
    body = data[:signed_bytes]
    last = data[signed_bytes:]
    try:
        signature = json.loads(last)
        facts = json.loads(body.partition(b"\n")[0])
        public, signed = (base64.b64decode(signature[name], validate=True) for name in ("public_key", "ed25519"))
        if facts["signed_list"] != _FORM:
            raise ValueError(facts["signed_list"])
        is_signed = _is_signed(public, signed, body)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidOptionError(
            "The file is no signed list",
            path=str(path),
            expected=f"a first line with {_FORM!r}, and a last line with ed25519 and public_key",
            found=f"a last line {last[:80]!r}",
            hint="segments verify --deep --sign KEY --checksums FILE writes one. A list of a mirror is for --against",
        ) from error
    if not is_signed:
        raise InvalidOptionError(
            "The list was changed after it was signed",
            path=str(path),
            expected=f"bytes that the key {fingerprint(public)} has signed",
            found="other bytes",
            hint="Take the list from where it was kept",
        )
    if expected not in (None, public):
        raise InvalidOptionError(
            "The list is signed with another key",
            path=str(path),
            expected=fingerprint(expected),
            found=fingerprint(public),
        )
    checksums = ChecksumList.of_lines(path, body.decode().splitlines()[1:], first_number=2)
    return checksums, {**facts, "list": str(path), "files": len(checksums.files), "key": fingerprint(public)}


def _library() -> tuple[Any, Any, Any]:
    """The library's modules of errors, of files with keys, and of the algorithm."""
    try:
        from cryptography import exceptions
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise MissingExtraError("sign", "Signed lists", "cryptography") from error
    return exceptions, serialization, ed25519


def _is_signed(public: bytes, signed: bytes, body: bytes) -> bool:
    exceptions, _, ed25519 = _library()
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signed, body)
    except exceptions.InvalidSignature:
        return False
    return True


def fingerprint(public: bytes) -> str:
    """A key in a few words, to be compared by eye: the SHA-256 of its 32 bytes."""
    return f"SHA256:{base64.b64encode(hashlib.sha256(public).digest()).decode().rstrip('=')}"


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _key(path: Path, kind: str) -> Any:
    """The Ed25519 key in a PEM file; `kind`: private or public."""
    exceptions, serialization, ed25519 = _library()
    try:
        data = path.read_bytes()
        if kind == "private":
            key = serialization.load_pem_private_key(data, password=None)
        else:
            key = serialization.load_pem_public_key(data)
        if not isinstance(key, (ed25519.Ed25519PrivateKey, ed25519.Ed25519PublicKey)):
            raise ValueError(f"a key of {type(key).__name__}")
    except (OSError, ValueError, TypeError, exceptions.UnsupportedAlgorithm) as error:
        raise InvalidOptionError(
            f"The file has no {kind} key of Ed25519",
            path=str(path),
            expected="PEM, without a password",
            found=str(error).partition("\n")[0][:120],
            hint=_MAKE_KEYS,
        ) from error
    return key
