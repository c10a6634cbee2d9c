"""Names that an import takes over from a directory that somebody else wrote, or packed: topics, partitions, links."""

from __future__ import annotations

from spark_segments.config import validate_topic_name
from spark_segments.errors import LogDirError
from spark_segments.log.kafka.directory import KafkaDirectory
from spark_segments.log.partitions import MOST_PARTITIONS


def check_names(source: KafkaDirectory, topic: str) -> None:
    """Raises InvalidOptionError for a name that no topic can have.

    Raises LogDirError for a partition number that no cluster has, since all partitions below it would be made, and for
    a symbolic link that leads out of the directory: it would bring any file of this machine into the topic.
    """
    validate_topic_name(topic)
    storage, sources = source.storage, source.sources(topic)
    largest = max((one.partition for one in sources), default=0)
    if largest >= MOST_PARTITIONS:
        raise LogDirError(
            f"Topic {topic} has a partition of a number that is too large",
            path=storage.uri,
            expected=f"below {MOST_PARTITIONS}",
            found=largest,
        )
    for one in sources:
        for path in [one.path, *(info.path for info in storage.list(one.path))]:
            if storage.leads_out(path):
                raise LogDirError(
                    "A directory to import holds a link that leads out of it",
                    path=storage.location(path),
                    hint="Where the link is yours, import the directory that it leads to",
                )
