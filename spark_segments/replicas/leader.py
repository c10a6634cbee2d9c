"""The leader of a follower: its versions as a mirror reads them, and whether it is the one that was mirrored."""

from __future__ import annotations

from dataclasses import dataclass

from spark_segments.errors import LogDirError
from spark_segments.log import Snapshot, TopicVersions

BEGAN_ANEW = -1
"""In place of a version: the leader's table was made again, and no version of it equals the follower."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a follower stands in its leader's table.

    `version`: the leader's version that it is; BEGAN_ANEW where the topic was deleted and made again in another table.
    `is_certain`: False where the leader's log no longer has the commit of that version, by which it would be known.
    """

    version: int
    is_certain: bool


@dataclass(frozen=True, slots=True)
class Leader(TopicVersions):
    """The manifest of a leader's topic, and the address of its log directory."""

    def check_lineage(self, follower: Snapshot, latest: Snapshot) -> Lineage:
        """The place of a follower. Raises LogDirError where it is no past state of the topic.

        Where the log lacks the commit that the follower has, topic id and offsets must do.
        """
        role = follower.role
        assert role.source is not None
        if role.is_demoted:  # vacuum may be deleting files of its log that a mirror would bring back under their paths
            raise LogDirError(
                f"Topic {self.topic} was made a follower by an older version, and was not mirrored since",
                expected="a follower that a mirror made",
                found="the state demoted",
                hint=f"Mirror {self.uri} into an empty log directory",
            )
        version = role.source.version
        facts = self.facts(version) if version <= latest.version else None
        if facts is not None and facts.commit_id == role.source.commit_id:
            return Lineage(version, is_certain=True)
        same_place = role.source.uri == self.uri
        if latest.topic_id != follower.topic_id:
            if same_place and facts is None and version <= latest.version:
                return Lineage(version, is_certain=False)
            if same_place:
                return Lineage(BEGAN_ANEW, is_certain=True)
            raise self._other(f"topic id {follower.topic_id}", latest.topic_id)
        if facts is not None or version > latest.version:
            found = "no such version" if facts is None else f"commit id {facts.commit_id}"
            raise self._other(f"commit id {role.source.commit_id} at version {version}", found)
        if not same_place:
            raise self._other(f"the leader in {role.source.uri}", "a log without that version")
        return Lineage(version, is_certain=False)

    def _other(self, expected: str, found: str) -> LogDirError:
        return LogDirError(
            f"Topic {self.topic} is not the log that the follower has mirrored",
            path=self.uri,
            expected=expected,
            found=found,
            hint="The follower stays as it is. Mirror from the log directory that it followed, or into a new one",
        )
