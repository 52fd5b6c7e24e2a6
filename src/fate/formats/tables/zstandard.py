"""How much a Zstandard frame can unpack to, found without unpacking it.

A frame is a header and blocks of at most 128 KiB (RFC 8878). A block that repeats one byte takes four bytes whatever
its size, so a small packet may claim an enormous content; walking the block heads tells before any memory is taken.
"""

from __future__ import annotations

FRAME_MARK = 0xFD2FB528
SKIPPABLE_MARK = 0x184D2A50  # the last four bits are free
MAX_BLOCK_BYTES = 128 << 10
RAW, REPEATED, COMPRESSED = 0, 1, 2


def unpacked_bytes_at_most(data: bytes) -> int:
    """An upper bound for the unpacked size of the frames in ``data``; what is no frame counts nothing."""
    position = total = 0
    while position + 4 <= len(data):
        mark = int.from_bytes(data[position : position + 4], "little")
        if mark & ~0xF == SKIPPABLE_MARK:
            position += 8 + int.from_bytes(data[position + 4 : position + 8], "little")
        elif mark == FRAME_MARK and position + 5 <= len(data):
            position, size = _frame(data, position + 4)
            total += size
        else:
            break
    return total


def _frame(data: bytes, position: int) -> tuple[int, int]:
    """The end of the frame whose descriptor is at ``position``, and its unpacked size at most."""
    descriptor = data[position]
    single = bool(descriptor & 0x20)
    size_field = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    position += 1 + (not single) + (0, 1, 2, 4)[descriptor & 3] + size_field
    total = 0
    while position + 3 <= len(data):
        head = int.from_bytes(data[position : position + 3], "little")
        last, kind, size = head & 1, (head >> 1) & 3, head >> 3
        position += 3 + (1 if kind == REPEATED else size)
        total += MAX_BLOCK_BYTES if kind == COMPRESSED else size
        if last:
            break
    return position + (4 if descriptor & 4 else 0), total
