"""The trigger that waits for a topic in Airflow's triggerer, where it takes no worker slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from spark_segments.airflow.reached import TopicCondition


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
