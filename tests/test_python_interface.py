"""``import fate`` as a Python user meets it: help, a function for each command, warnings, missing packages."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

import fate
from fate.cli.main import app
from fate.cli.terminal import OTHER_NAMES, SAME_NAMES, with_options
from fate.errors import PACKAGES, missing_packages
from tests.conftest import make_events

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = list((ROOT / "src" / "fate").rglob("*.py"))
#: Comes with torch on Linux, and is not a package of ours.
OF_TORCH = {"triton"}
#: Prints whether all public names are members of the package, and whether its help names the commands.
HELP = (
    "import sys, inspect, pydoc, fate\n"
    "text = pydoc.render_doc(fate, renderer=pydoc.plaintext)\n"
    "members = dict(inspect.getmembers(fate))\n"
    "print(all(name in members for name in fate.__all__))\n"
    "print(all(name in text for name in ('evaluate(', 'train(', 'study(', 'detect(')))\n"
)


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def commands() -> list[str]:
    """Every command, as its function is called in Python."""
    group: Any = get_command(app)
    plain = [name.replace("-", "_") for name in group.commands if name != "bench"]
    return plain + [f"bench_{name}" for name in group.commands["bench"].commands]


def names_of(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w-]+", text)[0] for text in requirements}  # type: ignore[index]


# ---- help, without Lightning --------------------------------------------------------------------------------


@pytest.mark.slow
def test_help_lists_every_function_and_never_loads_lightning() -> None:
    done = python(f"{HELP}print(sys.modules.get('pytorch_lightning'))\n")
    assert done.stdout == "True\nTrue\nNone\n", done.stderr


@pytest.mark.slow
def test_without_lightning_help_works_and_commands_that_need_it_say_what_to_install(tmp_path: Path) -> None:
    out = tmp_path / "out"
    study = ["study", "smoke", "--out", str(out)]
    train = ["train", "fate-s-nano-20hz", f"data.path={tmp_path}", "--out", str(out)]
    hidden = "import sys; sys.modules['pytorch_lightning'] = sys.modules['lightning_fabric'] = None\n"
    run = "try: main()\n    except SystemExit as end: print(end.code)\n"
    code = f"for words in {[study, train]!r}:\n    sys.argv = ['fate', *words]\n    {run}"
    done = python(f"{hidden}{HELP}from fate.cli.main import main\n{code}")
    assert done.stdout == "True\nTrue\n1\n1\n", done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("pip install pytorch-lightning") == 2
    assert not out.exists()  # before anything was simulated


# ---- packages -----------------------------------------------------------------------------------------------


def test_hints_install_what_the_extras_install() -> None:
    extras = {
        name: names_of(needs) for name, needs in PROJECT["optional-dependencies"].items() if name not in ("dev", "docs")
    }
    assert {extra: set(packages) for extra, packages in PACKAGES.items()} == extras
    for packages in PACKAGES.values():
        assert f"pip install {' '.join(packages)}" in str(missing_packages("this", packages))


def test_what_the_readme_promises_is_installed_without_extras() -> None:
    assert {"pytorch-lightning", "hdf5plugin"} <= names_of(PROJECT["dependencies"])
    pinned = names_of((ROOT / "constraints.txt").read_text().splitlines()[3:])
    assert {"pytorch-lightning", "hdf5plugin"} <= pinned


def test_every_pip_line_names_packages_of_the_index() -> None:
    known = names_of(PROJECT["dependencies"]).union(*PACKAGES.values()) | OF_TORCH | {"pandas"}
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    wrong = []
    for file in (*SOURCES, *pages):
        for line in re.findall(r"pip install ((?:[\w-]+ ?)+)", file.read_text()):
            named = [word for word in line.split() if not word.startswith("-")]
            if named and named[0] not in known and file.suffix == ".py":
                wrong.append(f"{file.name}: {line}")
        wrong += [f"{file.name}: {found}" for found in re.findall(r"fate-events\[\w+\]", file.read_text())]
    assert wrong == []


# ---- commands and functions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", commands())
def test_each_command_is_a_function_with_names_types_and_a_docstring(name: str) -> None:
    function = getattr(fate, name)
    assert callable(function)
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        assert parameter.kind != parameter.VAR_POSITIONAL, parameter
        assert parameter.annotation is not parameter.empty, parameter
    assert signature.return_annotation is not signature.empty
    assert "Args:" in (inspect.getdoc(function) or "")
    assert name in fate.__all__


@pytest.mark.parametrize(
    ("name", "inside", "function"),
    [
        ("densify", "making", "workflows.commands.densify"),
        ("models", "zoo", "models.zoo.list_models"),
        ("view", "rendering", "view.rerun_view.show_recording"),
    ],
)
def test_a_command_with_the_name_of_a_package_stays_callable_once_it_is_imported(
    name: str, inside: str, function: str
) -> None:
    module = importlib.import_module(f"fate.{name}.{inside}")
    home, _, own = f"fate.{function}".rpartition(".")
    expected = getattr(importlib.import_module(home), own)
    package: Any = getattr(fate, name)
    assert callable(package)
    assert getattr(package, inside) is module
    assert inspect.signature(package) == inspect.signature(expected)
    assert package.__doc__.startswith(inspect.getdoc(expected))


def test_arguments_reach_the_function_behind_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fate.list_models", lambda classes, sensor=None: (classes, sensor))
    listed: Callable[..., Any] = fate.models
    assert listed(("a",), sensor=(24, 32)) == (("a",), (24, 32))
    with pytest.raises(TypeError, match="nothing"):
        listed(nothing=1)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A YAML file, not called dataset.yaml, with one short recording of the sensor of the bundled detectors."""
    folder = tmp_path_factory.mktemp("own")
    events = make_events(4000, (240, 304))
    end = 400_000
    t_us = np.sort(np.random.default_rng(1).integers(0, end, len(events)))
    fate.write_events(folder / "drive.dat", fate.Events(t_us, events.x, events.y, events.p, (240, 304)))
    times = np.arange(100_000, end, 100_000)
    ones = np.ones(len(times), np.float32)
    names = ("car", "pedestrian")
    labels = fate.Labels(times, 40 * ones, 50 * ones, 90 * ones, 120 * ones, 0 * times, classes=names)
    fate.write_labels(folder / "drive_bbox.npz", labels)
    (folder / "mine.yaml").write_text(
        "classes: [car, pedestrian]\nrecordings:\n  - {events: drive.dat, labels: drive_bbox.npz, split: test}\n"
    )
    return folder / "mine.yaml"


