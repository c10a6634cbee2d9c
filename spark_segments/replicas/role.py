"""The role of a topic with all that a promotion and a mirror write beside it in the map `states` of the topic's row.

Which commits a role allows is the core's (log/manifest/role.py): every commit asks that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from spark_segments.errors import LogDirError
from spark_segments.log import Change, Snapshot

_STATES = (
    "role", "role_epoch", "promotion_token", "fence_token", "fence_version", "leader_uri", "former_uri", "source_uri",
    "source_version", "source_commit_id", "source_committed_ms", "demoted",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceVersion:
    """The version of its leader that a follower is: the leader's log directory, the version's number, and the id and
    the time of the commit that made it, by the leader's clock.
    """

    uri: str
    version: int
    commit_id: str
    committed_ms: int


@dataclass(frozen=True, slots=True)
class Role:
    """The role of a topic. A topic without any stands alone, as a leader does.

    `epoch`: number of the promotion that gave the role, 0 for none. `source`: of a follower. `promotion_token`: of the
    promotion of this follower that has begun and is not done. `fence_token`: of the promotion that fenced the topic, or
    that made it the leader. Of a fenced topic, `fence_version` is the version that fenced it, the last that has changed
    its log, and `leader_uri` the log directory of the leader in its place. `former_uri`: of a leader that was promoted,
    the log directory of the leader before it. `is_demoted`: an older version of this package made a former leader the
    follower that it is, and no mirror has come since.
    """

    LEADER: ClassVar = "leader"
    FOLLOWER: ClassVar = "follower"
    FENCED: ClassVar = "fenced"

    name: str = LEADER
    epoch: int = 0
    source: SourceVersion | None = None
    promotion_token: str | None = None
    fence_token: str | None = None
    fence_version: int | None = None
    leader_uri: str | None = None
    former_uri: str | None = None
    is_demoted: bool = False

    @classmethod
    def of(cls, states: Mapping[str, str]) -> Role:
        """The role that a topic's states say. Raises LogDirError for states that this package does not write."""
        try:
            source = None
            if states.get("role") == Role.FOLLOWER:
                source = SourceVersion(
                    states["source_uri"],
                    int(states["source_version"]),
                    states["source_commit_id"],
                    int(states["source_committed_ms"]),
                )
            return cls(
                states.get("role", Role.LEADER),
                int(states.get("role_epoch", 0)),
                source,
                states.get("promotion_token"),
                states.get("fence_token"),
                int(states["fence_version"]) if "fence_version" in states else None,
                states.get("leader_uri"),
                states.get("former_uri"),
                "demoted" in states,
            )
        except (KeyError, ValueError) as error:
            raise LogDirError(
                "The role of a topic cannot be read", expected="states as docs/format/states.md has them", found=error
            ) from error

    @property
    def is_leader(self) -> bool:
        return self.name == Role.LEADER

    @property
    def is_follower(self) -> bool:
        return self.name == Role.FOLLOWER

    @property
    def is_fenced(self) -> bool:
        return self.name == Role.FENCED

    @property
    def token(self) -> str | None:
        """The token of the promotion that has begun here, or that has given the role."""
        return self.promotion_token or self.fence_token

    def given_to(self, states: Mapping[str, str]) -> dict[str, str]:
        """`states` with this role in place of the one that they say."""
        values: dict[str, object] = {
            "role": self.name,
            "role_epoch": self.epoch,
            "promotion_token": self.promotion_token,
            "fence_token": self.fence_token,
            "fence_version": self.fence_version,
            "leader_uri": self.leader_uri,
            "former_uri": self.former_uri,
        }
        if self.source is not None:
            values |= {
                "source_uri": self.source.uri,
                "source_version": self.source.version,
                "source_commit_id": self.source.commit_id,
                "source_committed_ms": self.source.committed_ms,
            }
        kept = {name: value for name, value in states.items() if name not in _STATES}
        return kept | {name: str(value) for name, value in values.items() if value is not None}


def role_of(snapshot: Snapshot) -> Role:
    """The role of a topic at a version."""
    return Role.of(snapshot.states)


def with_role(operation: str, snapshot: Snapshot, role: Role) -> Change:
    """The change that gives a topic a role."""
    return Change(operation, topic=replace(snapshot.topic_row, states=role.given_to(snapshot.states)))
