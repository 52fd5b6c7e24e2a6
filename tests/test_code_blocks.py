"""The Python code in README.md and docs/ runs as it stands, page by page, each page in one namespace.

The files that the pages name (drive.raw, gen1/, fate-s.safetensors, …) are small stand-ins, made once.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fate
from fate.models.checkpoints import save_model
from tests.data.test_rvt_layout import write_sequence

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
PAGES = [
    page
    for page in ("README.md", *sorted(file.relative_to(ROOT).as_posix() for file in (ROOT / "docs").rglob("*.md")))
    if BLOCK.search((ROOT / page).read_text(encoding="utf-8"))
]
#: Packages of extras that the code of a page needs.
EXTRAS = {
    "docs/guides/export.md": ("onnx", "onnxruntime", "onnxscript"),
    "docs/guides/runtimes.md": ("onnx", "onnxruntime", "onnxscript"),
    "docs/guides/python.md": ("pandas", "supervision"),
}
#: The page whose code always runs; that of all others is in slow tests.
FAST = "README.md"
#: What a block says → why it cannot run here.
NEEDS_MORE = {
    "sockets": "needs a program at the other end of a socket",
    "CameraSource": "needs a camera",
    'device="cuda"': "needs a GPU",
}
#: Work that a page asks for → the same with less of it.
SMALLER: dict[str, str] = {
    "recordings=12, seconds=10.0": "recordings=1, seconds=0.2",
    "workers=4": "workers=0",
    '"dataset.yaml", (20, 200)': '"dataset.yaml", (20,)',
    '"gen1-dense", (40, 80, 100, 200)': '"gen1-dense", (200,)',
    '"fate-s", ("car", "pedestrian"), recording.sensor': '"fate-s-nano", ("car", "pedestrian"), recording.sensor',
    'fate.Scene(seed=7, profile="gen1", seconds=10)': 'fate.Scene(seed=7, profile="gen1", seconds=2)',
}
#: The tutorial with less data and fewer steps; one labelled time of each split suffices.
SMALLER |= {
    "recordings=40, seconds=2.5": "recordings=3, seconds=1.6",
    "epochs=4,": 'overrides=["run.epochs=1", "run.epoch_steps=2", "data.random=1", "data.streams=1"],',
    "hz=(20, 100), split": "hz=(20,), split",
    '"*_td.dat"))[9]': '"*_td.dat"))[0]',
    "before[39]": "before[-1]",
    "after[39]": "after[-1]",
}
SENSOR = (240, 304)
CLASSES = ("car", "pedestrian")


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages read."""
    place = tmp_path_factory.mktemp("pages")
    short, long = square(120_000), square(1_200_000)
    for name in ("drive.raw", "drive.dat", "drive.npz", "drive_td.dat", "old.dat"):
        fate.write_events(place / name, short)
    rows = (f"{t / 1e6:.6f},{x},{y},{p}" for t, x, y, p in zip(short.t_us, short.x, short.y, short.p, strict=True))
    (place / "table.csv").write_text("\n".join(list(rows)[:200]) + "\n")
    thing = "<name>person</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
    (place / "frame0000009.xml").write_text(f"<annotation><object>{thing}</object></annotation>")
    box = '<box label="car" source="manual" occluded="0" xtl="1" ytl="2" xbr="30" ybr="40" z_order="0"/>'
    image = f'<image id="0" name="drive_000000.png" width="304" height="240">{box}</image>'
    (place / "annotations.xml").write_text(f"<annotations><version>1.1</version>{image}</annotations>")
    few, many = boxes(short.t_us[-1], 20_000), boxes(long.t_us[-1], 50_000)
    fate.write_labels(place / "drive_bbox.npy", few)
    for folder in ("gen1/train", "test", "their_predictions"):
        (place / folder).mkdir(parents=True)
    fate.write_events(place / "gen1/train/drive_3_td.dat", long)
    fate.write_labels(place / "gen1/train/drive_3_bbox.npy", many)
    fate.write_labels(place / "test/drive_3_bbox.npy", many)
    fate.write_labels(place / "test/drive_3_truth.npz", boxes(long.t_us[-1], 5_000))
    fate.write_labels(place / "their_predictions/drive_3.npz", many)
    table = np.load(place / "test/drive_3_bbox.npy")
    np.savez(place / "boxes.npz", **{"drive_3|gt": table, "drive_3|dt": table})
    write_sequence(place / "rvt/gen1/val/sequence")
    (place / "dataset.yaml").write_text("classes: [car, pedestrian]\nrecordings: {test: gen1/train}\n")
    torch.manual_seed(0)
    model = fate.build_model("fate-s-nano", CLASSES, SENSOR, dims=(8, 16, 32, 64), head_dim=8)
    save_model(model, place / "fate-s.safetensors")
    return place


