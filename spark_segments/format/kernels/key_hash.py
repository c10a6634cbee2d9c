"""The 128-bit hash of a record's key: XXH3-128 as the xxHash project specifies it, with a seed.

The cleaner knows a key by this hash alone. If two keys had the same hash, the older record of the pair would be removed
although it is the newest of its key: a lost record. Among n keys the probability of such a pair is about n² / 2^129:
1.5 · 10^-15 for 10^12 keys.

That holds for keys that nobody chose by their hash. XXH3 is no cryptographic hash: it has no proof against a writer who
looks for collisions, and with a known seed such pairs can be computed. The cleaner draws its seed at random for each
map, so pairs that were computed for one seed are unlikely to collide in the next; there is no proof that no pair
collides for every seed. Keys from hostile writers belong in a separate topic.
"""

from __future__ import annotations

import struct

import cython
import numpy as np

if not cython.compiled:
    from spark_segments.format.kernels.memory import *

KeyHash = cython.struct(low=cython.ulonglong, high=cython.ulonglong)

# The specification's default secret.
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_WORDS = struct.unpack("<24Q", SECRET)

# Constants of kernels are C's: as objects of Python they would need the GIL.
_PRIME_32_1 = cython.declare(cython.ulonglong, 0x9E3779B1)
_PRIME_32_2 = cython.declare(cython.ulonglong, 0x85EBCA77)
_PRIME_32_3 = cython.declare(cython.ulonglong, 0xC2B2AE3D)
_PRIME_1 = cython.declare(cython.ulonglong, 0x9E3779B185EBCA87)
_PRIME_2 = cython.declare(cython.ulonglong, 0xC2B2AE3D27D4EB4F)
_PRIME_3 = cython.declare(cython.ulonglong, 0x165667B19E3779F9)
_PRIME_4 = cython.declare(cython.ulonglong, 0x85EBCA77C2B2AE63)
_PRIME_5 = cython.declare(cython.ulonglong, 0x27D4EB2F165667C5)
_PRIME_MX1 = cython.declare(cython.ulonglong, 0x165667919E3779F9)
_PRIME_MX2 = cython.declare(cython.ulonglong, 0x9FB21C651E98DF25)

# Pairs of words of the secret that short keys are mixed with, by length.
_EMPTY_LOW = cython.declare(cython.ulonglong, _WORDS[8] ^ _WORDS[9])
_EMPTY_HIGH = cython.declare(cython.ulonglong, _WORDS[10] ^ _WORDS[11])
_TINY_LOW = cython.declare(cython.ulonglong, (_WORDS[0] ^ _WORDS[0] >> 32) & 0xFFFFFFFF)
_TINY_HIGH = cython.declare(cython.ulonglong, (_WORDS[1] ^ _WORDS[1] >> 32) & 0xFFFFFFFF)
_SMALL = cython.declare(cython.ulonglong, _WORDS[2] ^ _WORDS[3])
_MEDIUM_LOW = cython.declare(cython.ulonglong, _WORDS[4] ^ _WORDS[5])
_MEDIUM_HIGH = cython.declare(cython.ulonglong, _WORDS[6] ^ _WORDS[7])


def seeded_secret(seed: int) -> np.ndarray:
    """uint8[384], what `store_key_hash` takes: the secret for keys above 240 bytes, then the default secret."""
    words = np.array(_WORDS, np.uint64).reshape(12, 2)
    seeded = np.stack([words[:, 0] + np.uint64(seed), words[:, 1] - np.uint64(seed)], axis=1)
    return np.concatenate([seeded.reshape(-1), words.reshape(-1)]).view(np.uint8)


def hash_of(key: object, seed: int = 0) -> tuple[int, int]:
    """(low, high) 64 bits of the hash of one key's bytes, a buffer: of the xxhash package's `xxh3_128_intdigest`."""
    secret = seeded_secret(seed)
    hashed: KeyHash = _key_hash(address_of(key), len(key), seed, address_of(secret))
    return hashed.low, hashed.high


@cython.cfunc
@cython.inline
@cython.nogil
def _pair(low: u64, high: u64) -> KeyHash:
    out: KeyHash = KeyHash(low, high)
    return out


@cython.cfunc
@cython.inline
@cython.nogil
def _low(word: u64) -> u64:
    return wrap_u32(word)


@cython.cfunc
@cython.inline
@cython.nogil
def _folded(a: u64, b: u64) -> u64:
    return wrap_u64(a * b) ^ multiply_high(a, b)


