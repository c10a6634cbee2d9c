"""Transactions: which append is a repeat of an earlier append, and which append must be refused.

A transaction is (application id, version). A topic remembers the last version of each application: that version again
is a repeat, a lower one an error. An idempotency key is a transaction that a topic remembers for
transactional.id.expiration.ms, so keys may come in any order. Rows of the manifest say what the last transactions are,
and Delta's txn actions which commit of an application has which. Kafka's transactions, which live in the batches, are
another matter.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from spark_segments.errors import InvalidOptionError, TransactionOrderError

TRANSACTION_SCHEMA = pa.schema(
    [
        pa.field("topic_id", pa.string()),
        pa.field("application_id", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("query_id", pa.string()),
        pa.field("committed_ms", pa.int64()),
    ]
)

FORGOTTEN = -1
"""The last version of an application that was forgotten. It is below every version that an append may have."""


KEY_PREFIX = "@once/"
"""An application id that begins so is an idempotency key. The version is then when the key was committed, by the
store's clock, in ms."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """The name of an append, so that the append is added once however often it is sent.

    `query_id`: the streaming query that sends it, None outside of a query.
    """

    application: str
    version: int
    query_id: str | None = None

    @property
    def key(self) -> str | None:
        """The idempotency key that this stands for; None for an application's transaction."""
        return self.application.removeprefix(KEY_PREFIX) if self.application.startswith(KEY_PREFIX) else None

    def __str__(self) -> str:
        return f"transaction {self.application}:{self.version}" if self.key is None else f"idempotency key {self.key}"

    @classmethod
    def named(cls, once: str | None, txn: AnyTransaction | None) -> Transaction | None:
        """The transaction of an append with an idempotency key or a transaction; None for an append with neither.

        Raises InvalidOptionError for both, for a key that is no text or empty, and as `checked` does.
        """
        if once is None:
            return None if txn is None else checked(txn)
        if txn is not None:
            raise InvalidOptionError("An append has an idempotency key (once) or a transaction, not both")
        if not _is_name(once):
            raise InvalidOptionError("An idempotency key is no name", expected="text", found=repr(once))
        return cls(KEY_PREFIX + once, 0)  # its commit sets the version


AnyTransaction = Transaction | tuple[str, int]
"""A transaction, or its (application id, version)."""


def checked(txn: AnyTransaction) -> Transaction:
    """The transaction. Raises InvalidOptionError for an application without a name, and for a version that is negative
    or does not fit the 64 bits of Delta's log.
    """
    if not isinstance(txn, Transaction):
        if len(txn) != 2:
            raise InvalidOptionError("A transaction has two parts", expected="(application id, version)", found=txn)
        txn = Transaction(*txn)
        if isinstance(txn.application, str) and txn.application.startswith(KEY_PREFIX):
            raise InvalidOptionError(
                f"An application id may not begin with {KEY_PREFIX}",
                found=txn.application,
                hint="once names an append by an idempotency key",
            )
    if not _is_name(txn.application):  # no look-up would ever find it
        raise InvalidOptionError(
            "The application id of a transaction is no name", expected="text", found=repr(txn.application)
        )
    try:
        version = -1 if isinstance(txn.version, bool) else operator.index(txn.version)
    except TypeError:
        version = -1
    if not 0 <= version < 1 << 63:
        raise InvalidOptionError(
            f"The version of a transaction of {txn.application} is out of range",
            expected=f"a whole number from 0 to {(1 << 63) - 1}",
            found=txn.version,
            hint="Number an application's writes from 0 on, or by a batch id or a time in ms",
        )
    return dataclasses.replace(txn, version=version)


def _is_name(text: object) -> bool:
    """Whether an object is text, and none that UTF-8 cannot write: half of a surrogate pair."""
    if not isinstance(text, str) or not text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_repeat(txn: Transaction, last: Transaction | None, topic: str) -> bool:
    """Whether a topic holds the append already. `last`: the application's last transaction on the topic, None where the
    topic remembers none. A key that the topic remembers is a repeat; so is the last version of an application.

    Raises TransactionOrderError where the append is not known to be in the topic, and yet its version is not above the
    last version: to skip it could lose its rows, to add it could add rows twice.
    """
    if last is None or (txn.key is None and txn.version > last.version):
        return False
    if txn.query_id is not None and last.query_id is not None and txn.query_id != last.query_id:
        raise TransactionOrderError(
            f"Transaction {txn.version} of {txn.application} in topic {topic} is not above the last transaction of "
            "another streaming query",
            expected=f"a version above {last.version}, or the query {last.query_id}",
            found=f"version {txn.version} of the query {txn.query_id}",
            hint="Batch ids of a query begin at 0 again after its checkpoint is deleted, and other queries count their "
            "own: give txnAppId a name that no other query, and no earlier checkpoint, has used",
        )
    if txn.key is not None or txn.version == last.version:
        return True
    if txn.query_id == txn.application:  # a stream's own transaction
        raise TransactionOrderError(
            f"Batch {txn.version} of the streaming query {txn.application} is below the last batch in topic {topic}",
            expected=f"batch {last.version} again, or a later batch",
            found=f"batch {txn.version}",
            hint="The query goes on from an old checkpoint: restore its newest checkpoint. With a new checkpoint "
            "location the query has a new id and appends all that it reads from its starting offsets on",
        )
    raise TransactionOrderError(
        f"Transaction {txn.version} of {txn.application} is below its last transaction in topic {topic}",
        expected=f"version {last.version} again, or a later version",
        found=f"version {txn.version}",
        hint="Versions of an application rise. Appends that come in any order, such as those of a backfill, have an "
        "idempotency key each: once (--once, appendOnce)",
    )


def transactions_table(topic_id: str, transactions: Iterable[Transaction], committed_ms: int) -> pa.Table:
    """Rows of TRANSACTION_SCHEMA, in the order given."""
    rows = [
        {
            "topic_id": topic_id,
            "application_id": transaction.application,
            "version": transaction.version,
            "query_id": transaction.query_id,
            "committed_ms": committed_ms,
        }
        for transaction in transactions
    ]
    return pa.Table.from_pylist(rows, TRANSACTION_SCHEMA)


def transactions_of(table: pa.Table) -> list[Transaction]:
    """The inverse of `transactions_table`."""
    columns = (table.column(name).to_pylist() for name in ("application_id", "version", "query_id"))
    return [Transaction(*row) for row in zip(*columns, strict=True)]
