/* CRC-32C of a range: by the processor's instruction where it has one, found at run time, else by a table.

   Three interleaved streams keep the instruction busy: a step takes three cycles, but each cycle can begin one. */
#ifndef SEGMENTS_CRC32C_H
#define SEGMENTS_CRC32C_H
#include <stdint.h>
#include <string.h>

/* Bytes of each stream before the CRCs are combined: multiples of a cache line. */
#define CRC_LONGEST 8192
static const int64_t crc_sizes[3] = {CRC_LONGEST, 1024, 128};
static uint32_t crc_bytes[256];          /* what each value of a byte adds */
static uint32_t crc_shift[3][4][256];    /* what each byte of a CRC becomes after crc_sizes[i] zero bytes */
static int crc_has_instruction = 0;

#if defined(__x86_64__)
#include <cpuid.h>
#include <nmmintrin.h>
#if defined(__clang__)
#define CRC_TARGET __attribute__((target("sse4.2,crc32")))
#else
#define CRC_TARGET __attribute__((target("sse4.2")))
#endif
#define CRC_STEP8(crc, byte) _mm_crc32_u8((uint32_t)(crc), byte)
#define CRC_STEP64(crc, word) _mm_crc32_u64(crc, word)
static int crc_found(void) { /* __builtin_cpu_supports is always false under zig */
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_2) != 0;
}
#elif defined(__aarch64__)
#include <arm_acle.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__clang__)
#define CRC_TARGET __attribute__((target("crc")))
#else
#define CRC_TARGET __attribute__((target("+crc")))
#endif
#define CRC_STEP8(crc, byte) __crc32cb((uint32_t)(crc), byte)
#define CRC_STEP64(crc, word) __crc32cd((uint32_t)(crc), word)
static int crc_found(void) {
#if defined(__linux__)
    return (getauxval(AT_HWCAP) & (1 << 7)) != 0; /* HWCAP_CRC32 */
#else
    return 1; /* every processor of Apple's */
#endif
}
#endif

static uint32_t crc_by_table(uint32_t crc, const unsigned char *at, const unsigned char *end) {
    while (at < end) crc = crc_bytes[(crc ^ *at++) & 255] ^ (crc >> 8);
    return crc;
}

#ifdef CRC_TARGET
static inline uint32_t crc_shifted(uint32_t crc, uint32_t table[4][256]) {
    return table[0][crc & 255] ^ table[1][crc >> 8 & 255] ^ table[2][crc >> 16 & 255] ^ table[3][crc >> 24];
}
static inline uint64_t crc_load(const unsigned char *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}
CRC_TARGET static uint32_t crc_by_instruction(uint32_t start, const unsigned char *at, const unsigned char *end) {
    uint64_t crc = start;
    for (int level = 0; level < 3; level++) {
        int64_t size = crc_sizes[level];
        while (end - at >= 3 * size) {
            uint64_t second = 0, third = 0;
            const unsigned char *until = at + size;
            for (; at < until; at += 64) {
                /* The processor's own prefetching does not follow three streams that start anew so often. */
                for (int stream = 0; stream < 3; stream++)
                    __builtin_prefetch((const void *)((uintptr_t)at + 3 * CRC_LONGEST + stream * size), 0, 2);
                for (int word = 0; word < 64; word += 8) {
                    crc = CRC_STEP64(crc, crc_load(at + word));
                    second = CRC_STEP64(second, crc_load(at + word + size));
                    third = CRC_STEP64(third, crc_load(at + word + 2 * size));
                }
            }
            crc = crc_shifted((uint32_t)crc, crc_shift[level]) ^ (uint32_t)second;
            crc = crc_shifted((uint32_t)crc, crc_shift[level]) ^ third;
            at += 2 * size;
        }
    }
    for (; end - at >= 8; at += 8) crc = CRC_STEP64(crc, crc_load(at));
    for (; at < end; at++) crc = CRC_STEP8(crc, *at);
    return (uint32_t)crc;
}
#endif

/* Fills the tables. To be called once, before all else. */
static void crc_begin(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1) * 0x82F63B78u;
        crc_bytes[byte] = crc;
    }
    for (int level = 0; level < 3; level++) {
        uint32_t column[32]; /* what each bit of a CRC becomes: after one zero byte, then after twice as many each time */
        for (int bit = 0; bit < 32; bit++) column[bit] = crc_bytes[(1u << bit) & 255] ^ ((1u << bit) >> 8);
        for (int64_t zeros = 1; zeros < crc_sizes[level]; zeros *= 2) {
            uint32_t twice[32];
            for (int bit = 0; bit < 32; bit++) {
                twice[bit] = 0;
                for (int of = 0; of < 32; of++)
                    if (column[bit] >> of & 1) twice[bit] ^= column[of];
            }
            memcpy(column, twice, sizeof column);
        }
        for (int lane = 0; lane < 4; lane++)
            for (int byte = 0; byte < 256; byte++) {
                uint32_t crc = 0;
                for (int bit = 0; bit < 8; bit++)
                    if (byte >> bit & 1) crc ^= column[8 * lane + bit];
                crc_shift[level][lane][byte] = crc;
            }
    }
#ifdef CRC_TARGET
    crc_has_instruction = crc_found();
#endif
}

/* `crc`: of the bytes before. */
static long long table_crc(long long crc, long long start, long long end) {
    const unsigned char *at = (const unsigned char *)(uintptr_t)start, *until = (const unsigned char *)(uintptr_t)end;
    return (long long)(uint32_t)~crc_by_table(~(uint32_t)crc, at, until);
}
static long long best_crc(long long crc, long long start, long long end) {
#ifdef CRC_TARGET
    const unsigned char *at = (const unsigned char *)(uintptr_t)start, *until = (const unsigned char *)(uintptr_t)end;
    if (crc_has_instruction) return (long long)(uint32_t)~crc_by_instruction(~(uint32_t)crc, at, until);
#endif
    return table_crc(crc, start, end);
}
#endif
