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
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from spark_segments.format.kernels.jit import byte_view, intrinsic, load_u8, load_u64_le, njit

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
_SECRET_BYTES = np.frombuffer(SECRET, np.uint8)

_U = np.uint64
_LOW_32 = _U(0xFFFFFFFF)
_PRIME_32_1 = _U(0x9E3779B1)
_PRIME_32_2 = _U(0x85EBCA77)
_PRIME_32_3 = _U(0xC2B2AE3D)
_PRIME_1 = _U(0x9E3779B185EBCA87)
_PRIME_2 = _U(0xC2B2AE3D27D4EB4F)
_PRIME_3 = _U(0x165667B19E3779F9)
_PRIME_4 = _U(0x85EBCA77C2B2AE63)
_PRIME_5 = _U(0x27D4EB2F165667C5)
_PRIME_MX1 = _U(0x165667919E3779F9)
_PRIME_MX2 = _U(0x9FB21C651E98DF25)

# Pairs of words of the secret that short keys are mixed with, by length.
_EMPTY_LOW, _EMPTY_HIGH = _U(_WORDS[8] ^ _WORDS[9]), _U(_WORDS[10] ^ _WORDS[11])
_TINY_LOW = _U((_WORDS[0] ^ _WORDS[0] >> 32) & 0xFFFFFFFF)
_TINY_HIGH = _U((_WORDS[1] ^ _WORDS[1] >> 32) & 0xFFFFFFFF)
_SMALL = _U(_WORDS[2] ^ _WORDS[3])
_MEDIUM_LOW, _MEDIUM_HIGH = _U(_WORDS[4] ^ _WORDS[5]), _U(_WORDS[6] ^ _WORDS[7])

# What the sums of long keys begin with.
_SUMS = np.array([_PRIME_32_3, _PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME_32_2, _PRIME_5, _PRIME_32_1], np.uint64)

_STRIPE = 64
_STRIPES_PER_BLOCK = 16
_BLOCK = _STRIPE * _STRIPES_PER_BLOCK


def seeded_secret(seed: int) -> np.ndarray:
    """uint8[192]: the secret for keys above 240 bytes, an argument of `key_hash` beside the seed."""
    words = np.array(_WORDS, np.uint64).reshape(12, 2)
    return np.stack([words[:, 0] + _U(seed), words[:, 1] - _U(seed)], axis=1).reshape(-1).view(np.uint8).copy()


