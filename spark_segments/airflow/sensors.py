"""The sensor that waits until a topic has reached offsets or a time, and its trigger in Airflow's triggerer, where it
takes no worker slot.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.configuration import conf
from airflow.triggers.base import BaseTrigger, TriggerEvent

from spark_segments.errors import InvalidOptionError
from spark_segments.face.logdir import LogDir
from spark_segments.log import Snapshot


@dataclass(frozen=True, slots=True)
class TopicCondition:
    """Holds once a topic has come so far. Just one of `end_offsets` and `timestamp_ms` is given.

    `end_offsets`: {partition: log end offset}; every log end is at least that. `timestamp_ms`: every partition (with
    `every_partition`), or any, has a record of that time or a later one.
    """

    log_dir: str
    topic: str
    end_offsets: Mapping[int, int] | None = None
    timestamp_ms: int | None = None
    every_partition: bool = True
    storage_options: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if (self.end_offsets is None) == (self.timestamp_ms is None):
            raise InvalidOptionError(
                "A sensor waits for offsets or for a time",
                expected="end_offsets or timestamp",
                found="neither" if self.end_offsets is None else "both",
            )

    def open(self) -> LogDir:
        """The log directory."""
        return LogDir.open(self.log_dir, self.storage_options)

    def met(self, log: LogDir) -> dict[int, int] | None:
        """{partition: log end offset} once the condition holds, else None.

        Offsets are read from the manifest's partition rows; only a time needs its segment rows. No segment is opened.
        Raises UnknownTopicError for a topic or a partition that is not there.
        """
        snapshot = log.topic(self.topic).snapshot
        ends = dict(
            zip(
                snapshot.partitions.column("partition").to_pylist(),
                snapshot.partitions.column("log_end_offset").to_pylist(),
                strict=True,
            )
        )
        if self.end_offsets is not None:
            reached = all(snapshot.partition(one).log_end_offset >= end for one, end in self.end_offsets.items())
        else:
            reached = self._time_reached(snapshot)
        return ends if reached else None

    def _time_reached(self, snapshot: Snapshot) -> bool:
        newest = np.full(snapshot.partitions.num_rows, -1, np.int64)
        np.maximum.at(
            newest, snapshot.live.column("partition").to_numpy(), snapshot.live.column("max_timestamp_ms").to_numpy()
        )
        reached = newest >= self.timestamp_ms
        return bool(reached.all() if self.every_partition else reached.any())

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON keeps them: a trigger is stored so, with partition numbers as text."""
        offsets = None if self.end_offsets is None else {str(one): end for one, end in self.end_offsets.items()}
        return {
            "log_dir": self.log_dir,
            "topic": self.topic,
            "end_offsets": offsets,
            "timestamp_ms": self.timestamp_ms,
            "every_partition": self.every_partition,
            "storage_options": None if self.storage_options is None else dict(self.storage_options),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TopicCondition:
        """The inverse of `to_dict`."""
        offsets = fields["end_offsets"]
        return cls(**{**fields, "end_offsets": None if offsets is None else {int(k): v for k, v in offsets.items()}})


class TopicTrigger(BaseTrigger):
    """Fires once a topic has come so far, with {"offsets": {partition: log end offset}}.

    It looks every `poke_interval` seconds. A look reads the newest commits of the topic's manifest in a thread: the
    event loop, which all triggers share, never waits for the storage. An error of a look ends the trigger, and fails
    the task, whose retries begin it again.
    """

    def __init__(self, condition: Mapping[str, Any], poke_interval: float = 60.0) -> None:
        """`condition`: `TopicCondition.to_dict`."""
        super().__init__()
        self.condition = dict(condition)
        self.poke_interval = poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class path and the arguments that make this trigger again in another process."""
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return name, {"condition": self.condition, "poke_interval": self.poke_interval}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields a single event."""
        condition = TopicCondition.from_dict(self.condition)
        log = await asyncio.to_thread(condition.open)
        while (ends := await asyncio.to_thread(condition.met, log)) is None:
            await asyncio.sleep(self.poke_interval)
        yield TriggerEvent({"offsets": {str(partition): end for partition, end in ends.items()}})


class TopicSensor(BaseSensorOperator):
    """Waits until a topic has reached log end offsets, or a time. Returns {partition as text: log end offset}.

    `end_offsets`: {partition: log end offset}. `timestamp`: ISO 8601 with a zone, such as "{{ data_interval_end }}";
    every partition must have a record of that time or a later one, or any partition where `every_partition` is False.
    With `deferrable` (default: Airflow's own setting operators.default_deferrable) the task gives its worker slot back
    while it waits; it then looks every `poke_interval` seconds in the triggerer.
    """

    template_fields: Sequence[str] = ("log_dir", "topic", "end_offsets", "timestamp")

    def __init__(
        self,
        *,
        log_dir: str,
        topic: str,
        end_offsets: Mapping[int, int] | None = None,
        timestamp: str | None = None,
        every_partition: bool = True,
        storage_options: Mapping[str, str] | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.log_dir = log_dir
        self.topic = topic
        self.end_offsets = end_offsets
        self.timestamp = timestamp
        self.every_partition = every_partition
        self.storage_options = storage_options
        self.deferrable = deferrable

    def poke(self, context: Any) -> PokeReturnValue:
        """A single look."""
        condition = self._condition()
        ends = condition.met(condition.open())
        offsets = None if ends is None else {str(partition): end for partition, end in ends.items()}
        return PokeReturnValue(is_done=ends is not None, xcom_value=offsets)

    def execute(self, context: Any) -> Any:
        """Waits in this worker, or hands the waiting to the triggerer."""
        if not self.deferrable:
            return super().execute(context)
        first = self.poke(context)
        if first.is_done:
            return first.xcom_value
        self.defer(
            trigger=TopicTrigger(self._condition().to_dict(), self.poke_interval),
            method_name="execute_complete",
            timeout=datetime.timedelta(seconds=self.timeout),
        )

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> Any:
        """The triggerer calls it with the trigger's event."""
        return event["offsets"]

    def _condition(self) -> TopicCondition:
        offsets, timestamp_ms = self.end_offsets, None
        if self.timestamp is not None:
            moment = datetime.datetime.fromisoformat(self.timestamp)
            since = moment.astimezone(datetime.UTC) - datetime.datetime.fromtimestamp(0, datetime.UTC)
            timestamp_ms = since // datetime.timedelta(milliseconds=1)
        return TopicCondition(
            self.log_dir,
            self.topic,
            None if offsets is None else {int(partition): int(end) for partition, end in offsets.items()},
            timestamp_ms,
            self.every_partition,
            self.storage_options,
        )
