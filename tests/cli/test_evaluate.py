"""``fate evaluate`` and ``fate bench data`` on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fate
from fate.boxes.predictions import read_predictions, write_predictions
from fate.cli.main import app
from fate.cli.terminal import with_options
from fate.errors import FateError
from fate.inference import loading
from fate.models.checkpoints import save_model
from tests.conftest import make_events
from tests.models.small_detectors import small_detector


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recordings with a box every 100 ms, in the folder of a split."""
    folder = tmp_path_factory.mktemp("set") / "test"
    folder.mkdir()
    (folder.parent / "classes.txt").write_text("car\n")
    for number in range(2):
        random = np.random.default_rng(number)
        t = np.sort(random.integers(0, 1_200_000, 3_000))
        columns = (random.integers(0, top, len(t)) for top in (32, 24, 2))
        fate.write_events(folder / f"noise_{number}.dat", fate.Events(t, *columns, (24, 32)))
        times = np.arange(100_000, 1_200_000, 100_000)
        ones = np.ones(len(times), np.float32)
        fate.write_labels(
            folder / f"noise_{number}_bbox.npz", fate.Labels(times, ones, ones, 20 * ones, 22 * ones, 0 * times,
                                                             classes=("car",)))  # fmt: skip
    return folder.parent


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, FateError):  # ``main`` prints it and exits with 1
        return 1, with_options(str(result.exception))
    return result.exit_code, result.output