def test_evaluate_takes_names_paths_and_objects_alike(dataset: Path, tmp_path: Path) -> None:
    opened = fate.open_dataset(dataset)
    by_name = fate.evaluate("fate-s-nano", str(dataset), (20,), predictions_to=tmp_path / "boxes")
    assert by_name.rates[0].run is not None
    loaded = fate.load_detector("fate-s-nano")
    for model, data in ((loaded, dataset), (loaded.model, opened)):
        other = fate.evaluate(model, data, (20,))
        assert other.rates[0].scores.to_dict() == by_name.rates[0].scores.to_dict()
    group_file = tmp_path / "groups.yaml"
    group_file.write_text(f"{opened.recordings[0].name}: street\n")
    grouped = fate.evaluate(tmp_path / "boxes", dataset, groups=group_file)
    assert grouped.rates[0].groups["street"].to_dict() == grouped.rates[0].scores.to_dict()  # of all recordings
    assert "street" in grouped.table()
    with pytest.raises(fate.FateError, match=r"drive.*group"):
        fate.evaluate(tmp_path / "boxes", dataset, groups={"another": "street"})
    with pytest.raises(fate.FateError, match="manifest"):
        fate.evaluate(tmp_path / "boxes", dataset, groups="sensor")
    for options in ({"precision": "float32"}, {"backend": "openvino"}):  # of a detector, which does not run here
        with pytest.raises(fate.FateError, match="predictions"):
            fate.evaluate(tmp_path / "boxes", dataset, **options)  # type: ignore[arg-type]
    kept = fate.evaluate(tmp_path / "boxes", dataset)
    assert kept.rates[0].scores["AP50"] == by_name.rates[0].scores["AP50"]
    with pytest.raises(fate.FateError, match=r"fate-s-nanno.*fate-s-nano"):
        fate.detect(dataset.parent / "drive.dat", "fate-s-nanno")
    with pytest.raises(fate.FateError, match="no-such-set"):
        fate.evaluate(loaded, "no-such-set", (20,))


