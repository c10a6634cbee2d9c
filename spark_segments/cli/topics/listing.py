"""`segments topic list`."""

from __future__ import annotations

from spark_segments.cli.options import LogOptions, OutputOption, with_options
from spark_segments.cli.output import Output, print_json


@with_options
def list_topics(location: LogOptions, output: OutputOption = Output.TEXT) -> None:
    """Lists the topics.

    Example: segments topic list /data/log
    """
    topics = location.open().topics()
    if output is Output.JSON:
        print_json(topics)
    else:
        for topic in topics:
            print(topic)
