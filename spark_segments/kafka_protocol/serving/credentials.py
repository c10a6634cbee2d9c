"""Who may read: users of a file, by SASL PLAIN (RFC 4616) or SCRAM (RFC 5802, RFC 7677).

A users file has a line `name:password` each. Passwords are kept salted, as SCRAM does, once the file is read.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from spark_segments.errors import InvalidOptionError, SegmentsError

PLAIN = "PLAIN"
_DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = (PLAIN, *_DIGESTS)

_ITERATIONS = 8192
_MOST_BYTES = 4096


class LoginError(SegmentsError):
    """A login that failed. The text does not say whether the user is known."""


@dataclass(frozen=True, slots=True)
class _Keys:
    """What SCRAM keeps of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes


def _keys(password: bytes, digest: str, salt: bytes | None = None) -> _Keys:
    salt = os.urandom(16) if salt is None else salt
    salted = hashlib.pbkdf2_hmac(digest, password, salt, _ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", digest)
    return _Keys(salt, hashlib.new(digest, client_key).digest(), hmac.digest(salted, b"Server Key", digest))


class Users:
    """The users of a server. Raises InvalidOptionError for a file that has none, or a line without a password."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._keys = {
            digest: {name: _keys(password.encode(), digest) for name, password in passwords.items()}
            for digest in _DIGESTS.values()
        }
        # An unknown user is refused as slowly and in the same words as a wrong password. Each name keeps its salt.
        self._secret = secrets.token_bytes(32)
        self._nobody = {digest: _keys(secrets.token_bytes(16), digest) for digest in _DIGESTS.values()}

    @classmethod
    def of_file(cls, path: str) -> Users:
        """Reads `name:password` lines. Empty lines and lines that begin with # are skipped."""
        passwords: dict[str, str] = {}
        try:
            with open(path, encoding="utf-8") as file:
                lines = file.read().splitlines()
        except OSError as error:
            raise InvalidOptionError("The users file cannot be read", path=path, found=error.strerror) from error
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, separator, password = line.partition(":")
            if not (name and separator and password):
                raise InvalidOptionError(
                    f"Line {number} of the users file names no user", path=path, expected="name:password"
                )
            passwords[name] = password
        if not passwords:
            raise InvalidOptionError("The users file names no user", path=path, expected="lines name:password")
        return cls(passwords)

    def keys(self, name: str, digest: str) -> tuple[bool, _Keys]:
        """(whether there is such a user, the keys to check by)"""
        keys = self._keys[digest].get(name)
        if keys is not None:
            return True, keys
        salt = hmac.digest(self._secret, name.encode(), digest)[: len(self._nobody[digest].salt)]
        return False, replace(self._nobody[digest], salt=salt)

    def has_password(self, name: str, password: bytes) -> bool:
        """Whether this is the user's password."""
        is_user, keys = self.keys(name, "sha256")
        password_keys = _keys(password, "sha256", keys.salt)
        return hmac.compare_digest(password_keys.stored_key, keys.stored_key) and is_user


class Login:
    """A login: `begin` names the mechanism, each `step` takes the client's bytes. A step that fails ends it.

    `user`: the user's name once the login is done. `is_bare`: the client's steps are no requests (SaslHandshake 0).
    """

    mechanisms = MECHANISMS

    def __init__(self, users: Users) -> None:
        self._users = users
        self._steps: Any = None
        self.user: str | None = None
        self.is_bare = False

    @property
    def has_begun(self) -> bool:
        return self._steps is not None

    def begin(self, mechanism: str, *, is_bare: bool = False) -> bool:
        """Whether the mechanism is known; the next step is its first."""
        self.user = None
        self.is_bare = is_bare
        if mechanism == PLAIN:
            self._steps = self._plain()
        elif mechanism in _DIGESTS:
            self._steps = self._scram(_DIGESTS[mechanism])
        else:
            self._steps = None
            return False
        next(self._steps)
        return True

    def step(self, data: bytes) -> bytes:
        """The server's answer to the client's bytes. Raises LoginError; the connection is to be closed then."""
        steps = self._steps
        self._steps = None
        if len(data) > _MOST_BYTES:
            raise LoginError("A step of a login is too large", expected=f"{_MOST_BYTES} bytes at most", found=len(data))
        try:
            answer: bytes = steps.send(data)
        except StopIteration:
            raise LoginError("The login is over already") from None
        except (UnicodeDecodeError, ValueError) as error:
            raise LoginError("A step of the login cannot be read") from error
        self._steps = steps
        return answer

    def _plain(self) -> Any:
        data = yield b""
        parts = bytes(data).split(b"\0")
        if len(parts) != 3:
            raise LoginError("A login by PLAIN has a user and a password")
        authorised = parts[0].decode()
        name = parts[1].decode()
        password = parts[2]
        if not self._users.has_password(name, password) or authorised not in ("", name):
            raise LoginError("Unknown user, or wrong password")
        self.user = name
        yield b""

    def _scram(self, digest: str) -> Any:
        first = bytes((yield b"")).decode()
        binding, authorised, bare = [*first.split(",", 2), "", ""][:3]
        fields = _fields(bare)
        if binding not in ("n", "y") or "n" not in fields or "r" not in fields:
            raise LoginError("The first step of a login by SCRAM has a user and a nonce")
        name = fields["n"].replace("=2C", ",").replace("=3D", "=")
        is_user, keys = self._users.keys(name, digest)
        nonce = fields["r"] + secrets.token_urlsafe(18)
        salt = base64.b64encode(keys.salt).decode()
        server_first = f"r={nonce},s={salt},i={_ITERATIONS}"
        last = bytes((yield server_first.encode())).decode()
        without_proof, _, proof = last.rpartition(",p=")
        answered = _fields(without_proof)
        message = f"{bare},{server_first},{without_proof}".encode()
        signature = hmac.digest(keys.stored_key, message, digest)
        client_proof = base64.b64decode(proof, validate=True)
        client_key = bytes(byte ^ other for byte, other in zip(client_proof, signature, strict=False))
        is_proved = len(client_proof) == len(signature) and hmac.compare_digest(
            hashlib.new(digest, client_key).digest(), keys.stored_key
        )
        channel = base64.b64encode(f"{binding},{authorised},".encode()).decode()
        # librdkafka before 2.6.1 says its own nonce twice. Kafka 3.9, too, looks at the end alone. The proof has both.
        has_nonce = answered.get("r", "").endswith(nonce)
        if not (is_user and is_proved and has_nonce and answered.get("c") == channel):
            raise LoginError("Unknown user, or wrong password")
        self.user = name
        yield b"v=" + base64.b64encode(hmac.digest(keys.server_key, message, digest))


def _fields(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (field.partition("=") for field in text.split(",")) if len(name) == 1}