def square(length_us: int) -> fate.Events:
    """A square that moves to the right, 200 events a ms."""
    random = np.random.default_rng(0)
    count = length_us // 5
    t = np.sort(random.integers(0, length_us, count))
    x = (40 + 100 * t / length_us + random.integers(0, 50, count)).astype(int)
    return fate.Events(t, x, 60 + random.integers(0, 40, count), random.integers(0, 2, count), SENSOR)


def boxes(end_us: int, step_us: int) -> fate.Labels:
    """The square's box, as often as asked for."""
    times = np.arange(step_us, end_us, step_us)
    left = (40 + 100 * times / max(int(end_us), 1)).astype(np.float32)
    top, ones = np.full(len(times), 60, np.float32), np.ones(len(times), np.float32)
    columns: dict[str, Any] = {"class_id": np.zeros(len(times), int), "track_id": np.zeros(len(times), int)}
    return fate.Labels(times, left, top, left + 50, top + 40, score=ones, classes=CLASSES, sensor=SENSOR, **columns)


def blocks(page: str) -> list[tuple[int, str]]:
    """The line each block of a page begins at, and its code with as many lines before it, so that errors name it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = ((text.count("\n", 0, match.start(1)), match[1]) for match in BLOCK.finditer(text))
    return [(line + 1, "\n" * line + code) for line, code in found]


@pytest.mark.parametrize("page", [pytest.param(page, marks=() if page == FAST else pytest.mark.slow) for page in PAGES])
@pytest.mark.filterwarnings("ignore::fate.errors.FateWarning")
def test_the_code_of_a_page_runs_as_it_stands(
    page: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not all(find_spec(name) for name in EXTRAS.get(page, ())):
        pytest.skip(f"needs {', '.join(EXTRAS[page])}")
    place = tmp_path / "work"
    shutil.copytree(files, place, copy_function=os.link)
    monkeypatch.chdir(place)
    namespace: dict[str, Any] = {"__name__": "page"}
    ran = 0
    for _, code in blocks(page):
        if any(word in code for word in NEEDS_MORE):
            continue
        for asked, smaller in SMALLER.items():
            code = code.replace(asked, smaller)  # noqa: PLW2901
        exec(compile(code, str(ROOT / page), "exec"), namespace)
        ran += 1
    assert ran


def test_the_notebook_of_the_tutorial_has_the_text_and_the_code_of_its_page() -> None:
    page = ROOT / "docs/tutorials/new-classes.md"
    content = json.loads(page.with_suffix(".ipynb").read_text(encoding="utf-8"))
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in content["cells"]]
    assert [code for kind, code in cells if kind == "code"] == [code.strip("\n") for _, code in blocks(str(page))]
    make = runpy.run_path(str(ROOT / "scripts/make_notebook.py"))["notebook"]
    assert page.with_suffix(".ipynb").read_text(encoding="utf-8") == make(page)
    assert {(content["nbformat"], cell["metadata"] == {}) for cell in content["cells"]} == {(4, True)}
    for cell in content["cells"]:  # a file that was downloaded alone has no neighbours to link to
        source = "".join(cell["source"])
        assert "](.." not in source
        assert set(re.findall(r"\(attachment:(.*?)\)", source)) == set(cell.get("attachments", ()))


def test_only_what_needs_more_than_this_machine_is_left_out() -> None:
    left_out = [f"{page}:{line}" for page in PAGES for line, code in blocks(page) if any(w in code for w in NEEDS_MORE)]
    assert len(left_out) <= 2, left_out
