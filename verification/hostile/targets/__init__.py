"""What reads hostile input. Each target makes an input from random numbers and reads it; an error that is none of this
package's fails, as does what breaks a rule of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

Run = Callable[[Random], None]

# {name: (share of all inputs, module, function that prepares the target and returns its Run)}
TARGETS: dict[str, tuple[float, str, str]] = {
    "decoder": (0.20, "batches", "decoder"),
    "codecs": (0.15, "batches", "codecs"),
    "message sets": (0.08, "batches", "message_sets"),
    "cleaner": (0.08, "batches", "cleaner"),
    "sidecars": (0.15, "sidecars", "sidecars"),
    "checkpoints": (0.117, "sidecars", "checkpoints"),
    "look-ups": (0.03, "sidecars", "look_ups"),
    "shared objects": (0.06, "sidecars", "shared_objects"),
    "dumps": (0.01, "sidecars", "dumps"),
    "Kafka's own topics": (0.01, "sidecars", "own_topics"),
    "Kafka directories": (0.006, "directories", "kafka_directories"),
    "commits": (0.03, "manifests", "commits"),
    "recovery copies": (0.005, "manifests", "recovery_copies"),
    "rows of Parquet": (0.015, "manifests", "rows_of_parquet"),
    "values of rows": (0.003, "directories", "values_of_rows"),
    "Delta's log": (0.003, "manifests", "delta_logs"),
    "positions of groups": (0.003, "manifests", "positions_of_groups"),
    "reader and writer options": (0.04, "texts", "options"),
    "settings": (0.014, "texts", "settings"),
    "lines": (0.02, "texts", "lines"),
    "command line": (0.004, "texts", "command_line"),
    "registry answers": (0.01, "contents", "registry_answers"),
    "schemas": (0.02, "contents", "schemas"),
    "page requests": (0.01, "contents", "page_requests"),
    "terminal output": (0.02, "contents", "terminal_output"),
    "text values": (0.002, "values", "text_values"),
    "binary values": (0.002, "values", "binary_values"),
}


def prepared(name: str) -> Run:
    """The target, ready to run."""
    from importlib import import_module

    _, module, function = TARGETS[name]
    run: Run = getattr(import_module(f"verification.hostile.targets.{module}"), function)()
    return run
