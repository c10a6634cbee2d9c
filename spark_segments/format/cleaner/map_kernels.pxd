from spark_segments.format.cleaner.layout cimport (
    BYTES_PER_SLOT,
    GROUP,
    HASHED_BYTES,
    HASHED_FLAG,
    HAS_KEY,
    KEY_HIGH,
    KEY_ROW_BYTES,
    LOOK_AHEAD,
    ROW_FLAGS,
    ROW_KEY,
    ROW_OFFSET,
    SLOT_NEXT,
    TOMBSTONE,
)
from spark_segments.format.kernels.key_hash cimport KeyHash, key_hash
from spark_segments.format.kernels.memory cimport (
    Varint,
    address_of,
    i64,
    load_native_i32,
    load_native_i64,
    load_u8,
    multiply_high,
    prefetch_near,
    read_varint,
    read_varlong,
    store_i8,
    store_native_i64,
    u64,
    wrap_i64,
    wrap_u64,
)

ctypedef struct Map:
    i64 slots
    i64 end
    u64 capacity

ctypedef struct Counts:
    i64 kept
    i64 superseded
    i64 expired
    i64 no_key
    i64 tombstones

cdef Map map_at(i64 slots, i64 words) nogil
cdef i64 read_keys(
    i64 position, i64 end, i64 base_offset, i64 count, u64 seed, i64 secret, i64 rows, i64 read
) nogil
cdef Counts judge(
    Map table, i64 row, i64 last, i64 read, i64 end_offset, bint keep_without_key, bint expires
) nogil
