"""The start of a command: what is imported, and the list of commands that are imported when they run."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from spark_segments.cli import COMMANDS
from spark_segments.cli.lazy_commands import LazyCommand
from spark_segments.cli.topics.topic import COMMANDS as TOPIC_COMMANDS

# Libraries that take long to import.
SLOW = ("spark_segments.format.kernels.crc32c", "pyarrow.dataset", "pyspark")
ARROW = ("pyarrow", "numpy", "deltalake")

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


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["topic", "--help"]], ids=" ".join)
def test_help_imports_no_library_for_data(arguments):
    assert not {*SLOW, *ARROW} & modules_after(*arguments)


@pytest.mark.slow
def test_commands_that_read_no_segment_import_no_kernel(tmp_path: Path):
    log = str(tmp_path / "log")
    for arguments in (
        ["topic", "create", log, "orders"],
        ["topic", "list", log],
        ["topic", "alter", log, "orders", "--partitions", "2"],
        ["describe", log, "orders"],
        ["offsets", log, "orders"],
        ["topic", "delete", log, "orders"],
    ):
        assert not set(SLOW) & modules_after(*arguments), arguments


@pytest.mark.slow
def test_a_short_read_imports_neither_pandas_nor_spark(tmp_path: Path):
    log, lines = str(tmp_path / "log"), tmp_path / "lines.json"
    lines.write_text('{"value": "a"}\n')
    for arguments in (
        ["append", log, "orders", "--input", str(lines), "--partitions", "1"],
        ["consume", log, "orders", "-n", "1"],
    ):
        imported = modules_after(*arguments)
        assert "pyarrow" in imported and not {"pandas", "pyspark", "pyarrow.dataset"} & imported


@pytest.mark.parametrize("command", [*COMMANDS, *TOPIC_COMMANDS], ids=lambda command: command.name)
def test_the_summary_in_the_list_is_the_first_paragraph_of_the_help(command: LazyCommand):
    loaded = command.load()
    assert loaded.name == command.name
    assert " ".join(inspect.cleandoc(loaded.help).split("\n\n")[0].split()) == command.summary
