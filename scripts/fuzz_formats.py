"""Feed readers with damaged files and count what happens: read, refused in one sentence, or a crash.

    python scripts/fuzz_formats.py evt3 dat --inputs 1000000

Each input is a small valid recording with random bytes changed, cut, doubled or swapped with another file's. It is
opened, read whole and by a span; every other one with events outside dropped and times sorted. Anything but a
result or a FateError is a finding: the input is kept in ``--keep`` and the exit code is 1. Inputs are numbered and
made from their number, so any of them can be made again with ``--first N --inputs 1``. Batches run in processes of
their own: a process that dies, hangs or grows past its memory limit is a finding too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # some seeds are made by the tests

from fate import Events, FateError, FateWarning, open_recording, write_events

BATCH = 20_000
SECONDS_PER_INPUT = 10
MEMORY_BYTES = 4 << 30  # of address space: far above what a file of a few kB may need


def events(n: int, seed: int) -> Events:
    random = np.random.default_rng(seed)
    t = np.cumsum(random.choice([0, 0, 1, 30, 700, 5000], n))
    x = (np.repeat(random.integers(0, 60, n // 5 + 1), 5)[:n] + np.arange(n) % 5) % 64
    y = np.repeat(random.integers(0, 48, n // 5 + 1), 5)[:n]
    return Events(t, x, y, random.integers(0, 2, n), (48, 64))


def written(name: str, suffix: str) -> Callable[[Path], list[bytes]]:
    def make(folder: Path) -> list[bytes]:
        seeds = []
        for seed, n in enumerate((0, 1, 40, 150)):
            path = folder / f"seed{seed}{suffix}"
            write_events(path, events(n, seed), format=name)
            seeds.append(path.read_bytes())
        return seeds

    return make


def aedat2(_: Path) -> list[bytes]:
    found = events(60, 1)
    address = (found.x.astype(">u4") << 1) | (found.y.astype(">u4") << 8) | (1 - found.p)
    dvs128 = np.stack([address, found.t_us], 1).astype(">u4").tobytes()
    davis = (found.x.astype(">u4") << 12) | (found.y.astype(">u4") << 22) | (found.p.astype(">u4") << 11)
    davis_records = np.stack([davis, found.t_us], 1).astype(">u4").tobytes()
    return [
        b"#!AER-DAT2.0\r\n# a recording\r\n" + dvs128,
        b"#!AER-DAT2.0\r\n# AEChip: eu.seebetter.ini.chips.davis.DAVIS240C\r\n" + davis_records,
    ]


def aedat3(_: Path) -> list[bytes]:
    from tests.formats.test_aedat3 import EAR, FRAME, HEADER, IMU, SPECIAL, polarity, some_rows

    rows = some_rows(60)
    return [
        HEADER + polarity(rows[:20]),
        HEADER + SPECIAL + polarity(rows[:30]) + FRAME + IMU + polarity(rows[30:]) + EAR,
        HEADER + polarity(rows[:10]) + polarity(some_rows(10), source=2) + polarity(some_rows(30, 1 << 31)),
    ]


def atis_bin(_: Path) -> list[bytes]:
    from tests.formats.test_atis_bin import record, saccade

    return [saccade(40, 34, 34), saccade(200, 240, 180), saccade(30, 34, 34) + record(0, 0, 240, 0) * 2]


def event_stream(_: Path) -> list[bytes]:
    body = b"".join(
        bytes([(dt << 1) | p]) + np.array([x, y], "<u2").tobytes() for dt, p, x, y in [(3, 1, 5, 7), (0, 0, 9, 1)] * 30
    )
    return [b"Event Stream\x02\x00\x00\x01" + np.array([64, 48], "<u2").tobytes() + body + b"\xff\xfe" + body]


def aedat4(_: Path) -> list[bytes]:
    from tests.formats.test_aedat4 import some_events, some_file

    return [some_file(some_events(n, seed=n), 40) for n in (1, 50, 120)]


def hdf5(folder: Path) -> list[bytes]:
    """All three kinds of HDF5: with ECF chunks, plain records, and columns."""
    from tests.formats.test_ecf import write_ecf_file

    write_ecf_file(folder / "ecf.hdf5", [small_ecf_chunk()], 3)
    return [
        (folder / "ecf.hdf5").read_bytes(),
        *written("prophesee-hdf5", ".hdf5")(folder)[1:3],
        *written("rvt-hdf5", ".h5")(folder)[1:3],
    ]


def small_ecf_chunk() -> bytes:
    """Three events at times 1000, 1000, 1003 in row 7: masked columns, runs of polarity."""
    words = np.array([(7 << 5) | 3, (5 << 5) | 0b11000], "<u2").tobytes()
    return np.uint32(3 << 2).tobytes() + np.uint64(1000).tobytes() + bytes([0x02, 0x31]) + words + bytes([0x83])


def ecf_chunks(_: Path) -> list[bytes]:
    from tests.formats.test_ecf import KINDS, reference_chunks

    chunks = [chunk for kind in KINDS for chunk in reference_chunks(kind)]
    return [small_ecf_chunk(), *sorted(chunks, key=len)[:4]]


def bag(kind: str) -> Callable[[Path], list[bytes]]:
    def make(folder: Path) -> list[bytes]:
        from tests.formats.test_ros import ARRAY_TYPE, array_message, type_store, write_bag

        store = type_store(kind)
        messages = [array_message(store, kind, events(20, seed)) for seed in range(3)]
        path = write_bag(folder, kind, {"/events": (ARRAY_TYPE, messages)})
        files = [path] if path.is_file() else [file for file in path.iterdir() if file.suffix != ".yaml"]
        return [file.read_bytes() for file in files]

    return make


def ros_messages(folder: Path) -> list[bytes]:
    from tests.formats.test_ros import (
        ARRAY_TYPE,
        PACKET_TYPE,
        array_message,
        packet_message,
        serialised,
        type_store,
    )

    words = written("evt3", ".raw")(folder)[2].partition(b"% end\n")[2]
    found = []
    for kind in ("ros1", "mcap"):
        store = type_store(kind)
        found.append(serialised(store, kind, array_message(store, kind, events(30, 1)), ARRAY_TYPE))
        found.append(serialised(store, kind, packet_message(store, kind, words), PACKET_TYPE))
    return found


def ros_codecs(_: Path) -> list[bytes]:
    from tests.formats.test_ros import CONTENTS, runs_of_rows

    return [content(runs_of_rows(n, 1000, n), 1_000_000) for content in CONTENTS.values() for n in (1, 40)]


def try_ros_codecs(data: bytes) -> str:
    """Every decoder takes any bytes: no content of a message may make it fail."""
    from fate.formats.decoder import Tally, check
    from fate.formats.ros.bags import DECODERS
    from fate.formats.ros.messages import BasedDecoder

    for cls, _ in DECODERS.values():
        decoder = cls()
        if isinstance(decoder, BasedDecoder):
            for part in (data[::2], data):
                decoder.start_message(int.from_bytes(data[:8], "little"))
                check(decoder.decode(part)[0], None, Tally())
    return "read"


def try_ecf(data: bytes) -> str:
    from fate.formats.prophesee.ecf import decode_chunk

    try:
        decode_chunk(data)
    except FateError:
        return "refused"
    return "read"


def try_ros_message(data: bytes) -> str:
    from fate.formats.ros.messages import read_array, read_packet

    outcome = "refused"
    for read in (read_array, read_packet):
        for cdr in (False, True):
            try:
                read(data, cdr)
                outcome = "read"
            except struct.error:  # what the bag's source turns into a sentence
                continue
    return outcome


def given(paths: list[Path]) -> Callable[[Path], list[bytes]]:
    return lambda _: [path.read_bytes() for path in paths]


SEEDS: dict[str, tuple[str, Callable[[Path], list[bytes]]]] = {
    "dat": (".dat", written("dat", ".dat")),
    "evt2": (".raw", written("evt2", ".raw")),
    "evt21": (".raw", written("evt21", ".raw")),
    "evt3": (".raw", written("evt3", ".raw")),
    "hdf5": (".h5", hdf5),
    "ecf": ("", ecf_chunks),
    "npz": (".npz", written("npz", ".npz")),
    "npy": (".npy", written("npy", ".npy")),
    "csv": (".csv", written("csv", ".csv")),
    "aedat2": (".aedat", aedat2),
    "aedat3": (".aedat", aedat3),
    "aedat4": (".aedat4", aedat4),
    "bin": (".bin", atis_bin),
    "es": (".es", event_stream),
    "ros-bag": (".bag", bag("ros1")),
    "ros-mcap": (".mcap", bag("mcap")),
    "ros-codecs": ("", ros_codecs),
    "ros-messages": ("", ros_messages),
}
IN_MEMORY = {
    "ecf": try_ecf,
    "ros-codecs": try_ros_codecs,
    "ros-messages": try_ros_message,
}  # pieces of a format, without a file around them


def mutated(seeds: list[bytes], random: Random) -> bytes:
    """One of ``seeds`` with one to six random changes."""
    data = bytearray(random.choice(seeds))
    for _ in range(random.randint(1, 6)):
        if not data:
            break
        at = random.randrange(len(data))
        match random.randrange(8):
            case 0:
                data[at] ^= 1 << random.randrange(8)
            case 1:
                data[at] = random.choice((0, 1, 9, 10, 13, 32, 37, 44, 45, 127, 128, 255))
            case 2:
                data[at : at + 4] = random.randbytes(4)
            case 3:
                del data[at:]
            case 4:
                del data[at : at + random.randrange(1, 20)]
            case 5:
                data[at:at] = random.randbytes(random.randrange(1, 20))
            case 6:
                data[at:at] = data[at : at + random.randrange(1, 64)]
            case 7:
                data[at:] = random.choice(seeds)[at:]
    return bytes(data)


def try_one(path: Path, lenient: bool) -> str:
    """Open and read; "read" or "refused". Any other exception is the reader's fault."""
    options = {"out_of_bounds": "drop", "unsorted": "sort"} if lenient else {}
    try:
        with open_recording(path, cache=False, **options) as recording:
            whole = recording.read()
            span = (0, 5000) if lenient else (-(10**6), 10**15)
            if recording.read(*span) != whole.between(*span):
                raise AssertionError(f"read{span} differs from a linear scan")
    except FateError as error:
        if "\n" in str(error) or not str(error).startswith(str(path)):
            raise AssertionError(f"not one sentence about the file: {error}") from error
        return "refused"
    return "read"