def test_recorded_accuracy_decides_the_windows_of_detect(dataset: Path, tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    save_model(small_detector("s5", sensor=(24, 32)), weights)
    for window in ([], ["--window", "50ms"]):
        words = ["evaluate", str(weights), str(dataset), "--hz", "100", "--kind", "own", *window]
        assert run(*words, "--record")[0] == 0
    measured = loading.load_detector(weights).accuracy
    assert [(hz, length_us) for hz, length_us, _ in measured] == [(100, 10_000), (100, 50_000)]
    code, said = run("evaluate", "fate-s-nano", str(dataset), "--hz", "20", "--kind", "own", "--record")
    assert code == 1
    assert ".safetensors" in said


def test_a_precision_evaluates_the_streaming_step(dataset: Path, tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    save_model(small_detector("s5", sensor=(24, 32)), weights)
    words = ["evaluate", str(weights), str(dataset), "--hz", "20", "--kind", "own", "--device", "cpu"]
    code, said = run(*words, "--precision", "float32", "--predictions", str(tmp_path / "step"))
    assert code == 0, said
    assert "detected by the streaming step, window by window, in float32" in said
    assert run(*words, "--predictions", str(tmp_path / "clips"))[0] == 0
    step, clips = (read_predictions(next((tmp_path / name).iterdir())) for name in ("step", "clips"))
    assert {name: len(labels) for name, labels in step.items()} == {name: len(labels) for name, labels in clips.items()}
    code, said = run(*words, "--precision", "float16")
    assert code == 1
    assert "expected one of float32" in said


def test_suppression_is_off_for_detr_heads_unless_it_is_asked_for(dataset: Path, tmp_path: Path) -> None:
    save_model(small_detector("evrt", sensor=(24, 32)), tmp_path / "detr.safetensors")
    found, notes = {}, {}
    for name, options in {"kept": [], "suppressed": ["--max-overlap", "0.05"]}.items():
        words = ["evaluate", str(tmp_path / "detr.safetensors"), str(dataset), "--hz", "20", "--kind", "own", *options]
        code, notes[name] = run(*words, "--predictions", str(tmp_path / name))
        assert code == 0, notes[name]
        (file,) = (tmp_path / name).iterdir()
        found[name] = sum(len(labels) for labels in read_predictions(file).values())
    assert 0 < found["suppressed"] < found["kept"]
    assert "IoU is above 0.05" in notes["suppressed"]
    assert "IoU is above" not in notes["kept"]


def test_suppression_of_finished_predictions_is_refused(dataset: Path, tmp_path: Path) -> None:
    opened = fate.open_dataset(dataset, kind="own")
    write_predictions(tmp_path / "exact.npz", {each.name: each.labels for each in opened.recordings})
    words = ["evaluate", str(tmp_path / "exact.npz"), str(dataset), "--hz", "20", "--kind", "own"]
    code, text = run(*words, "--max-overlap", "0.5")
    assert code == 1
    assert "max_overlap=0.5" in text
    assert run(*words, "--max-overlap", "7")[0] == 2


def test_the_truth_as_predictions_is_perfect_and_the_figures_are_kept(dataset: Path, tmp_path: Path) -> None:
    opened = fate.open_dataset(dataset, kind="own")
    write_predictions(tmp_path / "exact.npz", {each.name: each.labels for each in opened.recordings})
    code, text = run("evaluate", str(tmp_path / "exact.npz"), str(dataset), "--hz", "20", "--kind", "own", "--json",
                     str(tmp_path / "figures.json"))  # fmt: skip
    assert code == 0, text
    assert "protocol custom" in text
    assert "| 20 | 100.00 | 100.00 | 100.00 | 100.0% |" in text
    assert "labels   at 10 Hz (median of 2 recordings)" in text
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["rates"][0]["scores"]["metrics"]["AP50:95"] == pytest.approx(1.0)
    assert figures["label_hz"] == {"test/noise_0": 10.0, "test/noise_1": 10.0}
    assert (tmp_path / "figures.png").exists()


@pytest.fixture
def at_two_rates(dataset: Path, tmp_path: Path) -> Path:
    """The truth as predictions, in two files that name a rate."""
    opened = fate.open_dataset(dataset, kind="own")
    truth = {each.name: each.labels for each in opened.recordings}
    (tmp_path / "boxes").mkdir()
    for hz in (20, 100):
        write_predictions(tmp_path / "boxes" / f"{hz}hz.npz", truth, {"hz": hz})
    return tmp_path / "boxes"


@pytest.mark.parametrize("rates", [(), ("--hz", "20", "100"), ("--hz", "20,100"), ("--hz", "20", "--hz", "100")])
def test_rates_are_those_asked_for_or_those_of_the_predictions(
    dataset: Path, at_two_rates: Path, rates: tuple[str, ...]
) -> None:
    code, text = run("evaluate", str(at_two_rates), str(dataset), "--kind", "own", *rates)
    assert code == 0, text
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")] == ["| Hz", "| 20", "| 100"]


def test_the_table_says_which_rule_was_applied_and_what_was_dropped(dataset: Path, at_two_rates: Path) -> None:
    _, text = run("evaluate", str(at_two_rates), str(dataset), "--kind", "own", "--hz", "20")
    assert "the nearest label within ± 2 ms of its end" in text
    assert "an unknown time of events, every 50 ms (20 Hz)" in text
    assert "truth: 22 boxes given, dropped 10 in the skipped start" in text
    _, text = run("evaluate", str(at_two_rates), str(dataset), "--kind", "own")
    assert "the nearest label within ± 2 ms of its end" in text
    _, text = run("evaluate", str(at_two_rates), str(dataset), "--kind", "own", "--label-tolerance", "3ms")
    assert "the nearest label within ± 3 ms, at most half a hop, of its end" in text


def test_windows_that_overlap_are_in_the_rules_and_are_for_detectors(dataset: Path, at_two_rates: Path) -> None:
    save_model(small_detector("s5", sensor=(24, 32)), at_two_rates.parent / "own.safetensors")
    own, of_set = str(at_two_rates.parent / "own.safetensors"), (str(dataset), "--kind", "own", "--window", "50ms")
    code, text = run("evaluate", own, *of_set, "--hz", "40")
    assert code == 0, text
    assert "50 ms of events, every 25 ms (40 Hz)" in text
    _, text = run("evaluate", own, *of_set, "--hz", "20", "40")
    assert "50 ms long, one every 1 / rate" in text
    code, text = run("evaluate", str(at_two_rates), *of_set)
    assert code == 1
    assert "they are for a detector" in text


def test_predictions_that_lack_a_rate_or_have_another_are_refused(
    dataset: Path, at_two_rates: Path, tmp_path: Path
) -> None:
    code, text = run("evaluate", str(at_two_rates), str(dataset), "--kind", "own", "--hz", "20", "40")
    assert code == 1
    assert "has predictions at 20 100 Hz; 40 Hz was asked for; give --hz 20 100" in text
    write_predictions(tmp_path / "plain.npz", {"noise_0": fate.Labels.empty([1000])})
    code, text = run("evaluate", str(tmp_path / "plain.npz"), str(dataset), "--kind", "own")
    assert code == 1
    assert "does not say at which rate it was made; give that one rate, such as --hz 20" in text


def test_a_plain_list_of_coco_results_goes_with_its_images(dataset: Path, tmp_path: Path) -> None:
    listing: dict[str, list[object]] = {"images": [], "categories": [{"id": 7, "name": "car"}]}
    results: list[object] = []
    for recording in fate.open_dataset(dataset, kind="own").recordings:
        for time in recording.labels.labelled_us.tolist():
            number = len(listing["images"])
            listing["images"].append({"id": number, "recording": recording.name, "t_us": time})
            results.append({"image_id": number, "category_id": 7, "bbox": [1, 1, 19, 21], "score": 0.9})
    (tmp_path / "images.json").write_text(json.dumps(listing))
    (tmp_path / "results.json").write_text(json.dumps(results))
    arguments = ("evaluate", str(tmp_path / "results.json"), str(dataset), "--kind", "own", "--hz", "20")
    code, text = run(*arguments, "--images", str(tmp_path / "images.json"))
    assert code == 0, text
    assert "| 20 | 100.00 | 100.00 | 100.00 |" in text
    code, text = run(*arguments)
    assert code == 1
    assert "--images FILE" in text


def test_faults_of_the_dataset_are_named_once_and_it_is_used_without(dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "copy")
    (tmp_path / "copy" / "test" / "noise_1.dat").write_bytes(b"% nothing")
    write_predictions(tmp_path / "exact.npz", {"noise_0": fate.read_labels(dataset / "test" / "noise_0_bbox.npz")})
    code, text = run("evaluate", str(tmp_path / "exact.npz"), str(tmp_path / "copy"), "--kind", "own", "--hz", "20")
    assert code == 0, text
    assert text.count("noise_1") == text.count("dataset: test/noise_1: left out: ") + text.count("noise_1.dat") == 2
    assert "of 1 recording;" in text
    for path in (tmp_path / "copy" / "test").glob("*_bbox.npz"):
        path.unlink()
    code, text = run("evaluate", str(tmp_path / "exact.npz"), str(tmp_path / "copy"), "--kind", "own", "--hz", "20")
    assert code == 1
    assert "no recording has labels; an evaluation needs some" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--shard", "5/4"), "'--shard': 5/4 was given"),
        (("--shard", "x"), "'--shard': x was given"),
        (("--hz", "0"), "expected rates of 1 to 1000, such as"),
        (("--device", "tpu"), "'--device': tpu was given"),
        (("--streams", "0"), "'--streams': 0 was given"),
    ],
)
def test_bad_usage_exits_with_2(dataset: Path, arguments: tuple[str, ...], words: str) -> None:
    code, text = run("evaluate", "boxes.npz", str(dataset), *arguments)
    assert code == 2
    assert words in text.replace("\n", " ")


