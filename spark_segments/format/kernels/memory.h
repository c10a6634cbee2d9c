/* Loads, stores, copies, searches and varints at addresses. memory.py is their plain twin, and says what they do. */
#ifndef SEGMENTS_MEMORY_H
#define SEGMENTS_MEMORY_H
#include <stdint.h>
#include <string.h>
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define SEG_BE(bits, v) (v)
#define SEG_LE(bits, v) __builtin_bswap##bits(v)
#else
#define SEG_BE(bits, v) __builtin_bswap##bits(v)
#define SEG_LE(bits, v) (v)
#endif
#define SEG_AT(address) ((unsigned char *)(uintptr_t)(address))

#define SEG_LOAD(name, result, bits, kind, order)          \
    static inline result name(long long address) {         \
        uint##bits##_t value;                              \
        memcpy(&value, SEG_AT(address), sizeof value);     \
        return (result)(kind)order(bits, value);           \
    }
#define SEG_STORE(name, bits, order)                        \
    static inline void name(long long address, long long number) { \
        uint##bits##_t value = order(bits, (uint##bits##_t)number); \
        memcpy(SEG_AT(address), &value, sizeof value);     \
    }
#define SEG_NATIVE(bits, v) (v)

SEG_LOAD(load_u8, long long, 8, uint8_t, SEG_NATIVE)
SEG_LOAD(load_i8, long long, 8, int8_t, SEG_NATIVE)
SEG_LOAD(load_i16, long long, 16, int16_t, SEG_BE)
SEG_LOAD(load_i32, long long, 32, int32_t, SEG_BE)
SEG_LOAD(load_u32, long long, 32, uint32_t, SEG_BE)
SEG_LOAD(load_i64, long long, 64, int64_t, SEG_BE)
SEG_LOAD(load_native_i32, long long, 32, int32_t, SEG_NATIVE)
SEG_LOAD(load_native_i64, long long, 64, int64_t, SEG_NATIVE)
SEG_LOAD(load_u16_le, long long, 16, uint16_t, SEG_LE)
SEG_LOAD(load_u32_le, long long, 32, uint32_t, SEG_LE)
SEG_LOAD(load_u64_le, unsigned long long, 64, uint64_t, SEG_LE)
SEG_STORE(store_i8, 8, SEG_NATIVE)
SEG_STORE(store_i16, 16, SEG_BE)
SEG_STORE(store_i32, 32, SEG_BE)
SEG_STORE(store_i64, 64, SEG_BE)
SEG_STORE(store_native_i32, 32, SEG_NATIVE)
SEG_STORE(store_native_i64, 64, SEG_NATIVE)

static inline long long wrap_i64(long long number) { return number; }
static inline unsigned long long wrap_u64(unsigned long long number) { return number; }
static inline unsigned int wrap_u32(unsigned int number) { return number; }

static inline unsigned long long multiply_high(unsigned long long a, unsigned long long b) {
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
static inline unsigned long long swap_64(unsigned long long number) { return __builtin_bswap64(number); }

static inline void prefetch(long long address) { __builtin_prefetch(SEG_AT(address), 0, 2); }
static inline void prefetch_near(long long address) { __builtin_prefetch(SEG_AT(address), 0, 3); }

static inline void copy_chunk(long long out, long long data) {
    typedef unsigned char part __attribute__((vector_size(16), aligned(1), may_alias));
    part low = *(const part *)SEG_AT(data), high = *(const part *)SEG_AT(data + 16);
    *(part *)SEG_AT(out) = low;
    *(part *)SEG_AT(out + 16) = high;
}
static inline void copy_bytes(long long out, long long data, long long size) {
    memcpy(SEG_AT(out), SEG_AT(data), (size_t)size);
}
static inline void fill_bytes(long long out, long long value, long long size) {
    memset(SEG_AT(out), (int)value, (size_t)size);
}
static inline void copy_short(long long out, long long data, long long size, long long data_end) {
    if (size <= 128 && data + 128 <= data_end) {
        copy_chunk(out, data);
        if (size > 32) {
            copy_chunk(out + 32, data + 32);
            if (size > 64) {
                copy_chunk(out + 64, data + 64);
                if (size > 96) copy_chunk(out + 96, data + 96);
            }
        }
    } else {
        copy_bytes(out, data, size);
    }
}

typedef struct { long long value, at; } Varint;

/* The low 64 bits of an unsigned varint of at most `bits` bits; apart from its callers, which are inlined. */
static __attribute__((noinline)) Varint seg_read_long(long long at, long long end, int bits) {
    unsigned long long raw = 0;
    for (int shift = 0; shift < bits && at < end; shift += 7) {
        unsigned long long byte = *SEG_AT(at++);
        raw |= (byte & 0x7F) << shift;
        if (byte < 0x80) return (Varint){(long long)raw, at};
    }
    return (Varint){0, -1};
}
#define SEG_VARINT(name, bits, keep)                                                                        \
    static inline Varint name(long long at, long long end) {                                                \
        if (at < end) {                                                                                     \
            long long raw = *SEG_AT(at);                                                                    \
            if (raw < 0x80) return (Varint){(raw >> 1) ^ -(raw & 1), at + 1};                               \
            if (at + 1 < end) {                                                                             \
                long long byte = *SEG_AT(at + 1);                                                           \
                if (byte < 0x80) {                                                                          \
                    raw = (raw & 0x7F) | byte << 7;                                                         \
                    return (Varint){(raw >> 1) ^ -(raw & 1), at + 2};                                       \
                }                                                                                           \
            }                                                                                               \
        }                                                                                                   \
        Varint read = seg_read_long(at, end, bits);                                                         \
        unsigned long long raw = (unsigned long long)read.value & keep;                                     \
        return (Varint){(long long)(raw >> 1) ^ -(long long)(raw & 1), read.at};                            \
    }
SEG_VARINT(read_varint, 35, 0xFFFFFFFFULL)
SEG_VARINT(read_varlong, 70, 0xFFFFFFFFFFFFFFFFULL)

static __attribute__((noinline)) long long seg_write_long(long long out, unsigned long long raw) {
    for (; raw >= 0x80; raw >>= 7) *SEG_AT(out++) = (unsigned char)(raw | 0x80);
    *SEG_AT(out++) = (unsigned char)raw;
    return out;
}
static inline long long write_varlong(long long out, long long value) {
    unsigned long long raw = ((unsigned long long)value << 1) ^ (unsigned long long)(value >> 63);
    if (raw < 0x80) {
        *SEG_AT(out) = (unsigned char)raw;
        return out + 1;
    }
    if (raw < 0x4000) {
        store_i16(out, (long long)(0x8000 | (raw & 0x7F) << 8 | raw >> 7));
        return out + 2;
    }
    return seg_write_long(out, raw);
}
static inline long long varlong_size(long long value) {
    unsigned long long raw = ((unsigned long long)value << 1) ^ (unsigned long long)(value >> 63);
    return raw < 0x80 ? 1 : raw < 0x4000 ? 2 : (70 - __builtin_clzll(raw)) / 7;
}
#endif