def run_batch(name: str, first: int, count: int, seed_files: list[Path], keep: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    warnings.simplefilter("ignore", FateWarning)
    outcomes: Counter[str] = Counter()
    keep.mkdir(parents=True, exist_ok=True)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder, open(keep / f"{name}.last", "w") as last:
        suffix, make = SEEDS[name] if not seed_files else (seed_files[0].suffix, given(seed_files))
        seeds = make(Path(folder))
        path = Path(folder) / f"input{suffix}"
        for number in range(first, first + count):
            data = mutated(seeds, Random(number))
            last.seek(0)
            last.write(f"{number:20d}")
            last.flush()
            signal.alarm(SECONDS_PER_INPUT)
            try:
                if name in IN_MEMORY:
                    outcomes[IN_MEMORY[name](data)] += 1
                else:
                    path.write_bytes(data)
                    outcomes[try_one(path, lenient=number % 2 == 1)] += 1
            except BaseException as error:
                outcomes["crash"] += 1
                (keep / f"{name}-{number}{suffix}").write_bytes(data)
                print(f"{name} {number}: {type(error).__name__}: {error}", file=sys.stderr)
            signal.alarm(0)
    print(json.dumps(outcomes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="*", default=sorted(SEEDS), help=f"some of {', '.join(SEEDS)}")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="per format")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed-files", type=Path, nargs="*", default=[], help="mutate these instead")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--batch", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.batch:
        run_batch(arguments.formats[0], arguments.first, arguments.inputs, arguments.seed_files, arguments.keep)
        return
    failed = False
    for name in arguments.formats:
        start, total = time.monotonic(), Counter[str]()
        for first in range(arguments.first, arguments.first + arguments.inputs, BATCH):
            count = min(BATCH, arguments.first + arguments.inputs - first)
            command = [sys.executable, __file__, name, "--batch", "yes", "--first", str(first), "--inputs", str(count)]
            command += ["--keep", str(arguments.keep)]
            command += ["--seed-files", *map(str, arguments.seed_files)] if arguments.seed_files else []
            done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
            sys.stderr.write(done.stderr[-2000:])
            if done.returncode:
                total["died"] += 1
                culprit = (arguments.keep / f"{name}.last").read_text().strip()
                print(f"{name}: the process died ({done.returncode}) at input {culprit}", flush=True)
                continue
            total += Counter(json.loads(done.stdout.splitlines()[-1]))
        failed |= bool(total["crash"] + total["died"])
        print(f"{name}: {dict(total)} in {time.monotonic() - start:.0f} s", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
