"""`segments mcp`: the tools of a log directory on standard input and output."""

from __future__ import annotations

import signal

from spark_segments.cli.command_options import LogOptions, option, with_options
from spark_segments.cli.records.value_text import FormatOptions
from spark_segments.errors import MissingExtraError
from spark_segments.quantities import span_ms


@with_options
def mcp(
    location: LogOptions,
    values: FormatOptions,
    sql_timeout: str = option("How long an SQL statement may take.", default="30s", metavar="DURATION"),
) -> None:
    """Lets an assistant read topics, by the Model Context Protocol, on standard input and output.

    An assistant starts it, and gets the tools describe, explain, consume, sql
    and verify. No tool writes, no SQL statement reaches a file or the network,
    and each answer has a bound. The records go to the assistant, and to the
    provider of its model. Without --value-format and --key-format, formats
    are guessed, as by `segments consume`. It needs the extra mcp.

    Example: segments mcp /data/log
    """
    try:
        from spark_segments.cli.mcp.tools import Tools
    except ModuleNotFoundError as error:
        raise MissingExtraError("mcp", "Tools for assistants", str(error.name)) from error

    tools = Tools(location.open(), values.of_values(), span_ms(sql_timeout) / 1000)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python would wait for its thread that reads standard input
    tools.server().run("stdio")
