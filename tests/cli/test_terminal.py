"""Standard streams that are closed, full or not UTF-8; progress off a terminal; quiet and verbose."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fate import write_events
from fate.cli import arguments
from fate.cli.main import app
from fate.cli.terminal import VERBOSITY, note
from fate.errors import MissingDependencyError
from fate.progress import ProgressLines
from tests.cli.running import fate
from tests.conftest import make_events

POSIX = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell and its devices")
FATE = f'"{sys.executable}" -m fate.cli'


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("terminal") / "drive.dat"
    write_events(path, make_events(500))
    return path


@pytest.fixture(autouse=True)
def usual_verbosity() -> None:
    VERBOSITY.set(quiet=False, verbose=0)


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["sh", "-c", line], capture_output=True, check=False, env={**os.environ, **environment}, timeout=300
    )


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_text_that_the_encoding_lacks_is_replaced(drive: Path, encoding: str) -> None:
    done = fate("info", drive, encoding=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("64x48" if encoding == "ascii" else "64×48") in done.stdout


@POSIX
@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_stop_a_command(drive: Path, tmp_path: Path, closed: str) -> None:
    copy = tmp_path / "copy.npz"
    done = shell(f'{FATE} convert "{drive}" "{copy}" {closed}')
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert copy.read_bytes()[:2] == b"PK"  # nothing that was meant for a terminal went into the file
    assert ("events written" in done.stdout.decode()) == (closed == "2>&-")


@POSIX
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    ("command", "buffered"),
    [("info DRIVE", ""), ("info DRIVE", "1"), ("--help", "1"), ("info --help", ""), ("--version", "")],
)
def test_a_full_standard_output_is_one_sentence(drive: Path, command: str, buffered: str) -> None:
    done = shell(f"{FATE} {command.replace('DRIVE', str(drive))} > /dev/full", PYTHONUNBUFFERED=buffered)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert done.stderr.startswith(b"error: standard output")
    assert b"No space left" in done.stderr


@POSIX
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_standard_error_does_not_change_the_exit_code(drive: Path) -> None:
    assert shell(f'{FATE} info "{drive}" 2> /dev/full').returncode == 0
    assert shell(f'{FATE} info "{drive}.none" 2> /dev/full').returncode == 1
    assert shell(f'{FATE} info "{drive}" --sensor x 2> /dev/full').returncode == 2


@POSIX
@pytest.mark.parametrize("command", ["info DRIVE", "detect --help"])
def test_a_reader_that_goes_away_is_no_fault(drive: Path, command: str) -> None:
    done = shell(f"{FATE} {command.replace('DRIVE', str(drive))} | true")
    assert done.stderr == b""


@POSIX
@pytest.mark.skipif(sys.platform == "darwin", reason="file names are UTF-8 there")
def test_file_names_that_are_not_utf8(drive: Path, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/bad\xff.dat"
    Path(os.fsdecode(name)).write_bytes(drive.read_bytes())
    done = fate("info", os.fsdecode(name))
    assert (done.returncode, done.stderr) == (0, "")
    assert "bad\\xff.dat" in done.stdout


@POSIX
def test_warnings_are_one_line_whatever_the_name_of_the_file(drive: Path, tmp_path: Path) -> None:
    path = tmp_path / "two\nlines.raw"
    write_events(path, make_events(100))
    path.write_bytes(path.read_bytes() + b"\0")
    done = fate("info", path)
    assert done.stderr.startswith("warning: ")
    assert done.stderr.count("\n") == 1


def test_an_error_has_a_traceback_only_if_asked_for(tmp_path: Path) -> None:
    missing = tmp_path / "none.raw"
    assert "Traceback" not in fate("info", missing).stderr
    for words in (("-v", "info", missing), ("info", missing, "--verbose")):
        done = fate(*words)
        assert done.returncode == 1
        assert "Traceback" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("error: ")
        VERBOSITY.set(quiet=False, verbose=0)


@pytest.mark.parametrize(
    ("line", "quiet", "verbose"),
    [("models", False, 0), ("-q models", True, 0), ("models -q", True, 0), ("models --quiet", True, 0),
     ("-v models", False, 1), ("models -vv", False, 2), ("-q models -v", True, 1)],
)  # fmt: skip
def test_quiet_and_verbose_before_and_after_the_command(line: str, quiet: bool, verbose: int) -> None:
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 0, result.output
    assert (VERBOSITY.quiet, VERBOSITY.verbose) == (quiet, verbose)


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lines_of(capsys: pytest.CaptureFixture[str], seconds: float, steps: int = 1000) -> list[str]:
    """What is printed of work of this length."""
    clock = Clock()
    progress = ProgressLines("working", note, clock)
    for step in range(steps + 1):
        clock.now = seconds * step / steps
        progress(step, steps, "", "working")
    return capsys.readouterr().err.splitlines()


def test_short_work_prints_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_of(capsys, 1.9) == []


def test_long_work_prints_some_lines_and_not_many(capsys: pytest.CaptureFixture[str]) -> None:
    minute = lines_of(capsys, 60)
    assert 4 <= len(minute) <= 7
    assert minute[0].startswith("working: 3 %")
    hours = lines_of(capsys, 36_000, steps=100_000)
    assert 590 <= len(hours) <= 602  # one a minute


def test_a_new_part_of_the_work_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = ProgressLines("working", note, clock)
    progress(0, 10, "", "detecting")
    clock.now = 3.0
    progress(1, 10, "5 windows per second", "detecting")
    clock.now = 4.0
    progress(0, 10, "", "drawing")
    progress(1, 10, "", "drawing")
    first, second = capsys.readouterr().err.splitlines()
    assert "detecting" in first
    assert "10 %" in first
    assert "5 windows per second" in first
    assert "drawing" in second


def test_the_same_part_that_begins_again_has_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = ProgressLines("working", note, clock)
    for step in range(100):
        clock.now = 0.3 * step
        progress(step, 100, "", "detecting")
    capsys.readouterr()
    for step in range(50):
        clock.now = 30 + step
        progress(step, 100, "", "detecting")
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) >= 4
    assert "0 %" in printed[0]


def test_work_without_a_known_end_prints_what_it_is_at(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = ProgressLines("working", note, clock)
    for second in range(301):
        clock.now = float(second)
        progress(0, None, f"{second} s", "live")
    printed = capsys.readouterr().err.splitlines()
    assert 5 <= len(printed) <= 8
    assert "%" not in printed[0]


def test_quiet_prints_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    VERBOSITY.set(quiet=True)
    with arguments.progress_bar("x") as progress:
        assert progress is None
    note("measuring")
    with arguments.progress_bar("training", steps=True) as progress:
        assert progress is None
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_view_without_rerun_says_only_that(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    result = CliRunner().invoke(app, ["view", str(drive)])
    assert isinstance(result.exception, MissingDependencyError)
    assert "rerun" in str(result.exception)
    assert result.output == ""


def test_verbose_prints_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    CliRunner().invoke(app, ["-vv", "models"])
    assert [record for record in caplog.records if record.name.startswith("fate")]


@POSIX
def test_shell_completion_knows_the_names_of_detectors_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; sys.argv = ['fate']; from fate.cli.main import main; main()"
    completing = {"_FATE_COMPLETE": "complete_bash", "COMP_WORDS": "fate detect --model fate-s-", "COMP_CWORD": "3"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **completing}
    )
    assert done.stdout.split() == ["fate-s-nano", "fate-s-tiny"], done.stderr


def test_a_place_that_may_not_be_used_is_one_sentence(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom fate.cli.main import main\n"
        "def refuse(*_): raise PermissionError(13, 'Permission denied', 'locked/drive.raw')\n"
        "os.path.lexists = refuse\nsys.argv = ['fate', 'inspect', 'locked']\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    (error,) = done.stderr.splitlines()
    assert error.startswith("error: locked/drive.raw")
    assert "Permission denied" in error


def test_tables_are_plain_where_the_output_is_ascii(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,x,y,p\n0,1,1,0\n1000,2,2,1\n")
    done = fate("inspect", tmp_path / "a.csv", "--sensor", "304x240", encoding="ascii")
    assert done.returncode == 0, done.stderr
    assert "-----" in done.stdout
    assert "\\u" not in done.stdout
    assert "\\x" not in done.stdout
