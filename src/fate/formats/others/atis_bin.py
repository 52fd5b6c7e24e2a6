"""The ``.bin`` files of N-MNIST and N-Caltech101: records of five bytes from an ATIS camera, without a header.

A record is x (8 bits), y (8 bits), polarity (1 bit, 1 is ON) and time in µs (23 bits), the highest bit first. A record
with y = 240 is no event: from there on, 2^13 µs are added to all times. (0, 0) is the top left pixel.

Nothing in such a file says what it is. It is recognised by its suffix and by what its first records must look like: on
the 240×180 pixels that N-Caltech101 uses, with times that go on. The file does not give its sensor either: 34×34
(N-MNIST) is taken if all events lie within, else 240×180.
"""

from __future__ import annotations

import numpy as np

from fate.events.events import Sensor
from fate.formats.decoder import Columns, Decoder
from fate.formats.source import ByteFile, ByteSource, Options

RECORD_BYTES = 5
OVERFLOW_ROW = 240  # as y of a record: time moves on
OVERFLOW_US = 1 << 13
N_MNIST, N_CALTECH101 = Sensor(34, 34), Sensor(180, 240)
FEW_RECORDS = 16  # below this, equal times may be chance
ODD_SHARE = 0.01  # of records that may be damaged in a file that is still taken for a recording
SCAN_BYTES = RECORD_BYTES << 18


class AtisBinDecoder(Decoder):
    """Records of a ``.bin`` file of N-MNIST or N-Caltech101."""

    format = "ATIS BIN"
    start = (0,)  # µs added by overflows
    skipped_kinds = ("time overflows",)

    def decode(self, data: bytes) -> tuple[Columns, int]:
        n = len(data) // RECORD_BYTES
        x, y, high, middle, low = np.frombuffer(data, np.uint8, RECORD_BYTES * n).reshape(n, RECORD_BYTES).T
        t = ((high & 0x7F).astype(np.int64) << 16) | (middle.astype(np.int64) << 8) | low
        overflow = y == OVERFLOW_ROW
        found = int(overflow.sum())
        t += self.state[0] + OVERFLOW_US * np.cumsum(overflow)
        self.state += (OVERFLOW_US * found, found)
        events = ~overflow
        columns = Columns(t[events], x[events].astype(np.uint16), y[events].astype(np.uint16), high[events] >> 7)
        return columns, n * RECORD_BYTES


def is_atis_bin(head: bytes) -> bool:
    """Whether ``head``, the first bytes of a file, can be records of N-MNIST or N-Caltech101."""
    columns, used = AtisBinDecoder().decode(head)
    total = used // RECORD_BYTES
    outside = np.count_nonzero((columns.x >= N_CALTECH101.width) | (columns.y >= N_CALTECH101.height))
    steps = np.diff(columns.t)
    odd = max(int(outside), int(np.count_nonzero(steps < 0)))
    stands_still = total >= FEW_RECORDS and not steps.any()
    return total > 0 and odd <= ODD_SHARE * total and not stands_still


def open_atis_bin(file: ByteFile, options: Options) -> ByteSource:
    """Open a ``.bin`` file; unless the sensor is given, find it from the events."""
    if options.sensor:
        return ByteSource(file, AtisBinDecoder(), 0, options.sensor)
    x_max = y_max = 0
    decoder = AtisBinDecoder()
    for position in range(0, file.size, SCAN_BYTES):
        columns, _ = decoder.decode(file.read(position, SCAN_BYTES))
        x_max = max(x_max, int(columns.x.max(initial=0)))
        y_max = max(y_max, int(columns.y.max(initial=0)))
    for name, sensor in (("N-MNIST", N_MNIST), ("N-Caltech101", N_CALTECH101)):
        if x_max < sensor.width and y_max < sensor.height:
            note = f"{sensor}, the size of {name}: the file does not give it and all events lie within"
            return ByteSource(file, AtisBinDecoder(), 0, sensor, {"sensor": note})
    return ByteSource(file, AtisBinDecoder(), 0, None)
