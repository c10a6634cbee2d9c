"""How topics are captured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

PATIENCE_SECONDS = 60.0
REACH_SECONDS = 10.0
_ANSWER_SECONDS = 30.0


class Divergence(StrEnum):
    """What becomes of what is here where the cluster's log is another one."""

    FAIL = "fail"
    KEEP = "keep"
    BRANCH = "branch"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """How topics are captured.

    `groups`: names or patterns of consumer groups. The positions of the groups here become the cluster's positions in
    these topics. `client_config`: settings by the names of Kafka's clients. `keep_retention`: a new topic gets the
    cluster's retention.ms and retention.bytes, too; else retention.ms=-1.

    `on_divergence`: what to do where the cluster's log of a partition has diverged, because the topic was made again
    or a leader lost records that were captured. FAIL makes that an error of the topic. KEEP captures no more of the
    partition, and says so in each pass. BRANCH captures no more into the topic, and captures the cluster's whole topic
    into another one, such as TOPIC.branch-1, where each later capture goes on. `recapture`: does what BRANCH does for
    every topic, diverged or not.

    `max_rate`: bytes of batches a second, over all topics, partitions and executors; None: as many as come.

    `patience_seconds`: how long a cluster may give no answer, or none that can be used, before a topic is given up.
    `reach_seconds`: how long nobody may answer before the first answer.
    """

    groups: Sequence[str] = ()
    client_config: Mapping[str, str] = field(default_factory=dict, repr=False)  # it has secrets
    keep_retention: bool = False
    on_divergence: Divergence = Divergence.FAIL
    recapture: bool = False
    max_rate: int | None = None
    patience_seconds: float = PATIENCE_SECONDS
    reach_seconds: float = REACH_SECONDS

    @property
    def answer_seconds(self) -> float:
        """How long one answer may take."""
        return min(self.patience_seconds, _ANSWER_SECONDS)
