"""Numbers of the codecs' framings that kernels share with the encoders."""

from __future__ import annotations

LZ4_BLOCK_BYTES = 64 * 1024
LZ4_STORED_BIT = 0x80000000  # set in a block's length when the block is not compressed
# Magic, flags, block descriptor and its checksum: the beginning of Kafka's frames, with blocks of at most 64 KiB.
LZ4_HEADER = 0x0422_4D18_6040_82
XERIAL_START = 0x82_53_4E_41_50_50_59_00 - 2**64  # \x82SNAPPY\0 as an int64
ZSTD_MAGIC = 0xFD2F_B528
ZSTD_UNSTATED = -2  # the size of a frame that states none
GZIP_OVERHEAD = 18  # the header and the trailer of a member
