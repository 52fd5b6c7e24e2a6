"""Sends the words of a camera, or of a RAW file, to ``fate detect tcp:PORT`` on this machine.

    python camera_to_tcp.py                    # the first Prophesee camera; needs pip install neuromorphic-drivers
    python camera_to_tcp.py drive.raw          # a file, as fast as it is read, to try the connection

Cameras of Prophesee send EVT3 words over USB, which are passed on as they are. This program has not been used with a
camera.
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import Iterator

PIECE_BYTES = 1 << 16


def camera_words(serial: str | None = None) -> Iterator[bytes]:
    """The words of a camera in pieces, as they arrive."""
    import neuromorphic_drivers  # noqa: PLC0415  (not for files)

    with neuromorphic_drivers.open(serial=serial, raw=True) as device:
        if "Prophesee" not in device.name().value:
            raise SystemExit(f"error: a {device.name().value} was found; expected a Prophesee camera, which sends EVT3")
        for _, words in device:
            yield words


def file_words(path: str) -> Iterator[bytes]:
    """The words of a RAW file in pieces, without its header of lines that begin with %."""
    with open(path, "rb") as file:
        while file.peek(1)[:1] == b"%":
            file.readline()
        while piece := file.read(PIECE_BYTES):
            yield piece


def main() -> None:
    """Connect and send until the words end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", nargs="?", help="a RAW file of EVT3 words; a camera unless given")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--serial", help="of the camera; the first one unless given")
    given = parser.parse_args()
    try:
        with socket.create_connection(("127.0.0.1", given.port)) as connection:
            for words in file_words(given.file) if given.file else camera_words(given.serial):
                connection.sendall(words)
    except OSError as error:
        raise SystemExit(f"error: {error}; is fate detect tcp:{given.port} running?") from None


if __name__ == "__main__":
    main()
