"""Decoders for byte streams that are not files: sockets, pipes, cameras."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from fate.errors import FateError
from fate.formats.decoder import Decoder, OutOfBounds

DECODERS: dict[str, str] = {
    "dat": "fate.formats.prophesee.dat:DatDecoder",
    "evt2": "fate.formats.prophesee.evt2:Evt2Decoder",
    "evt21": "fate.formats.prophesee.evt2:Evt21Decoder",
    "evt3": "fate.formats.prophesee.evt3:Evt3Decoder",
    "aedat2": "fate.formats.inivation.aedat2:Aedat2Decoder",
    "aedat3": "fate.formats.inivation.aedat3:Aedat3Decoder",
    "bin": "fate.formats.others.atis_bin:AtisBinDecoder",
    "es": "fate.formats.others.event_stream:EventStreamDecoder",
    "csv": "fate.formats.tables.text:TextDecoder",
}


def decoder_for(format: str, sensor: Sequence[int], *, out_of_bounds: OutOfBounds = "raise", **options: Any) -> Decoder:
    """A decoder for a stream without a header: ``decoder.feed(data)`` gives the events that are complete.

    Args:
        format: one of ``DECODERS``.
        sensor: ``(height, width)`` in pixels.
        out_of_bounds: ``"raise"``, or ``"drop"`` and count events outside the sensor.
        options: what the one decoder takes beyond that: ``legacy=True`` for EVT2.1, ``layout="davis"`` and
            ``turned=False`` for AEDAT2, ``atis=True`` for ES.

    Example:
        >>> decoder = decoder_for("evt3", (720, 1280))
        >>> len(decoder.feed(bytes.fromhex("0180 0060 0500 0720")))  # TIME_HIGH, TIME_LOW, ADDR_Y, ADDR_X
        1
    """
    if format not in DECODERS:
        raise FateError(f"no stream decoder for {format!r}; known are {', '.join(DECODERS)}")
    module, _, name = DECODERS[format].partition(":")
    cls: type[Decoder] = getattr(importlib.import_module(module), name)
    try:
        return cls(sensor, out_of_bounds=out_of_bounds, **options)
    except TypeError:
        raise FateError(f"the {format} decoder takes no {', '.join(options)}; leave it out") from None
