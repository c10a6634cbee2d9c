from spark_segments.format.kernels.memory cimport (
    address_of,
    i64,
    load_u8,
    load_u32_le,
    load_u64_le,
    multiply_high,
    swap_64,
    u64,
    wrap_u32,
    wrap_u64,
)

ctypedef struct KeyHash:
    u64 low
    u64 high

cdef KeyHash key_hash(i64 position, i64 size, u64 seed, i64 secret) nogil
