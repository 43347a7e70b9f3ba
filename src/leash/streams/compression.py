"""The five codecs of sub-entries, framed as the Java client frames them.

gzip has its usual header, snappy its framing format ("sNaPpY"), lz4 and zstd their frame formats.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from leash.errors import ConfigError
from leash.streams.arrow_memory import pa
from leash.streams.crc32c import masked_crc32c

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""Each at the place of its number in the protocol."""

MAX_UNPACKED = 1 << 28
"""Bytes of one sub-entry. What claims to be more is damaged, or meant to fill the memory."""

_SNAPPY_STREAM = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_BLOCK = 1 << 16


def number(codec: str) -> int:
    """A codec's number in the protocol."""
    if codec not in CODECS:
        raise ConfigError("codec", codec, f"one of {', '.join(CODECS)}")
    return CODECS.index(codec)


def pack(codec: str, data: bytes | memoryview) -> bytes:
    return _PACK[number(codec)](data)


def unpack(code: int, data: memoryview, size: int) -> bytes:
    """The inverse, to exactly `size` bytes; ValueError for anything else."""
    if code >= len(CODECS):
        raise ValueError(f"there is no codec {code}")
    if size > MAX_UNPACKED:
        raise ValueError(
            f"a sub-entry that claims to unpack to {size} bytes, and {MAX_UNPACKED} is the limit"
        )
    try:
        unpacked = _UNPACK[code](data, size)
    except (ValueError, OSError, zlib.error) as error:  # pyarrow's errors are ValueError and OSError
        raise ValueError(f"{CODECS[code]} cannot unpack a sub-entry: {error}") from error
    if len(unpacked) != size:
        raise ValueError(f"{CODECS[code]} unpacked a sub-entry to {len(unpacked)} bytes, not {size}")
    return unpacked


def _gzip(data: bytes | memoryview) -> bytes:
    packer = zlib.compressobj(level=6, wbits=31)
    return packer.compress(data) + packer.flush()


def _gunzip(data: memoryview, size: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    unpacked = unpacker.decompress(data, size + 1)
    if not unpacker.eof and len(unpacked) <= size:
        raise ValueError("it ends too early")
    return unpacked


def _snappy(data: bytes | memoryview) -> bytes:
    view = memoryview(data)
    codec, parts = pa.Codec("snappy"), [_SNAPPY_STREAM]
    for at in range(0, len(view), _SNAPPY_BLOCK):
        block = view[at : at + _SNAPPY_BLOCK]
        packed = codec.compress(block, asbytes=True)
        check = masked_crc32c(block).to_bytes(4, "little")
        parts += [b"\0", (len(packed) + 4).to_bytes(3, "little"), check, packed]
    return b"".join(parts)


def _unsnappy(data: memoryview, size: int) -> bytes:
    codec = pa.Codec("snappy")
    if data[:10] != _SNAPPY_STREAM:  # not framed: some clients pack in one piece
        return bytes(codec.decompress(data, decompressed_size=size, asbytes=True))
    parts, at, left = [], 10, size
    while at < len(data):
        kind, length = data[at], int.from_bytes(data[at + 1 : at + 4], "little")
        body = data[at + 4 : at + 4 + length]
        if len(body) < length:
            raise ValueError("it ends too early")
        at += 4 + length
        if kind in (0, 1):
            block = body[4:]
            if kind == 0:
                unpacked = _varint(block)
                if unpacked > min(left, _SNAPPY_BLOCK):
                    raise ValueError("a block is too large")
                block = memoryview(codec.decompress(block, decompressed_size=unpacked, asbytes=True))
            if masked_crc32c(block) != int.from_bytes(body[:4], "little"):
                raise ValueError("a block does not fit its CRC")
            parts.append(block)
            left -= len(block)
        elif kind < 0x80:
            raise ValueError(f"a block of unknown kind {kind}")
    return b"".join(parts)


def _varint(block: memoryview) -> int:
    value = 0
    for place, byte in enumerate(block[:5]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value
    raise ValueError("a block without a size")


def _arrow_pack(name: str) -> Callable[[bytes | memoryview], bytes]:
    return lambda data: bytes(pa.Codec(name).compress(data, asbytes=True))


def _arrow_unpack(name: str) -> Callable[[memoryview, int], bytes]:
    return lambda data, size: bytes(pa.Codec(name).decompress(data, decompressed_size=size, asbytes=True))


_PACK: list[Callable[[bytes | memoryview], bytes]] = [
    bytes,
    _gzip,
    _snappy,
    _arrow_pack("lz4"),
    _arrow_pack("zstd"),
]
_UNPACK: list[Callable[[memoryview, int], bytes]] = [
    lambda data, _: bytes(data),
    _gunzip,
    _unsnappy,
    _arrow_unpack("lz4"),
    _arrow_unpack("zstd"),
]
