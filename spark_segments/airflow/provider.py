"""What Airflow asks of a provider package, by the entry point `apache_airflow_provider`."""

from __future__ import annotations

from typing import Any

_INTEGRATION = "spark_segments"


def get_provider_info() -> dict[str, Any]:
    """The provider's name and modules, in the form of Airflow's provider_info.schema.json."""
    # Airflow takes each _ out of the description that it shows.
    return {
        "package-name": "spark-segments",
        "name": "spark-segments",
        "description": "Kafka's topics as files: jobs, sensors and assets for log directories of spark-segments.",
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["software"]}],
        "operators": [{"integration-name": _INTEGRATION, "python-modules": ["spark_segments.airflow.operators"]}],
        "sensors": [{"integration-name": _INTEGRATION, "python-modules": ["spark_segments.airflow.sensors"]}],
        "triggers": [{"integration-name": _INTEGRATION, "python-modules": ["spark_segments.airflow.sensors"]}],
    }