def test_bad_input_is_one_sentence(dataset: Path, tmp_path: Path) -> None:
    code, text = run("evaluate", str(tmp_path / "none.safetensors"), str(dataset), "--kind", "own")
    assert code == 1
    assert "none.safetensors" in text
    code, text = run("evaluate", "boxes.npz", str(tmp_path / "nowhere"))
    assert code == 1
    assert "nowhere" in text


def test_an_unknown_name_lists_the_bundled_ones(dataset: Path) -> None:
    code, text = run("evaluate", "fate-s-nanno", str(dataset))
    assert code == 1
    assert "fate-s-nano" in text


def test_a_bundled_name_is_measured_as_its_file_is(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size differs from that of the dataset, which the table and the JSON say."""
    monkeypatch.setattr(loading, "WEIGHTS", tmp_path)
    save_model(small_detector("s5", sensor=(32, 40)), tmp_path / "small.safetensors")
    rest = (str(dataset), "--kind", "own", "--hz", "20", "--json", str(tmp_path / "figures.json"))
    figures = []
    for what in ("small", str(tmp_path / "small.safetensors")):
        code, text = run("evaluate", what, *rest)
        assert code == 0, text
        assert "note: the detector was trained on a 40×32 sensor and runs on one of 32×24" in text
        figures.append(json.loads((tmp_path / "figures.json").read_text()))
    assert figures[0]["notes"] == figures[1]["notes"] != []
    assert figures[0]["rates"][0]["scores"] == figures[1]["rates"][0]["scores"]
    code, text = run("evaluate", "fate-s", *rest)
    assert code == 1
    for part in ("fate-s: ", "there are small", "fate train", ".safetensors"):
        assert part in text


def test_a_detector_for_a_much_smaller_sensor_is_refused_with_what_to_do(dataset: Path, tmp_path: Path) -> None:
    save_model(small_detector("s5", sensor=(12, 16)), tmp_path / "small.safetensors")
    code, text = run("evaluate", str(tmp_path / "small.safetensors"), str(dataset), "--kind", "own", "--hz", "20")
    assert code == 1
    assert "is of a 32×24 sensor, the detector of a 16×12 one" in text
    assert "write downscale: 2 into a YAML file" in text


def test_reading_is_measured(dataset: Path) -> None:
    code, text = run("bench", "data", str(dataset), "--hz", "20", "--workers", "0", "--seconds", "0.1")
    assert code == 0, text
    assert "| events | 20 | 0 |" in text
    assert run("bench", "data", str(dataset), "--workers", "1.5")[0] == 2


def test_one_frame_and_one_object_are_told_as_such(tmp_path: Path) -> None:
    """A share of one object is no figure: a good AP beside "missed 100 %" looks broken."""
    fate.write_events(tmp_path / "a.h5", make_events(3_000, (24, 32)))
    facts = {"classes": ("car",), "track_id": [7], "sensor": (24, 32)}
    fate.write_labels(tmp_path / "a_bbox.npz", fate.Labels([700_000], [1], [1], [20], [22], [0], **facts))
    times = [690_000, 695_000, 700_000]
    exact = fate.Labels([700_000], [1], [1], [20], [22], [0], **facts, labelled_us=times)
    fate.write_labels(tmp_path / "a_truth.npz", exact)
    low = fate.Labels([700_000], [1], [1], [20], [22], [0], score=[0.2], classes=("car",), sensor=(24, 32))
    write_predictions(tmp_path / "low.npz", {"a": low}, {"hz": 20})
    code, text = run("evaluate", str(tmp_path / "low.npz"), str(tmp_path), "--kind", "own", "--json",
                     str(tmp_path / "figures.json"))  # fmt: skip
    assert code == 0, text
    (row,) = [line for line in text.splitlines() if line.startswith("| 20 |")]
    assert "100.00" in row
    assert row.endswith("| – | – | – |")
    assert "1 object came into view" in text
    assert "1 frame of 1 recording;" in text
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["rates"][0]["time_to_detection"]["missed"] == 1


@pytest.mark.slow
def test_a_report_shows_confusion_matrix_kinds_of_errors_and_samples(dataset: Path, tmp_path: Path) -> None:
    weights, page, numbers = (tmp_path / name for name in ("w.safetensors", "page.html", "e.json"))
    save_model(small_detector("s5", sensor=(24, 32)), weights)
    words = ["evaluate", str(weights), str(dataset), "--hz", "20", "--kind", "own"]
    code, said = run(*words, "--report", str(page), "--json", str(numbers))
    assert code == 0, said
    text = page.read_text()
    for part in ("Confusion matrix", "missed", "background", "no object there", "AP50 gain", "labels on the left"):
        assert part in text
    found = json.loads(numbers.read_text())["rates"][0]["scores"]["errors"]
    assert sum(found["confusion"]["counts"][0]) == 12  # two recordings, six labels each after the first half second
    code, said = run(*words, "--report", str(tmp_path / "page.txt"))
    assert code == 1
    assert "page.txt" in said
    assert ".html" in said
