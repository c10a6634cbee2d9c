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

    `groups`: names or patterns of groups, whose positions in these topics become those of the groups of the same name
    here. `client_config`: settings by the names of Kafka's clients. `keep_retention`: a new topic gets the cluster's
    retention.ms and retention.bytes, too; else retention.ms=-1.

    `on_divergence`: where the cluster's log of a partition is another one, because a topic was made again or a leader
    lost records that were captured. FAIL makes that an error of the topic. KEEP leaves the partition here as it is
    from then on, and says so in each pass. BRANCH leaves the whole topic here as it is, and captures all that the
    cluster has into another one, TOPIC.branch-1, say, where each later capture goes on. `recapture`: as BRANCH, for
    every one of the topics, whatever its log is.

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
