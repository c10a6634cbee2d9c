"""The start of a command: what is imported, and the list of commands that are imported when they run."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from spark_segments.cli import COMMANDS
from spark_segments.cli.topics.topic import COMMANDS as TOPIC_COMMANDS

ARROW = ("pyarrow", "numpy", "deltalake")
KERNELS = ("spark_segments.format.kernels.crc32c",)
READING = ("spark_segments.format.decoding.decode", "spark_segments.kafka.directory")
# What takes long to import, and what a small log asks of none of these commands.
NEVER = (
    *("pandas", "pyspark", "duckdb", "polars", "rich.console", "markdown_it", "pydantic"),
    *("numpy.ma", "pyarrow.dataset", "asyncio", "http.client"),
    "spark_segments.maintenance.verification.deep",
)
COMMANDS_WITHOUT = {
    "--help": (*ARROW, *KERNELS, *READING),
    "topic create LOG orders": (*KERNELS, *READING),
    "append LOG orders --input LINES": (),
    "consume LOG orders -n 1": ("spark_segments.kafka.directory",),
    "topic list LOG": (*KERNELS, *READING),
    "describe LOG orders": (*KERNELS, *READING),
    "describe LOG --html PAGE": READING,
    "explain LOG orders --partition 0 --offset 0": READING,
    "retain LOG --dry-run": (*KERNELS, *READING),
    "verify LOG": READING,
}

PROGRAM = """
import sys
from spark_segments.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def modules_after(*arguments: str) -> set[str]:
    """The modules that a new process has imported after it ran a command."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_extra_a_command_is_one_sentence(missing):
    program = f"import sys; sys.modules[{missing!r}] = None; from spark_segments.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and line.endswith("pip install 'spark-segments[cli]'")


@pytest.mark.proof
def test_a_command_imports_what_it_needs(tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("a\nb\n")
    places = {"LOG": str(tmp_path / "log"), "LINES": str(lines), "PAGE": str(tmp_path / "page.html")}
    for command, without in COMMANDS_WITHOUT.items():
        imported = modules_after(*(places.get(word, word) for word in command.split()))
        # 0.29 of typer imports pydantic for itself; the package asks for an older one.
        refused = {*NEVER, *without} - ({"pydantic"} if "typer._adapters" in imported else set())
        assert not refused & imported, command


@pytest.mark.parametrize("command", [*COMMANDS, *TOPIC_COMMANDS], ids=lambda command: command.name)
def test_the_summary_in_the_list_is_the_first_paragraph_of_the_help(command):
    loaded = command.load()
    assert loaded.name == command.name
    assert " ".join(inspect.cleandoc(loaded.help).split("\n\n")[0].split()) == command.summary
