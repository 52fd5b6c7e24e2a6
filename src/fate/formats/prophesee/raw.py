"""Prophesee RAW files: the text header, and the decoder it asks for."""

from __future__ import annotations

from pathlib import Path

from fate.errors import FormatError
from fate.formats.decoder import Decoder
from fate.formats.prophesee.evt2 import Evt2Decoder, Evt21Decoder
from fate.formats.prophesee.evt3 import Evt3Decoder
from fate.formats.prophesee.header import MAX_HEADER_BYTES, Header, parse_header
from fate.formats.source import ByteSource, Hints, open_bytes

FIRST_LITTLE_SYSTEM = 0x37  # boards before it wrote EVT2.1 with the halves of a word swapped


def open_raw(path: Path, hints: Hints) -> ByteSource:
    """A RAW file; ``hints.format`` (evt2, evt21, evt3) stands in for a header that does not say."""
    with open_bytes(path) as file:
        header = parse_header(file.read(0, MAX_HEADER_BYTES))
        decoder = raw_decoder(path, header, hints.format)
        sensor = hints.sensor or header.sensor(path)
        return ByteSource(path, file, decoder, header.num_bytes, sensor, header.fields)


def raw_decoder(path: Path, header: Header, asked: str | None) -> Decoder:
    """The decoder for the format that the header names, or that was asked for."""
    if "index_version" in header.fields or "bookmark_period_us" in header.fields:
        raise FormatError(
            f"{path}: is the index another program keeps beside a recording, not a recording;"
            " give the .raw file it belongs to"
        )
    name = asked or header.event_format()
    if name == "evt2":
        return Evt2Decoder()
    if name == "evt3":
        return Evt3Decoder()
    if name == "evt21":
        order = header.format_options().get("endianness") or header.fields.get("endianness")
        if order is None and 0 < header.prophesee_system() < FIRST_LITTLE_SYSTEM:
            order = "legacy"
        return Evt21Decoder(legacy=order is not None and order.lower() == "legacy")
    given = f"names the format {name!r}" if name else "does not name its event format"
    raise FormatError(
        f'{path}: the header {given}; evt2, evt21 and evt3 are known; pass format="evt3" if you know which it is'
    )
