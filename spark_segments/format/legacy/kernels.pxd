from spark_segments.format.kernels.memory cimport (
    address_of,
    copy_bytes,
    i64,
    load_i32,
    load_i64,
    load_native_i64,
    load_u8,
    load_u32,
    size_of,
    store_i8,
    store_native_i32,
    store_native_i64,
    varlong_size,
    write_varlong,
)
from spark_segments.format.layout cimport (
    CODEC_MASK,
    CREATE_TIME,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    NO_TIMESTAMP_TYPE,
    TIMESTAMP_TYPE_MASK,
)
from spark_segments.format.legacy.problems cimport (
    BAD_KEY,
    BAD_MAGIC,
    BAD_OFFSET,
    BAD_SIZE,
    BAD_VALUE,
    GOOD,
    NESTED,
)
