"""Options that have no effect here although somebody set them: a sentence each, which the data source logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_segments.spark.options import READER_OPTIONS, TRIGGER_OPTIONS, WRITER_OPTIONS
from spark_segments.spark.options.kafka_settings import is_setting, nearest_setting
from spark_segments.spark.options.option_values import KAFKA_PREFIX, OptionValues


def ignored_by_reader(options: Mapping[str, str]) -> list[str]:
    """What a batch read leaves unheeded although it was asked for, a sentence each."""
    values = OptionValues(options, READER_OPTIONS, "reader")
    sentences = ignored_by_stream(options)
    limits = [name for name in TRIGGER_OPTIONS if values.has(name)]
    if limits:
        sentences.append(
            f"A batch read has no use for {' and '.join(limits)}: it is read as a whole. They are limits of streams"
        )
    return sentences


def ignored_by_stream(options: Mapping[str, str]) -> list[str]:
    """What a stream's reader leaves unheeded although it was asked for, a sentence each."""
    return _misspelt_settings(OptionValues(options, READER_OPTIONS, "reader"), READER_OPTIONS)


def ignored_by_writer(options: Mapping[str, str]) -> list[str]:
    """What a write leaves unheeded although it was asked for, a sentence each."""
    values = OptionValues(options, WRITER_OPTIONS, "writer")
    sentences = _misspelt_settings(values, WRITER_OPTIONS)
    if values.has("kafka.partitioner.class"):
        sentences.append(
            "kafka.partitioner.class is not run: a record goes where the column partition says, else where Kafka's "
            "default partitioner puts its key. Compute the column partition to have it elsewhere"
        )
    return sentences


def _misspelt_settings(values: OptionValues, options: Iterable[str]) -> list[str]:
    """A sentence for each option under `kafka.` that is neither a setting of Kafka's clients nor one of the `options`.

    It is no error: the connector gives such a name to Kafka's client, which warns of it, too, and goes on.
    """
    prefixable = {name.lower() for name in options if "." in name}
    sentences = []
    for name in sorted(values.prefixed(KAFKA_PREFIX)):
        if name in prefixable or is_setting(name):
            continue
        sentence = f"{KAFKA_PREFIX}{name} is no setting of Kafka's clients, and has no effect"
        meant = nearest_setting(name, prefixable)
        if meant is not None:
            sentence += f". Did you mean {KAFKA_PREFIX}{meant}?"
        sentences.append(sentence)
    return sentences