@cython.cfunc
@cython.inline
@cython.nogil
def _avalanche(word: u64) -> u64:
    word ^= word >> 37
    word = wrap_u64(word * _PRIME_MX1)
    return word ^ (word >> 32)


@cython.cfunc
@cython.inline
@cython.nogil
def _avalanche_64(word: u64) -> u64:
    word ^= word >> 33
    word = wrap_u64(word * _PRIME_2)
    word ^= word >> 29
    word = wrap_u64(word * _PRIME_3)
    return word ^ (word >> 32)


@cython.cfunc
@cython.inline
@cython.nogil
def _hash_to_3(position: i64, size: i64, seed: u64) -> KeyHash:
    if size == 0:
        return _pair(_avalanche_64(seed ^ _EMPTY_LOW), _avalanche_64(seed ^ _EMPTY_HIGH))
    first: u64 = load_u8(position)
    middle: u64 = load_u8(position + (size >> 1))
    last: u64 = load_u8(position + size - 1)
    low: u64 = first << 16 | middle << 24 | last | size << 8
    swapped: u64 = swap_64(low) >> 32
    high: u64 = wrap_u32(swapped << 13 | swapped >> 19)
    return _pair(_avalanche_64(low ^ wrap_u64(_TINY_LOW + seed)), _avalanche_64(high ^ wrap_u64(_TINY_HIGH - seed)))


@cython.cfunc
@cython.inline
@cython.nogil
def _hash_4_to_8(position: i64, size: i64, seed: u64) -> KeyHash:
    seed ^= swap_64(wrap_u32(seed))
    word: u64 = load_u32_le(position)
    last: u64 = load_u32_le(position + size - 4)
    keyed: u64 = (word | last << 32) ^ wrap_u64(_SMALL + seed)
    prime: u64 = _PRIME_1 + (size << 2)
    low: u64 = wrap_u64(keyed * prime)
    high: u64 = wrap_u64(multiply_high(keyed, prime) + (low << 1))
    low ^= high >> 3
    low ^= low >> 35
    low = wrap_u64(low * _PRIME_MX2)
    low ^= low >> 28
    return _pair(low, _avalanche(high))


@cython.cfunc
@cython.inline
@cython.nogil
def _hash_9_to_16(position: i64, size: i64, seed: u64) -> KeyHash:
    first: u64 = load_u64_le(position)
    last: u64 = load_u64_le(position + size - 8)
    keyed: u64 = first ^ last ^ wrap_u64(_MEDIUM_LOW - seed)
    low: u64 = wrap_u64(keyed * _PRIME_1 + ((size - 1) << 54))
    last ^= wrap_u64(_MEDIUM_HIGH + seed)
    high: u64 = wrap_u64(multiply_high(keyed, _PRIME_1) + last + _low(last) * (_PRIME_32_2 - 1))
    low ^= swap_64(high)
    return _pair(
        _avalanche(wrap_u64(low * _PRIME_2)), _avalanche(wrap_u64(multiply_high(low, _PRIME_2) + high * _PRIME_2))
    )


@cython.cfunc
@cython.inline
@cython.nogil
def _mixed_16(position: i64, secret: i64, seed: u64) -> u64:
    return _folded(
        load_u64_le(position) ^ wrap_u64(load_u64_le(secret) + seed),
        load_u64_le(position + 8) ^ wrap_u64(load_u64_le(secret + 8) - seed),
    )


@cython.cfunc
@cython.inline
@cython.nogil
def _mixed_32(pair: KeyHash, first: i64, second: i64, secret: i64, seed: u64) -> KeyHash:
    low: u64 = wrap_u64(pair.low + _mixed_16(first, secret, seed))
    high: u64 = wrap_u64(pair.high + _mixed_16(second, secret + 16, seed))
    return _pair(
        low ^ wrap_u64(load_u64_le(second) + load_u64_le(second + 8)),
        high ^ wrap_u64(load_u64_le(first) + load_u64_le(first + 8)),
    )


@cython.cfunc
@cython.inline
@cython.nogil
def _finished(pair: KeyHash, size: u64, seed: u64) -> KeyHash:
    mixed: u64 = wrap_u64(pair.low * _PRIME_1 + pair.high * _PRIME_4 + (size - seed) * _PRIME_2)
    return _pair(_avalanche(wrap_u64(pair.low + pair.high)), wrap_u64(0 - _avalanche(mixed)))


