"""Text attributes of an HDF5 file's root group, read without libhdf5.

Text of variable length lies in a "global heap", and libhdf5 (2.0) hangs or crashes the process on a damaged one. This
reads the few structures involved itself, every step inside the bytes it has, and passes over whatever is not as
expected: object headers of versions 1 and 2, attribute messages of versions 1 to 3, scalar text. (More than eight
attributes in a file written with "latest" features are kept in another way and are passed over too.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from fate.formats.source import ByteFile

ROOT_ADDRESS_AT = {0: 64, 1: 68, 2: 36, 3: 36}  # by the version of the superblock
CONTINUATION, ATTRIBUTE = 0x10, 0x0C
FIXED_TEXT, VARIABLE_LENGTH = 3, 9  # classes of a datatype
MAX_BLOCKS = 64
MAX_BLOCK_BYTES = 1 << 20


def root_text_attributes(file: ByteFile) -> dict[str, str]:
    """Return name → text; attributes that cannot be read are left out."""
    head = file.read(0, 128)
    found: dict[str, str] = {}
    try:
        (root,) = struct.unpack_from("<Q", head, ROOT_ADDRESS_AT[head[8]])
        for kind, body in _messages(file, root):
            if kind == ATTRIBUTE and (attribute := _attribute(file, body)):
                found.setdefault(*attribute)
    except (struct.error, LookupError, OverflowError):  # a structure cut short, an address beyond any file
        pass
    return found


def _messages(file: ByteFile, address: int) -> Iterator[tuple[int, bytes]]:
    """Yield the messages of an object header: type and body."""
    head = file.read(address, 64)
    if head[:4] == b"OHDR":
        flags = head[5]
        size_at = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        size_bytes = 1 << (flags & 3)
        size = int.from_bytes(head[size_at : size_at + size_bytes], "little")
        blocks = [(address + size_at + size_bytes, size)]
        layout, header_bytes, frame = "<BH", 6 if flags & 4 else 4, 4  # continuations: "OCHK" … checksum
    else:
        blocks = [(address + 16, struct.unpack_from("<I", head, 8)[0])]
        layout, header_bytes, frame = "<HH", 8, 0
    for position, size in blocks:
        block = file.read(position, min(size, MAX_BLOCK_BYTES))
        at = 0
        while at + header_bytes <= len(block):
            kind, length = struct.unpack_from(layout, block, at)
            body = block[at + header_bytes : at + header_bytes + length]
            at += header_bytes + length
            if kind == CONTINUATION and len(blocks) < MAX_BLOCKS:
                start, more = struct.unpack_from("<QQ", body)
                blocks.append((start + frame, more - 2 * frame))
            yield kind, body


def _attribute(file: ByteFile, body: bytes) -> tuple[str, str] | None:
    version, flags, name_size, type_size, space_size = struct.unpack_from("<BBHHH", body)
    if version not in (1, 2, 3) or (version > 1 and flags):  # flags: type or space kept elsewhere
        return None
    at = 9 if version == 3 else 8
    parts = []
    for size in (name_size, type_size, space_size):
        parts.append(body[at : at + size])
        at += _padded(size) if version == 1 else size
    name, datatype, space = parts
    if space[1]:  # dimensions
        return None
    value = body[at:]
    if datatype[0] & 15 == VARIABLE_LENGTH and datatype[1] & 15 == 1:  # of characters
        length, address, index = struct.unpack_from("<IQI", value)
        value = _heap_object(file, address, index)[:length]
    elif datatype[0] & 15 == FIXED_TEXT:
        value = value[: struct.unpack_from("<I", datatype, 4)[0]]
    else:
        return None
    return _text(name), _text(value)


def _heap_object(file: ByteFile, address: int, index: int) -> bytes:
    """Return one object of a global heap collection; no bytes if there is no such object."""
    head = file.read(address, 16)
    if head[:4] != b"GCOL":
        return b""
    heap = file.read(address, min(struct.unpack_from("<Q", head, 8)[0], MAX_BLOCK_BYTES))
    at = 16
    while at + 16 <= len(heap):
        number, size = struct.unpack_from("<H6xQ", heap, at)
        if number == index:
            return heap[at + 16 : at + 16 + size]
        at += 16 + _padded(size)
    return b""


def _padded(size: int) -> int:
    return -(-size // 8) * 8


def _text(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode("utf-8", "replace")
