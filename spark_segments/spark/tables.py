"""Tables of Spark's catalog: how the options of CREATE TABLE … USING segments reach the queries on the table.

Spark 4.2 passes the options of a table to a Python data source only at CREATE TABLE, when it asks for the schema. No
reader or writer gets them later, but Spark keeps the schema. So the table's schema carries its options, in the metadata
of its first column, and a query on the table reads them from there. Options of the query itself win.

CREATE TABLE with a list of columns, CREATE TABLE … AS SELECT and saveAsTable never ask for a schema: their tables have
no options.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from spark_segments.errors import InvalidOptionError
from spark_segments.spark.options.option_values import KAFKA_PREFIX, STORAGE_PREFIX

METADATA_KEY = "segments.options"

# The options that Spark adds at CREATE TABLE, and nowhere else.
_CATALOG_KEYS = frozenset(("provider", "owner"))
_CATALOG_PREFIX = "option."
_NOT_OPTIONS = _CATALOG_KEYS | {"location", "external", "is_managed_location", "comment", "collation"}

REGISTRY = "schema.registry"
"""The option of an address that may hold credentials."""

_SECRET = (STORAGE_PREFIX, f"{REGISTRY}.")
"""What the names of options with credentials begin with."""
_TOPIC_OPTIONS = frozenset(("subscribe", "subscribepattern", "assign"))

_WHAT_WORKS = (
    "A load needs a path and topics. In SQL, options reach a table made without columns, as by "
    "CREATE TABLE t USING segments OPTIONS (path '…', subscribe '…'), "
    "CREATE TEMPORARY VIEW v USING segments OPTIONS (…), SELECT … FROM t WITH (path '…', subscribe '…') and "
    "spark.read.options(…).table('t')"
)

_WHAT_INSERTS = (
    "Name the columns of an insert: INSERT INTO t (key, value) SELECT …. Where a query has the very columns of a "
    "table, Spark hands over the query's schema, which has no options"
)


def table_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a table that is being created, None for a load or a write.

    A table of a single topic can be read and inserted into where either subscribe or topic names the topic. Raises
    InvalidOptionError for options of the storage.
    """
    settings = {name.lower(): value for name, value in options.items()}
    if not settings.keys() >= _CATALOG_KEYS:
        return None
    kept = {
        name: value
        for name, value in settings.items()
        if name not in _NOT_OPTIONS and not name.startswith(_CATALOG_PREFIX)
    }
    secret = sorted(name for name in kept if name.removeprefix(KAFKA_PREFIX).startswith(_SECRET))
    if "@" in kept.get(REGISTRY, kept.get(KAFKA_PREFIX + REGISTRY, "")).partition("://")[2].partition("/")[0]:
        secret.append(f"the credentials in {REGISTRY}")
    if secret:
        raise InvalidOptionError(
            f"A table cannot keep {', '.join(secret)}: everybody who reads its schema would see it",
            hint="Give credentials by the environment or by SELECT … FROM t WITH (…), or create a temporary view",
        )
    names = kept.get("subscribe", "")
    if "topic" in kept and not _TOPIC_OPTIONS & kept.keys():
        kept["subscribe"] = kept["topic"]
    elif names and "," not in names:
        kept.setdefault("topic", names)
    return kept


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema of a table that has these options."""
    first, *rest = schema.fields
    metadata = {METADATA_KEY: json.dumps(dict(options), sort_keys=True)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *rest])


def query_options(options: Mapping[str, str], schema: StructType, *, is_write: bool = False) -> dict[str, str]:
    """The options in force for a query: its own win over the options of the table whose `schema` it reads or writes.

    A query with a path is no query on a table: a DataFrame read from a table has the column with the metadata, and may
    be written anywhere. Raises InvalidOptionError where there are no options at all; the error names the ways in which
    a table gets its options, or with `is_write` how an insert gets them.
    """
    settings = {name.lower(): value for name, value in options.items()}
    if "path" in settings:
        return settings
    texts = [field.metadata[METADATA_KEY] for field in schema.fields if METADATA_KEY in field.metadata]
    if texts:
        kept: dict[str, str] = json.loads(texts[0])
        if settings.keys() & _TOPIC_OPTIONS:
            kept = {name: value for name, value in kept.items() if name not in _TOPIC_OPTIONS}
        return kept | settings
    if not settings:
        raise InvalidOptionError(
            "No option reaches the data source", hint=f"{_WHAT_INSERTS}. {_WHAT_WORKS}" if is_write else _WHAT_WORKS
        )
    return settings