def test_densify_and_check_take_a_name_and_a_path(dataset: Path, tmp_path: Path) -> None:
    with pytest.warns(fate.FateWarning, match="two wheeler"):  # which the dataset does not have
        made = fate.densify("fate-s-nano", dataset, tmp_path / "dense", (20,))
        again = fate.densify(fate.load_detector("fate-s-nano"), fate.open_dataset(dataset), tmp_path / "dense", (20,))
    assert made.recordings == 1
    assert again.skipped == 1  # the same detector and the same data


def test_a_dataset_leads_back_to_its_path_unless_it_is_a_selection(dataset: Path) -> None:
    from fate.data.opening import path_of

    opened = fate.open_dataset(dataset)
    assert path_of(dataset) == path_of(str(dataset)) == path_of(opened) == (dataset, None)
    with pytest.raises(fate.FateError, match=r"mine.yaml.*whole"):
        path_of(fate.open_dataset(dataset, downscale=2))


def test_train_opens_the_dataset_that_is_given(dataset: Path, tmp_path: Path) -> None:
    config = "fate-s-nano-20hz"
    with pytest.raises(fate.FateError, match="no-such-set"):
        fate.train(config, tmp_path / "run", dataset="no-such-set")
    with pytest.raises(fate.FateError, match="mine.yaml"):
        fate.train(config, tmp_path / "other", dataset=fate.open_dataset(dataset, downscale=2))


def test_info_and_convert_take_the_options_of_reading(tmp_path: Path) -> None:
    events = make_events(500)
    fate.write_events(tmp_path / "a.npz", events)
    assert fate.convert(tmp_path / "a.npz", tmp_path / "a.npy", sensor=(48, 64), zero_time=True).num_written == 500
    found = fate.info(tmp_path / "a.npy", sensor=(100, 200), columns=None)
    assert (found.num_events, found.height, found.width, found.start_us) == (500, 100, 200, 0)


def test_a_detector_shows_what_it_is() -> None:
    shown = repr(fate.load_detector("fate-s-nano"))
    for part in ("fate-s-nano", "car", "pedestrian", "320×240", "parameters"):
        assert part in shown
    assert any(number > 10_000 for number in map(int, re.findall(r"\d+", shown.replace(",", ""))))


# ---- messages -----------------------------------------------------------------------------------------------


def test_times_too_large_for_a_format_are_shifted_as_the_error_says(tmp_path: Path) -> None:
    events = make_events(100).shifted(1_589_163_147_365_215)
    with pytest.raises(fate.FateError, match="zero_time=True") as refused:
        fate.write_events(tmp_path / "late.dat", events)
    assert "--" not in str(refused.value)
    fate.write_events(tmp_path / "late.dat", events, zero_time=True)
    assert fate.open_recording(tmp_path / "late.dat", sensor=events.sensor).read() == events.shifted(
        -int(events.t_us[0])
    )
    fate.write_events(tmp_path / "none.dat", fate.Events.empty((48, 64)), zero_time=True)
    done = python(
        "import sys; from fate.cli.main import main;"
        f"sys.argv = ['fate', 'convert', {str(_late(tmp_path))!r}, {str(tmp_path / 'x.dat')!r}]; main()"
    )
    assert done.returncode == 1
    assert "--zero-time" in done.stderr
    assert "zero_time" not in done.stderr


def _late(folder: Path) -> Path:
    fate.write_events(folder / "late.npz", make_events(100).shifted(1_589_163_147_365_215))
    return folder / "late.npz"


