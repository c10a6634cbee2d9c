from spark_segments.format.kernels.memory cimport address_of, i64, size_of

cdef extern from "crc32c_instructions.h" nogil:
    void crc_begin()
    long long best_crc(long long, long long, long long)
    long long table_crc(long long, long long, long long)

cdef i64 crc32c_range(i64 start, i64 end) nogil
