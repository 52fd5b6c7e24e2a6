"""Several detectors side by side: each column shows what that detector finds alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import fate
from fate import FateError, Labels, write_events, write_labels
from fate.cli.main import app
from tests.conftest import make_events

SENSOR = (60, 76)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compare") / "drive.npz"
    write_events(path, make_events(20_000, SENSOR))
    write_labels(path.with_name("labels.npz"), Labels([100_000], [10], [10], [30], [40], [0], sensor=SENSOR))
    return path


def test_a_picture_has_a_row_for_each_time_and_a_column_for_each_run(recording: Path, tmp_path: Path) -> None:
    models = [fate.build_model(name, ("car", "pedestrian"), SENSOR) for name in ("fate-s-nano", "s5-vit-nano")]
    sizes = {}
    for columns in (1, 2):
        done = fate.compare(
            recording, models[:columns], tmp_path / f"{columns}.png", hz=[20], times_us=[60_000, 100_000],
            labels=recording.with_name("labels.npz"), end_us=150_000,
        )  # fmt: skip
        sizes[columns] = Image.open(done.path).size
        assert len(done.runs) == columns
        assert done.times_us == (60_000, 100_000)
    assert sizes[2][0] > sizes[1][0]
    assert sizes[2][1] == sizes[1][1]
    labelled = np.asarray(Image.open(tmp_path / "1.png"))
    half = labelled.shape[0] // 2
    column = labelled[:, : labelled.shape[1] // 2]
    assert not np.array_equal(column[:half], column[half:])  # the second row has the label


def test_a_video_holds_every_run_and_wrong_requests_are_refused(recording: Path, tmp_path: Path) -> None:
    model = fate.build_model("fate-s-nano", ("car", "pedestrian"), SENSOR)
    done = fate.compare(recording, [model], tmp_path / "rates.mp4", hz=[20, 100], end_us=150_000)
    assert sorted(len(run.frames) for run in done.runs.values())[0] > 0
    assert done.path.stat().st_size > 1000
    for wrong, named in (
        ({"save": tmp_path / "a.txt"}, "a.txt"),
        ({"hz": []}, "at least one"),
        ({"hz": [20, 20]}, "twice"),
        ({"times_us": [1]}, "picture"),
        ({"save": tmp_path / "a.png", "times_us": [10**9]}, "1000 s"),
    ):
        request = {"save": tmp_path / "b.mp4", "hz": [20], "end_us": 150_000, **wrong}
        with pytest.raises(FateError, match=named):
            fate.compare(recording, [model], **request)


def test_the_command_writes_the_picture_and_counts_boxes(recording: Path, tmp_path: Path) -> None:
    given = ["compare", str(recording), "--model", "fate-s-nano", "--hz", "20", "--save", str(tmp_path / "one.png")]
    result = CliRunner().invoke(app, [*given, "--at", "+50ms", "--end", "+150ms", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert "fate-s-nano, 20 Hz:" in result.output
    assert (tmp_path / "one.png").exists()
