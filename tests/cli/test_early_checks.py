"""Bad arguments and missing files are refused before torch is loaded, which takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fate import write_events
from tests.conftest import make_events

#: Runs each command line in one process in which nobody can import torch.
SCRIPT = """
import contextlib, importlib.abc, io, json, sys

class NoTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "pytorch_lightning"):
            raise SystemExit(f"{name} is imported")

sys.meta_path.insert(0, NoTorch())
from fate.cli.main import app
from fate.errors import FateError

answers = []
for arguments in json.load(sys.stdin):
    text = io.StringIO()
    with contextlib.redirect_stderr(text), contextlib.redirect_stdout(text):
        try:
            app(arguments)
        except SystemExit as end:
            code = end.code
        except FateError as error:
            code = 1
            print(error)
    answers.append([code, text.getvalue()])
json.dump(answers, sys.stdout)
"""

#: A command line with DIR for an empty folder and FILE for a recording, the exit code, and facts of the sentence.
CASES: list[tuple[str, int, tuple[str, ...]]] = [
    ("detect DIR/nothere.raw", 1, ("nothere.raw", "no such file")),
    ("detect FILE --hz 5000", 2, ("--hz", "5000", "1000")),
    ("detect FILE --hz twenty", 2, ("--hz", "twenty")),
    ("detect FILE --hz=", 2, ("--hz", "1000")),
    ("detect FILE --hz 20,40", 2, ("20,40", "one rate")),
    ("detect FILE --slow 4", 2, ("--slow", "--save", "--report")),
    ("detect FILE --save DIR/x.mp4 --rotate 1MB", 2, ("--rotate", "--jsonl", "--csv")),
    ("detect FILE --palette pink", 2, ("--palette", "pink", "coolwarm")),
    ("detect FILE --device gpu", 2, ("--device", "gpu", "auto", "cuda:1")),
    ("detect FILE --acc 50", 2, ("--acc", "50", "50ms")),
    ("detect FILE --window 1ms --hz 20", 2, ("--window", "1ms", "50ms")),
    ("detect FILE --save DIR/x.avi", 2, ("--save", "x.avi", ".mp4")),
    ("detect FILE --model fate-s-tyni", 1, ("fate-s-tyni", "fate-s-tiny")),
    ("detect FILE --model DIR/none.safetensors", 1, ("none.safetensors",)),
    ("detect tcp:9000", 2, ("tcp:9000", "--sensor")),
    ("detect FILE --realtime --model nothing", 1, ("nothing",)),
    ("detect DIR/one.raw DIR/two.raw", 1, ("one.raw", "two.raw", "2 of 2")),
    ("demo --seconds 0", 2, ("--seconds", "0")),
    ("demo --device tpu", 2, ("tpu", "auto")),
    ("demo --model fate-s-tyni", 1, ("fate-s-tiny",)),
    ("evaluate fate-s-nano DIR/nowhere", 1, ("nowhere", "no such")),
    ("evaluate fate-s-nano DIR --protocol coco", 2, ("coco", "custom")),
    ("evaluate fate-s-nano DIR --hz twenty", 2, ("twenty",)),
    ("evaluate fate-s-nano DIR --hz=", 2, ("--hz", "1000")),
    ("evaluate fate-s-nano DIR --device gpu", 2, ("gpu",)),
    ("evaluate DIR/none.safetensors DIR", 1, ("none.safetensors",)),
    ("evaluate DIR/boxes.json DIR", 1, ("boxes.json", "no such")),
    ("evaluate fate-s-nano DIR --shard 5/4", 2, ("5/4",)),
    ("densify fate-s-nano DIR/nowhere --out DIR/o", 1, ("nowhere",)),
    ("densify nothing DIR --out DIR/o", 1, ("nothing",)),
    ("densify fate-s-nano DIR --out DIR/o --device gpu", 2, ("gpu",)),
    ("densify --check DIR/nowhere --labels DIR", 1, ("nowhere",)),
    ("export fate-s-tyni DIR/a.onnx", 1, ("fate-s-tyni",)),
    ("export fate-s-nano DIR/a.onnx --recording DIR/nothere.raw", 1, ("nothere.raw",)),
    ("export fate-s-nano DIR/a.onnx --streams 0", 2, ("--streams", "0")),
    ("import-checkpoint DIR/none.ckpt DIR/o.safetensors", 1, ("none.ckpt",)),
    ("simulate DIR/s --device gpu", 2, ("gpu",)),
    ("simulate DIR/s --recordings 0", 2, ("0",)),
    ("simulate FILE/s", 1, ("not a folder",)),
    ("inspect DIR/nowhere", 1, ("nowhere",)),
    ("inspect DIR --report DIR/page.txt", 1, ("page.txt", ".html")),
    ("bench detect fate-s-tyni", 2, ("fate-s-tyni", "fate-s-tiny")),
    ("bench train DIR/nowhere", 1, ("nowhere",)),
    ("bench encode DIR/nothere.raw", 1, ("nothere.raw",)),
    ("study smoke --device gpu", 2, ("gpu", "cuda")),
    ("study frequency --dataset DIR/nowhere", 1, ("nowhere",)),
    ("train DIR/none.yaml", 1, ("none.yaml",)),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    """Exit code and text of each case, all from one process."""
    folder = tmp_path_factory.mktemp("early")
    write_events(folder / "drive.dat", make_events(500))
    lines = [case.replace("DIR", str(folder)).replace("FILE", str(folder / "drive.dat")).split() for case, *_ in CASES]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(lines), capture_output=True, text=True, check=False,
        env=environment, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not Path(folder / "fate-demo").exists()
    return [(code, text) for code, text in json.loads(done.stdout)]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case for case, *_ in CASES])
def test_refused_without_torch(number: int, answers: list[tuple[int, str]]) -> None:
    _, expected, facts = CASES[number]
    code, text = answers[number]
    assert code == expected, text
    assert "Traceback" not in text
    assert [fact for fact in facts if fact not in text] == [], text
