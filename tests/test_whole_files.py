"""Output paths: files are replaced whole, links stay links, devices and pipes stay what they are."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fate.boxes.detection_files import DetectionLog
from fate.boxes.label_files import write_labels
from fate.boxes.labels import Labels
from fate.errors import FateError
from fate.view.page import write_page
from fate.view.report import write_report
from fate.view.video import VideoWriter
from fate.whole_files import Draft, find_target, write_whole
from tests.conftest import write_detections

LABELS = Labels.empty([5_000], classes=("car",), sensor=(240, 304))
LOG = DetectionLog("drive.raw", (240, 304), ("car",), 20.0, [])

Write = Callable[[Path], None]
WRITERS: dict[str, Write] = {
    "bytes": lambda path: write_whole(path, b"content"),
    "page": lambda path: write_page(path, "base.html", title="title"),
    "coco": lambda path: write_labels(path, LABELS, format="coco"),
    "npz": lambda path: write_labels(path, LABELS, format="npz"),
    "json": lambda path: write_detections(LOG, json=path),
    "report": lambda path: write_report(path, None, [], {}, title="title"),
}
pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


def named(writer: str) -> str:
    return "out.html" if writer == "report" else "out"


@pytest.mark.parametrize("writer", WRITERS)
def test_a_link_stays_and_the_file_behind_it_is_replaced_at_once(tmp_path: Path, writer: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    old = tmp_path / "elsewhere" / "old"
    old.write_text("old")
    link = tmp_path / named(writer)
    link.symlink_to(old)
    before = old.stat().st_ino
    WRITERS[writer](link)
    assert link.is_symlink()
    assert old.read_bytes() not in (b"old", b"")
    assert old.stat().st_ino != before, "the file was written in place, where a reader sees half of it"
    old.unlink()
    WRITERS[writer](link)  # the link leads nowhere now: its file is made
    assert old.stat().st_size > 0
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["old"]


@pipes
@pytest.mark.parametrize("writer", WRITERS)
def test_a_pipe_stays_and_takes_what_a_file_would_hold(tmp_path: Path, writer: str) -> None:
    pipe, file = tmp_path / named(writer), tmp_path / f"file-{named(writer)}"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    WRITERS[writer](pipe)
    reader.join(30)
    WRITERS[writer](file)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert read == [file.read_bytes()]


@pytest.mark.skipif(not hasattr(os, "mknod"), reason="this system makes no devices")
@pytest.mark.parametrize("writer", WRITERS)
def test_a_device_stays_a_device(tmp_path: Path, writer: str) -> None:
    device = tmp_path / named(writer)
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # as /dev/null
        device.write_bytes(b"")
    except PermissionError:
        pytest.skip("only root makes devices, and not in every container")
    WRITERS[writer](device)
    assert stat.S_ISCHR(device.lstat().st_mode)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_folder_is_refused_by_name(tmp_path: Path, writer: str) -> None:
    folder = tmp_path / named(writer)
    folder.mkdir()
    with pytest.raises(FateError, match=named(writer)):
        WRITERS[writer](folder)
    assert list(tmp_path.iterdir()) == [folder]
    assert not list(folder.iterdir())


@pipes
def test_a_video_is_refused_for_a_pipe_before_a_frame_is_drawn(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    with pytest.raises(FateError, match=r"pipe\.mp4: is a device or a pipe"):
        VideoWriter(tmp_path / "pipe.mp4", 25, (16, 16))
    assert stat.S_ISFIFO((tmp_path / "pipe.mp4").lstat().st_mode)


def test_a_dash_is_standard_output_for_text_alone(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    write_detections(LOG, json="-")
    write_detections(LOG, json=tmp_path / "a.json")
    assert capsysbinary.readouterr().out == (tmp_path / "a.json").read_bytes()
    with pytest.raises(FateError, match="-: .* binary"):
        write_labels("-", LABELS, format="npz")
    with pytest.raises(FateError, match="-: .* binary"):
        write_whole("-", b"\0")
    assert not Path("-").exists()


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="this system has no /dev/stdout")
def test_dev_stdout_goes_on_behind_what_was_printed(tmp_path: Path) -> None:
    code = (
        "from fate.whole_files import write_whole\n"
        "print('first', flush=True); write_whole('/dev/stdout', b'second\\n'); print('third')\n"
    )
    with open(tmp_path / "out", "wb") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert (tmp_path / "out").read_text() == "first\nsecond\nthird\n"


def test_a_name_that_is_too_long_is_told_so_and_the_longest_that_fits_is_written(tmp_path: Path) -> None:
    with pytest.raises(FateError, match="too long"):
        write_whole(tmp_path / ("x" * 300), b"")
    longest = tmp_path / ("y" * 255)  # whose draft's name would be too long
    write_whole(longest, b"content")
    assert longest.read_bytes() == b"content"
    assert list(tmp_path.iterdir()) == [longest]


def test_links_in_a_circle_and_impossible_names_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for path in (tmp_path / "a", tmp_path / "zero\0byte", tmp_path / "missing" / "file"):
        with pytest.raises(FateError):
            write_whole(path, b"")


def test_a_file_keeps_its_permissions_and_a_new_one_gets_the_usual_ones(tmp_path: Path) -> None:
    write_whole(tmp_path / "new", b"1")
    (tmp_path / "plain").write_bytes(b"")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    (tmp_path / "new").chmod(0o640)
    write_whole(tmp_path / "new", b"2")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system kills in another way")
def test_the_draft_of_a_killed_writer_is_cleared_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    code = (
        "import sys, time\nfrom fate.whole_files import Draft, find_target\n"
        f"draft = Draft(find_target({str(target)!r}))\nprint('ready', flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"ready\n"
        (left,) = tmp_path.iterdir()
        write_whole(target, b"mine")  # the other writer lives: its draft stays
        assert left.exists()
        killed.send_signal(signal.SIGKILL)
    assert left.exists()
    with Draft(find_target(target)) as living, living.open() as file:
        assert not left.exists()
        file.write(b"first")
        file.flush()
        write_whole(target, b"second")
        assert living.path.exists()
    assert target.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [target]


def test_two_writers_of_one_target_leave_one_whole_file(tmp_path: Path) -> None:
    target, contents = tmp_path / "out", [bytes([number]) * 100_000 for number in (1, 2, 3)]
    ends = time.monotonic() + 1.0

    def write(content: bytes) -> None:
        while time.monotonic() < ends:
            write_whole(target, content)

    writers = [threading.Thread(target=write, args=[content]) for content in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert target.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.skipif(sys.platform == "win32", reason="folders are not synced there")
def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else f"file of {os.fstat(handle).st_size}")
        fsync(handle)

    def renamed(source: Path, target: Path) -> None:
        steps.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    write_whole(tmp_path / "out", b"12345")
    assert steps == ["file of 5", "rename", "folder"]


def test_an_empty_name_is_refused() -> None:
    for text in (True, False):
        with pytest.raises(FateError, match="empty"):
            find_target("", text=text)
