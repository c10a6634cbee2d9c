"""Runs the cells of a notebook in one process, as a kernel does: python -m verification.release.notebook NOTEBOOK.

Prints a line of JSON: for each cell of code what it shows, as a list of {type: content}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config


class Shell(InteractiveShell):
    """A shell without windows, as a kernel is."""

    def enable_gui(self, gui: str | None = None) -> None:
        """%matplotlib inline asks for none."""


if __name__ == "__main__":
    cells = json.loads(Path(sys.argv[1]).read_text())["cells"]
    # Other packages know a kernel by this setting: DuckDB, progress_bar.
    shell = Shell.instance(config=Config(IPKernelApp=Config(), HistoryManager=Config(enabled=False)))
    shown = []
    for cell in cells:
        if cell["cell_type"] == "code":
            with capture_output() as captured:
                result = shell.run_cell("".join(cell["source"]))
            if not result.success:
                sys.exit(captured.stdout + captured.stderr)
            outputs = [output.data for output in captured.outputs]
            shown.append(outputs + [shell.display_formatter.format(result.result)[0]] * (result.result is not None))
    print(json.dumps(shown, default=repr))