@cython.cfunc
@cython.nogil
def _hash_17_to_240(position: i64, size: i64, seed: u64, secret: i64) -> KeyHash:
    end: i64 = position + size
    length: u64 = size
    pair: KeyHash = _pair(wrap_u64(length * _PRIME_1), 0)
    at: i64
    if size <= 128:
        at = (size - 1) // 32
        while at >= 0:
            pair = _mixed_32(pair, position + 16 * at, end - 16 * (at + 1), secret + 32 * at, seed)
            at -= 1
        return _finished(pair, length, seed)
    for at in range(0, 128, 32):
        pair = _mixed_32(pair, position + at, position + at + 16, secret + at, seed)
    pair = _pair(_avalanche(pair.low), _avalanche(pair.high))
    for at in range(128, size - size % 32, 32):
        pair = _mixed_32(pair, position + at, position + at + 16, secret + at - 125, seed)
    pair = _mixed_32(pair, end - 16, end - 32, secret + 103, wrap_u64(0 - seed))
    return _finished(pair, length, seed)


@cython.cfunc
@cython.inline
@cython.nogil
def _accumulate(sums: cython.p_ulonglong, position: i64, secret: i64) -> cython.void:
    lane: cython.int
    word: u64
    keyed: u64
    for lane in range(8):
        word = load_u64_le(position + 8 * lane)
        keyed = word ^ load_u64_le(secret + 8 * lane)
        sums[lane ^ 1] = wrap_u64(sums[lane ^ 1] + word)
        sums[lane] = wrap_u64(sums[lane] + _low(keyed) * (keyed >> 32))


@cython.cfunc
@cython.nogil
def _merged(sums: cython.p_ulonglong, secret: i64, start: u64) -> u64:
    pair: cython.int
    first: u64
    second: u64
    for pair in range(4):
        first = sums[2 * pair] ^ load_u64_le(secret + 16 * pair)
        second = sums[2 * pair + 1] ^ load_u64_le(secret + 16 * pair + 8)
        start = wrap_u64(start + _folded(first, second))
    return _avalanche(start)


@cython.cfunc
@cython.nogil
def _hash_above_240(position: i64, size: i64, secret: i64) -> KeyHash:
    sums: cython.ulonglong[8]
    if not cython.compiled:
        sums = [0] * 8
    sums[0], sums[1], sums[2], sums[3] = _PRIME_32_3, _PRIME_1, _PRIME_2, _PRIME_3
    sums[4], sums[5], sums[6], sums[7] = _PRIME_4, _PRIME_32_2, _PRIME_5, _PRIME_32_1
    # The last 64 bytes are a further stripe, even where earlier stripes cover part of them.
    stripes: i64 = (size - 1) // 64
    whole_blocks: i64 = (size - 1) // 1024
    stripe: i64
    lane: cython.int
    mixed: u64
    for stripe in range(stripes):
        _accumulate(sums, position + stripe * 64, secret + 8 * (stripe % 16))
        if stripe % 16 == 15 and stripe < 16 * whole_blocks:
            for lane in range(8):
                mixed = sums[lane] ^ (sums[lane] >> 47) ^ load_u64_le(secret + 128 + 8 * lane)
                sums[lane] = wrap_u64(mixed * _PRIME_32_1)
    _accumulate(sums, position + size - 64, secret + 121)
    length: u64 = size
    high_start: u64 = wrap_u64(~(length * _PRIME_2))
    return _pair(_merged(sums, secret + 11, wrap_u64(length * _PRIME_1)), _merged(sums, secret + 117, high_start))


@cython.cfunc
@cython.inline
@cython.nogil
def _key_hash(position: i64, size: i64, seed: u64, secret: i64) -> KeyHash:
    if size <= 16:
        if size > 8:
            return _hash_9_to_16(position, size, seed)
        if size >= 4:
            return _hash_4_to_8(position, size, seed)
        return _hash_to_3(position, size, seed)
    if size <= 240:
        return _hash_17_to_240(position, size, seed, secret + 192)
    return _hash_above_240(position, size, secret)


@cython.cfunc
@cython.nogil
def store_key_hash(position: i64, size: i64, seed: u64, secret: i64, out: i64) -> cython.void:
    """Stores the hash of `size` bytes at an address at address `out`: its low half and its high half, native u64 each.

    At address `secret` lies `seeded_secret(seed)`. A caller that got the pair and stored it would be slower: gcc puts
    the two registers on the stack and loads 16 bytes at once, which the processor cannot do before both have arrived.
    """
    hashed: KeyHash = _key_hash(position, size, seed, secret)
    store_native_i64(out, hashed.low)
    store_native_i64(out + 8, hashed.high)
