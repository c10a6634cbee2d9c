"""The cleaner's kernel of transactions: one walk over their batches and markers, in the order of the log."""

from __future__ import annotations

import cython

if not cython.compiled:
    from spark_segments.format.kernels.memory import *
    from spark_segments.format.layout import *


def walk(batches_read, producers, transactions, txn_producers, known, marks) -> None:
    """Sets which batches are `discardable`, which transactions have `ended`, and of which the marker is `retained`.

    `batches_read`: TransactionalBatches, `producers` int64[n] of theirs (numbers from 0 to len(committed) - 1).
    `transactions`: AbortedTransactions by first offset, `txn_producers` int64[m] of theirs. `known`: observed bool[m]:
    data of it was met; committed bool[p] of the producers, under_way int64[p] of scratch. `marks`: discardable bool[n],
    ended and retained bool[m], which begin as False. What is known is updated.
    """
    base_offsets = batches_read.base_offset
    last_offsets = batches_read.last_offset
    control = batches_read.control
    kinds = batches_read.kind
    txn_first_offsets = transactions.first_offset
    txn_last_offsets = transactions.last_offset
    observed, committed, under_way = known
    discardable, ended, retained = marks
    producer_at: i64 = address_of(producers)
    base_at: i64 = address_of(base_offsets)
    last_at: i64 = address_of(last_offsets)
    control_at: i64 = address_of(control)
    kind_at: i64 = address_of(kinds)
    txn_producer_at: i64 = address_of(txn_producers)
    first_at: i64 = address_of(txn_first_offsets)
    end_at: i64 = address_of(txn_last_offsets)
    observed_at: i64 = address_of(observed)
    committed_at: i64 = address_of(committed)
    running_at: i64 = address_of(under_way)
    discardable_at: i64 = address_of(discardable)
    ended_at: i64 = address_of(ended)
    retained_at: i64 = address_of(retained)
    batches: i64 = len(producers)
    txns: i64 = len(txn_producers)
    numbers: i64 = len(committed)
    row: i64
    next_txn: i64 = 0
    last_offset: i64 = 0
    producer: i64
    running: i64
    txn: i64
    kind: i64
    with cython.nogil:
        for producer in range(numbers):
            store_native_i64(running_at + 8 * producer, -1)
        for row in range(batches):
            last_offset = load_native_i64(last_at + 8 * row)
            while next_txn < txns and load_native_i64(first_at + 8 * next_txn) <= last_offset:
                running = running_at + 8 * load_native_i64(txn_producer_at + 8 * next_txn)
                txn = load_native_i64(running)
                # A missing marker ends a transaction just as an existing one does.
                if txn >= 0 and load_native_i64(end_at + 8 * txn) < load_native_i64(first_at + 8 * next_txn):
                    store_i8(ended_at + txn, 1)
                    txn = -1
                if txn < 0:
                    store_native_i64(running, next_txn)
                else:
                    store_i8(ended_at + next_txn, 1)
                next_txn += 1
            producer = load_native_i64(producer_at + 8 * row)
            running = running_at + 8 * producer
            txn = load_native_i64(running)
            if txn >= 0 and load_native_i64(end_at + 8 * txn) < load_native_i64(base_at + 8 * row):
                store_i8(ended_at + txn, 1)
                store_native_i64(running, -1)
                txn = -1
            kind = load_native_i64(kind_at + 8 * row)
            if load_u8(control_at + row) == 0:
                if txn >= 0:
                    store_i8(observed_at + txn, 1)
                    store_i8(discardable_at + row, 1)
                else:
                    store_i8(committed_at + producer, 1)
            elif kind == NO_MARKER:
                store_i8(discardable_at + row, 1)
            elif kind == ABORT:
                store_i8(discardable_at + row, 1)
                if txn >= 0:
                    store_i8(ended_at + txn, 1)
                    store_native_i64(running, -1)
                    if load_u8(observed_at + txn):
                        store_i8(retained_at + txn, 1)
                        store_i8(discardable_at + row, 0)
            elif kind == COMMIT:
                store_i8(discardable_at + row, 1 - load_u8(committed_at + producer))
                store_i8(committed_at + producer, 0)
        # Batches come in the order of offsets, so what ended before the last one is over, seen or not.
        for txn in range(next_txn):
            if load_native_i64(end_at + 8 * txn) < last_offset:
                store_i8(ended_at + txn, 1)
