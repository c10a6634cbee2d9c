from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

ctypedef long long i64
ctypedef unsigned long long u64

cdef extern from "memory.h" nogil:
    ctypedef struct Varint:
        long long value
        long long at
    long long load_u8(long long)
    long long load_i8(long long)
    long long load_i16(long long)
    long long load_i32(long long)
    long long load_u32(long long)
    long long load_i64(long long)
    long long load_native_i32(long long)
    long long load_native_i64(long long)
    long long load_u16_le(long long)
    long long load_u32_le(long long)
    unsigned long long load_u64_le(long long)
    void store_i8(long long, long long)
    void store_i16(long long, long long)
    void store_i32(long long, long long)
    void store_i64(long long, long long)
    void store_native_i32(long long, long long)
    void store_native_i64(long long, long long)
    long long wrap_i64(long long)
    unsigned long long wrap_u64(unsigned long long)
    unsigned int wrap_u32(unsigned int)
    unsigned long long multiply_high(unsigned long long, unsigned long long)
    unsigned long long swap_64(unsigned long long)
    void prefetch(long long)
    void prefetch_near(long long)
    void copy_chunk(long long, long long)
    void copy_bytes(long long, long long, long long)
    void fill_bytes(long long, long long, long long)
    void copy_short(long long, long long, long long, long long)
    Varint read_varint(long long, long long)
    Varint read_varlong(long long, long long)
    long long write_varlong(long long, long long)
    long long varlong_size(long long)

cdef inline long long address_of(object buffer) except? -1:
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    cdef long long address = <long long>view.buf
    PyBuffer_Release(&view)
    return address

cdef inline long long size_of(object buffer) except -1:
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    cdef long long size = view.len
    PyBuffer_Release(&view)
    return size