def test_warnings_point_at_the_line_of_the_caller_and_name_python_arguments(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_text("t,x,y,p\n1,2,3,1\n2,3,4,0\n")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        recording = fate.open_recording(path)
        recording.read()
        line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    (told,) = [each for each in seen if issubclass(each.category, fate.FateWarning)]
    assert (told.filename, told.lineno) == (__file__, line)
    assert "sensor=(height, width)" in str(told.message)
    assert "--" not in str(told.message)
    done = python(f"import sys; from fate.cli.main import main; sys.argv = ['fate', 'info', {str(path)!r}]; main()")
    assert done.returncode == 0
    assert "--sensor WIDTHxHEIGHT" in done.stderr
    assert "sensor=" not in done.stderr


def test_a_warning_inside_a_context_manager_or_property_still_points_at_the_caller(tmp_path: Path) -> None:
    folder = tmp_path / "set" / "train"
    folder.mkdir(parents=True)
    fate.write_events(folder / "good.dat", make_events(100, (240, 304)))
    (folder / "bad.dat").write_bytes(b"% Width 304\n% Height 240\n\x00")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fate.open_dataset(tmp_path / "set")
    told = [each for each in seen if issubclass(each.category, fate.FateWarning)]
    assert told
    assert {each.filename for each in told} == {__file__}


def test_messages_of_the_package_name_no_options() -> None:
    """Options belong to the command line; a message may name one only inside a whole command: fate densify … --out."""
    wrong = []
    for file in SOURCES:
        if "cli" in file.relative_to(ROOT / "src" / "fate").parts or file.name in ("version.py", "page.py"):
            continue
        text = file.read_text()
        if "--" not in text:
            continue
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Raise | ast.Call)]
        parts = {id(part): part for node in calls for part in ast.walk(node)}
        for part in parts.values():
            if isinstance(part, ast.JoinedStr | ast.Constant):
                text = ast.unparse(part)
                if re.search(r"(^| )--[a-z]", text) and not re.search(r"fate['\"f ]* ?[a-z]*|densify", text):
                    wrong.append(f"{file.name}: {text}")
    assert wrong == []


def test_the_command_line_knows_every_argument_that_messages_name() -> None:
    group: Any = get_command(app)
    every = [*group.commands.values(), *group.commands["bench"].commands.values()]
    options = {option for command in every for parameter in command.params for option in parameter.opts}
    assert {f"--{name.replace('_', '-')}" for name in SAME_NAMES} <= options
    assert {text.split()[0] for text in OTHER_NAMES.values()} <= options
    translated = {*SAME_NAMES, *(text.partition("=")[0] for text in OTHER_NAMES)}
    named = {
        name
        for file in SOURCES
        if "cli" not in file.parts
        for name in re.findall(r"\b(?:pass|give|without|another|fewer) ([a-z_]+)=", file.read_text())
    }
    assert len(named) > 5
    assert named <= translated | {"classes"}  # of a dataset: no command has it


@pytest.mark.parametrize(
    ("python_words", "option_words"),
    [
        ("a.raw: pass sensor=(height, width) to set it", "a.raw: pass --sensor WIDTHxHEIGHT to set it"),
        ("pass sensor=(260, 346)", "pass --sensor 346x260"),
        ('pass out_of_bounds="drop" to skip them', "pass --drop-out-of-bounds to skip them"),
        ('pass unsorted="sort" or time_unit="s"', "pass --sort or --time-unit s"),
        ("without strict=True the rest", "without --strict the rest"),
        ("give hz=(20, 100,)", "give --hz 20 100"),
        ("roi=(1, 2, 3, 4) was given", "--roi 1,2,3,4 was given"),
        ("give run.device=cpu and strategy.labels=DIR", "give run.device=cpu and strategy.labels=DIR"),
        ("/a/out=b/c.raw: no such file", "/a/out=b/c.raw: no such file"),
    ],
)
def test_arguments_become_options(python_words: str, option_words: str) -> None:
    assert with_options(python_words) == option_words


def test_dir_names_everything_once() -> None:
    names = dir(fate)
    assert len(names) == len(set(names))
    assert set(fate.__all__) <= set(names)
