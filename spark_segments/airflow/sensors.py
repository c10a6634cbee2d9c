"""The sensor that waits until a topic has reached offsets or a time, and its trigger in Airflow's triggerer, where it
takes no worker slot.
"""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from airflow.sdk import BaseSensorOperator, Connection, PokeReturnValue
from airflow.sdk.configuration import conf
from airflow.triggers.base import BaseTrigger, TriggerEvent

from spark_segments.airflow.reached import TopicCondition
from spark_segments.errors import InvalidOptionError
from spark_segments.quantities import moment_ms


class TopicTrigger(BaseTrigger):
    """Fires once a topic has come so far, with {"offsets": {partition: log end offset}}.

    It looks every `poke_interval` seconds. A look reads the newest commits of the topic's manifest in a thread: the
    event loop, which all triggers share, never waits for the storage. An error of a look ends the trigger, and fails
    the task, whose retries begin it again.
    """

    def __init__(
        self, condition: Mapping[str, Any], poke_interval: float = 60.0, storage_conn_id: str | None = None
    ) -> None:
        """`condition`: `TopicCondition.to_dict`. `storage_conn_id`: as of TopicSensor."""
        super().__init__()
        self.condition = dict(condition)
        self.poke_interval = poke_interval
        self.storage_conn_id = storage_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class path and the arguments that make this trigger again in another process."""
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        arguments = {"condition": self.condition, "poke_interval": self.poke_interval}
        return name, arguments | {"storage_conn_id": self.storage_conn_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields a single event."""
        name = self.storage_conn_id
        options = None if name is None else _storage_options(await Connection.async_get(name))
        condition = TopicCondition.from_dict(self.condition, options)
        log = await asyncio.to_thread(condition.open)
        ends = await asyncio.to_thread(condition.met, log)
        while ends is None:
            await asyncio.sleep(self.poke_interval)
            ends = await asyncio.to_thread(condition.met, log)
        yield TriggerEvent({"offsets": {str(partition): end for partition, end in ends.items()}})


class TopicSensor(BaseSensorOperator):
    """Waits until a topic has reached log end offsets, or a time. Returns {partition as text: log end offset}.

    `end_offsets`: {partition: log end offset}. `timestamp`: ISO 8601 with a zone, such as "{{ data_interval_end }}";
    every partition must have a record of that time or a later one, or any partition where `every_partition` is False.
    With `deferrable` (default: Airflow's own setting operators.default_deferrable) the task gives its worker slot back
    while it waits; it then looks every `poke_interval` seconds in the triggerer.

    `storage_conn_id`: an Airflow connection whose extra is the storage options, as JSON. Airflow keeps what a deferred
    sensor waits for in its database, and this name there; `storage_options` are for a sensor that does not defer.
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
        storage_conn_id: str | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if storage_options and (deferrable or storage_conn_id is not None):
            raise InvalidOptionError(
                "Storage options would be kept in Airflow's database"
                if deferrable
                else "Two sources of storage options",
                expected="storage_conn_id alone, or the environment of workers and triggerer",
                found="storage_options",
            )
        self.log_dir = log_dir
        self.topic = topic
        self.end_offsets = end_offsets
        self.timestamp = timestamp
        self.every_partition = every_partition
        self.storage_options = storage_options
        self.storage_conn_id = storage_conn_id
        self.deferrable = deferrable

    def poke(self, context: Any) -> PokeReturnValue:
        """A single look."""
        name = self.storage_conn_id
        options = self.storage_options if name is None else _storage_options(Connection.get(name))
        condition = self._condition(options)
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
            trigger=TopicTrigger(self._condition().to_dict(), self.poke_interval, self.storage_conn_id),
            method_name="execute_complete",
            timeout=datetime.timedelta(seconds=self.timeout),
        )

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> Any:
        """The triggerer calls it with the trigger's event."""
        return event["offsets"]

    def _condition(self, storage_options: Mapping[str, str] | None = None) -> TopicCondition:
        offsets = self.end_offsets
        timestamp_ms = None if self.timestamp is None else moment_ms(self.timestamp)
        return TopicCondition(
            self.log_dir,
            self.topic,
            None if offsets is None else {int(partition): int(end) for partition, end in offsets.items()},
            timestamp_ms,
            self.every_partition,
            storage_options,
        )


def _storage_options(connection: Any) -> dict[str, str]:
    """The storage options that a connection has as its extra."""
    return dict(json.loads(connection.extra or "{}"))