@intrinsic
def multiply_high(typing_context, a, b):
    """The upper 64 bits of the 128-bit product of two uint64."""

    def generate(context, builder, signature, arguments):
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(arguments[0], wide), builder.zext(arguments[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def _swap_64(typing_context, a):
    def generate(context, builder, signature, arguments):
        return builder.bswap(arguments[0])

    return types.uint64(types.uint64), generate


@njit
def _folded(a, b):
    return (a * b) ^ multiply_high(a, b)


@njit
def _avalanche(word):
    word ^= word >> _U(37)
    word *= _PRIME_MX1
    return word ^ (word >> _U(32))


@njit
def _avalanche_64(word):
    word ^= word >> _U(33)
    word *= _PRIME_2
    word ^= word >> _U(29)
    word *= _PRIME_3
    return word ^ (word >> _U(32))


@njit
def _load_u32_le(data, position):
    return _U(
        load_u8(data, position)
        | load_u8(data, position + 1) << 8
        | load_u8(data, position + 2) << 16
        | load_u8(data, position + 3) << 24
    )


@njit
def _hash_to_3(data, position, size, seed):
    if size == 0:
        return _avalanche_64(seed ^ _EMPTY_LOW), _avalanche_64(seed ^ _EMPTY_HIGH)
    first = load_u8(data, position)
    middle = load_u8(data, position + (size >> 1))
    last = load_u8(data, position + size - 1)
    low = _U(first << 16 | middle << 24 | last | size << 8)
    swapped = _swap_64(low) >> _U(32)
    high = (swapped << _U(13) | swapped >> _U(19)) & _LOW_32
    return _avalanche_64(low ^ (_TINY_LOW + seed)), _avalanche_64(high ^ (_TINY_HIGH - seed))


@njit
def _hash_4_to_8(data, position, size, seed):
    seed ^= _swap_64(seed & _LOW_32)
    word = _load_u32_le(data, position) + (_load_u32_le(data, position + size - 4) << _U(32))
    keyed = word ^ (_SMALL + seed)
    prime = _PRIME_1 + _U(size << 2)
    low = keyed * prime
    high = multiply_high(keyed, prime) + (low << _U(1))
    low ^= high >> _U(3)
    low ^= low >> _U(35)
    low *= _PRIME_MX2
    low ^= low >> _U(28)
    return low, _avalanche(high)


@njit
def _hash_9_to_16(data, position, size, seed):
    first = load_u64_le(data, position)
    last = load_u64_le(data, position + size - 8)
    keyed = first ^ last ^ (_MEDIUM_LOW - seed)
    low = keyed * _PRIME_1 + _U((size - 1) << 54)
    last ^= _MEDIUM_HIGH + seed
    high = multiply_high(keyed, _PRIME_1) + last + (last & _LOW_32) * (_PRIME_32_2 - _U(1))
    low ^= _swap_64(high)
    return _avalanche(low * _PRIME_2), _avalanche(multiply_high(low, _PRIME_2) + high * _PRIME_2)


@njit
def _mixed_16(data, position, secret, at, seed):
    return _folded(
        load_u64_le(data, position) ^ (load_u64_le(secret, at) + seed),
        load_u64_le(data, position + 8) ^ (load_u64_le(secret, at + 8) - seed),
    )


@njit
def _mixed_32(low, high, data, first, second, at, seed):
    low += _mixed_16(data, first, _SECRET_BYTES, at, seed)
    low ^= load_u64_le(data, second) + load_u64_le(data, second + 8)
    high += _mixed_16(data, second, _SECRET_BYTES, at + 16, seed)
    high ^= load_u64_le(data, first) + load_u64_le(data, first + 8)
    return low, high


@njit
def _finished(low, high, size, seed):
    mixed = low * _PRIME_1 + high * _PRIME_4 + (_U(size) - seed) * _PRIME_2
    return _avalanche(low + high), _U(0) - _avalanche(mixed)


@njit
def _hash_17_to_240(data, position, size, seed):
    end = position + size
    low = _U(size) * _PRIME_1
    high = _U(0)
    if size <= 128:
        for half in range((size - 1) // 32, -1, -1):
            low, high = _mixed_32(low, high, data, position + 16 * half, end - 16 * (half + 1), 32 * half, seed)
        return _finished(low, high, size, seed)
    for at in range(0, 128, 32):
        low, high = _mixed_32(low, high, data, position + at, position + at + 16, at, seed)
    low = _avalanche(low)
    high = _avalanche(high)
    for at in range(128, size - size % 32, 32):
        low, high = _mixed_32(low, high, data, position + at, position + at + 16, at - 125, seed)
    low, high = _mixed_32(low, high, data, end - 16, end - 32, 103, _U(0) - seed)
    return _finished(low, high, size, seed)


@njit
def _accumulate(sums, data, position, secret, at):
    for lane in range(8):
        word = load_u64_le(data, position + 8 * lane)
        keyed = word ^ load_u64_le(secret, at + 8 * lane)
        sums[lane ^ 1] += word
        sums[lane] += (keyed & _LOW_32) * (keyed >> _U(32))


@njit
def _merged(sums, secret, at, start):
    for pair in range(4):
        start += _folded(
            sums[2 * pair] ^ load_u64_le(secret, at + 16 * pair),
            sums[2 * pair + 1] ^ load_u64_le(secret, at + 16 * pair + 8),
        )
    return _avalanche(start)


@njit(_nrt=True)
def _hash_above_240(data, position, size, secret):
    sums = np.empty(len(_SUMS), np.uint64)
    for lane in range(len(_SUMS)):
        sums[lane] = _SUMS[lane]
    # The last 64 bytes are a further stripe, even where earlier stripes cover part of them.
    stripes = (size - 1) // _STRIPE
    for stripe in range(stripes):
        in_block = stripe % _STRIPES_PER_BLOCK
        _accumulate(sums, data, position + stripe * _STRIPE, secret, 8 * in_block)
        if in_block == _STRIPES_PER_BLOCK - 1 and (stripe + 1) * _STRIPE <= (size - 1) // _BLOCK * _BLOCK:
            for lane in range(8):
                mixed = sums[lane] ^ (sums[lane] >> _U(47)) ^ load_u64_le(secret, 128 + 8 * lane)
                sums[lane] = mixed * _PRIME_32_1
    _accumulate(sums, data, position + size - _STRIPE, secret, 121)
    length = _U(size)
    return _merged(sums, secret, 11, length * _PRIME_1), _merged(sums, secret, 117, ~(length * _PRIME_2))


@njit
def key_hash(data, position, size, seed, secret):
    """(low, high) uint64 halves of the hash of data[position:position + size]; `secret` is `seeded_secret(seed)`."""
    if size <= 16:
        if size > 8:
            return _hash_9_to_16(data, position, size, seed)
        if size >= 4:
            return _hash_4_to_8(data, position, size, seed)
        return _hash_to_3(data, position, size, seed)
    if size <= 240:
        return _hash_17_to_240(data, position, size, seed)
    return _hash_above_240(data, position, size, secret)


def hash_of(key: Any, seed: int = 0) -> int:
    """The hash of one key's bytes as one number, as the xxhash package's `xxh3_128_intdigest`."""
    view = byte_view(key)
    low, high = key_hash(view, 0, len(view), _U(seed), seeded_secret(seed))
    return int(high) << 64 | int(low)
