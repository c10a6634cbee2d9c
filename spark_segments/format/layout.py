"""The layout of Kafka's record batches (magic 2) and the columns that they decode to.

Source of the rules: Kafka's DefaultRecordBatch and DefaultRecord. All integers are big-endian.

    baseOffset            i64   position 0
    batchLength           i32   8     bytes after this field
    partitionLeaderEpoch  i32   12
    magic                 i8    16
    crc                   u32   17    CRC-32C of everything from `attributes` on
    attributes            i16   21
    lastOffsetDelta       i32   23
    baseTimestamp         i64   27    the delete horizon when bit 6 of the attributes is set
    maxTimestamp          i64   35
    producerId            i64   43
    producerEpoch         i16   51
    baseSequence          i32   53
    recordsCount          i32   57
    records                     61    the only part that is compressed
"""

from __future__ import annotations

import struct

import pyarrow as pa

BASE_OFFSET_POSITION = 0
BATCH_LENGTH_POSITION = 8
LEADER_EPOCH_POSITION = 12
MAGIC_POSITION = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
LAST_OFFSET_DELTA_POSITION = 23
BASE_TIMESTAMP_POSITION = 27
MAX_TIMESTAMP_POSITION = 35
PRODUCER_ID_POSITION = 43
PRODUCER_EPOCH_POSITION = 51
BASE_SEQUENCE_POSITION = 53
RECORDS_COUNT_POSITION = 57
RECORDS_POSITION = 61

MAGIC = 2
HEADER_UP_TO_MAGIC = 17  # bytes up to and with the magic byte, the same for every magic

LOG_OVERHEAD = 12  # baseOffset and batchLength, which batchLength does not count
BATCH_OVERHEAD = RECORDS_POSITION
# Size of the smallest entry of magic 0 and of magic 1: offset, size, crc, magic, attributes, (timestamp,) key size,
# value size.
MAGIC_0_OVERHEAD = LOG_OVERHEAD + 14
MAGIC_1_OVERHEAD = LOG_OVERHEAD + 22
LEGACY_CRC_POSITION = 12
LEGACY_ATTRIBUTES_POSITION = 17
LEGACY_TIMESTAMP_POSITION = 18

LARGEST_OFFSET = 2**63 - 1
LOW_31, LOW_32 = 2**31 - 1, 2**32 - 1
COUNT_UNKNOWN = -1  # of the records of a compressed entry of magic 0 or 1

HEADER_STRUCT = struct.Struct(
    ">q"  # baseOffset
    "i"  # batchLength
    "i"  # partitionLeaderEpoch
    "b"  # magic
    "I"  # crc
    "h"  # attributes
    "i"  # lastOffsetDelta
    "q"  # baseTimestamp
    "q"  # maxTimestamp
    "q"  # producerId
    "h"  # producerEpoch
    "i"  # baseSequence
    "i"  # recordsCount
)

CODEC_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODECS = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
CODEC_NAMES = {number: name for name, number in CODECS.items()}

NO_TIMESTAMP = -1
NO_TIMESTAMP_TYPE = -1
CREATE_TIME = 0
LOG_APPEND_TIME = 1

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

# Types of control records that end a transaction.
ABORT = 0
COMMIT = 1
NO_MARKER = -1  # a control batch without records
BAD_CONTROL = -2  # a record that is no control record

# The name of the items is Spark's: some engines compare it.
HEADERS_TYPE = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))

# The columns of decoded records: the columns of Spark's Kafka source, in the same order.
RECORD_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
