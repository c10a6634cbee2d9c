from spark_segments.format.buffers cimport CHUNK_BYTES
from spark_segments.format.kernels.framing cimport LZ4_BLOCK_BYTES, LZ4_HEADER, LZ4_STORED_BIT, XERIAL_START
from spark_segments.format.kernels.memory cimport (
    Varint,
    copy_bytes,
    copy_chunk,
    i64,
    load_i32,
    load_i64,
    load_native_i64,
    load_u8,
    load_u16_le,
    load_u32_le,
    store_i8,
    store_native_i64,
)

ctypedef struct Stated:
    i64 size
    i64 impossible
    i64 stored

cdef i64 lz4_most_bytes(i64 source, i64 end) nogil
cdef i64 lz4_decompress(i64 source, i64 end, i64 out, i64 limit) nogil
cdef Stated snappy_size(i64 source, i64 end) nogil
cdef i64 snappy_decompress(i64 source, i64 end, i64 out, i64 limit) nogil
