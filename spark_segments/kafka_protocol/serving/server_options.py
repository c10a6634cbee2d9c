"""Where a server listens, and to whom."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from spark_segments.errors import InvalidOptionError
from spark_segments.kafka_protocol.serving.credentials import Users
from spark_segments.kafka_protocol.serving.stored_groups import OWN, POLICIES

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where a server listens, and to whom.

    Any address but a loopback address needs `tls` and `users`, or `insecure`. `advertised`: the address that clients
    get in metadata, if not the one that they connected to. `groups`: one of POLICIES, which groups clients may move.
    """

    host: str = "127.0.0.1"
    port: int = 9092
    advertised: tuple[str, int] | None = None
    tls: ssl.SSLContext | None = None
    users: Users | None = None
    insecure: bool = False
    groups: str = OWN

    def check(self) -> None:
        """Raises InvalidOptionError for what would let anybody in, and for an unknown policy."""
        if self.host not in LOOPBACK and not self.insecure and (self.tls is None or self.users is None):
            raise InvalidOptionError(
                "Other machines may reach this address",
                expected="TLS and users, or --insecure",
                found=f"{self.host} without {'TLS' if self.tls is None else 'users'}",
                hint="Give a certificate, its key and a users file; or say --insecure where the network is trusted",
            )
        if self.groups not in POLICIES:
            raise InvalidOptionError("Not a choice of groups", expected=" or ".join(POLICIES), found=self.groups)
