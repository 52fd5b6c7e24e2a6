"""Messages from the detector to the page: a JSON object, and a picture of events in two bits per pixel.

A message is four bytes (the length of the JSON, little-endian), the JSON in UTF-8, and the picture, which may be empty.
The pipe between the two processes has another four bytes before each message, its whole length. ``docs/guides/live.md``
lists the keys.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

#: Version of the messages; it grows when a reader has to change.
VERSION = 1
_LENGTH = struct.Struct("<I")


def encode_message(content: Mapping[str, Any], picture: bytes = b"") -> bytes:
    """Return a message as bytes; ``picture`` comes from ``EventPicture.take``."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
    return _LENGTH.pack(len(text)) + text + picture


def decode_message(message: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the JSON object and the picture of a message."""
    end = _LENGTH.size + _LENGTH.unpack_from(message)[0]
    return dict(json.loads(message[_LENGTH.size : end])), message[end:]


def write_message(pipe: BinaryIO, message: bytes) -> None:
    """Write a message into a pipe; waits until the reader has room for it."""
    pipe.write(_LENGTH.pack(len(message)) + message)
    pipe.flush()


def read_message(pipe: BinaryIO) -> bytes | None:
    """Wait for the next message of a pipe; None if its writer has closed it or has ended."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    length = _LENGTH.unpack(head)[0]
    message = pipe.read(length)
    return message if len(message) == length else None
