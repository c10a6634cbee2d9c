"""python -m verification.kafka_protocol.without_settings COMMAND …: for brokers without DescribeConfigs."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any
from unittest.mock import patch

from confluent_kafka.admin import AdminClient

from spark_segments.cli import main


def describe_configs(_client: AdminClient, resources: list[Any], **_options: Any) -> dict[Any, Future[dict[str, Any]]]:
    """As of topics that have no settings."""
    answers: dict[Any, Future[dict[str, Any]]] = {resource: Future() for resource in resources}
    for answer in answers.values():
        answer.set_result({})
    return answers


if __name__ == "__main__":
    with patch.object(AdminClient, "describe_configs", describe_configs):
        main()
