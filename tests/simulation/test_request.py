"""What a dataset may be asked to be, and how its recordings are told apart."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fate import FateError
from fate.simulation.art.catalogue import SPLITS
from fate.simulation.render.scene import PROFILES
from fate.simulation.writing import request
from fate.simulation.writing.request import SHARES, Request, scene_seed, splits_in_turn
from fate.workflows.simulate import simulate


@given(st.integers(1, 300), st.integers(0, 300), st.tuples(*[st.floats(0.05, 1)] * 3))
def test_more_recordings_never_move_one_to_another_split(few: int, more: int, shares: Any) -> None:
    assert splits_in_turn(few + more, shares)[:few] == splits_in_turn(few, shares)


@given(st.integers(3, 2000))
def test_splits_get_their_shares_and_each_at_least_one(recordings: int) -> None:
    found = splits_in_turn(recordings)
    for split, share in zip(SPLITS, SHARES, strict=True):
        assert found.count(split) >= 1
        assert abs(found.count(split) - share * recordings) < 2


@given(st.integers(0, 2**70), st.integers(0, 10**6), st.integers(0, 10**6))
def test_seeds_of_splits_never_meet_and_fit_a_json_number(seed: int, one: int, other: int) -> None:
    train, val = scene_seed(seed, "train", one), scene_seed(seed, "val", other)
    assert train != val
    assert 0 <= train < 2**53
    assert train == scene_seed(seed, "train", one)


def test_seeds_differ_between_recordings_and_between_datasets() -> None:
    seeds = [job.seed for seed in range(20) for job in Request(seed=seed, recordings=100).jobs()]
    assert len(set(seeds)) == len(seeds)


@given(st.integers(0, 2**70), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_of_cameras_at_rest_keeps_those_that_were(seed: int, one: float, other: float) -> None:
    fewer, more = (
        {job.index for job in Request(seed=seed, recordings=40, at_rest=share).jobs() if job.at_rest}
        for share in sorted((one, other))
    )
    assert fewer <= more


def test_the_share_of_cameras_at_rest_is_met_in_every_split() -> None:
    jobs = Request(recordings=2000, at_rest=0.3).jobs()
    for split in SPLITS:
        assert np.mean([job.at_rest for job in jobs if job.split == split]) == pytest.approx(0.3, abs=0.07)
    assert not any(job.at_rest for job in Request(recordings=100).jobs())
    assert all(job.at_rest for job in Request(recordings=100, at_rest=1).jobs())
    assert [job.seed for job in jobs] == [job.seed for job in Request(recordings=2000).jobs()]


def test_profiles_are_those_that_scenes_have() -> None:
    assert tuple(request.PROFILES) == tuple(PROFILES)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"recordings": 0}, "number of recordings is 0; give a whole number from 1 to"),
    ({"recordings": 2.5}, "whole number"),
    ({"recordings": True}, "whole number"),
    ({"seconds": 0}, "a number from 0.01 to 3600"),
    ({"seconds": float("nan")}, "from 0.01"),
    ({"seconds": 3601}, "to 3600"),
    ({"seconds": "long"}, "to 3600"),
    ({"at_rest": 1.5}, "the share of cameras at rest is 1.5; give a number from 0 to 1"),
    ({"at_rest": float("nan")}, "from 0 to 1"),
    ({"at_rest": True}, "from 0 to 1"),
    ({"at_rest": 0.5, "profile": "mixed"}, "at rest is 0.5; the profile mixed draws where each camera is"),
    ({"profile": "gen9"}, "one of gen1, 1mpx"),
    ({"seed": -1}, "the seed is -1"),
    ({"device": "tpu"}, "one of cpu, cuda"),
    ({"threads": 0}, "threads is 0"),
    ({"profile": ["gen1"]}, "one of gen1, 1mpx"),
    ({"profile": None}, "one of gen1, 1mpx"),
    ({"seconds": None}, "to 3600"),
    ({"seed": None}, "the seed is None"),
    ({"device": None}, "one of cpu, cuda"),
    ({"threads": "two"}, "threads is 'two'"),
    ({"preview": "no"}, "preview is 'no'; give True or False"),
    ({"shares": (0, 0, 0)}, "three numbers"),
    ({"shares": None}, "the shares are None; give three numbers"),
    ({"shares": 0.7}, "three numbers"),
    ({"shares": "abc"}, "the shares are 'abc'"),
    ({"shares": (1, None, 1)}, "three numbers"),
    ({"shares": (0.5, 0.5)}, "three numbers"),
    ({"shares": (1, -1, 1)}, "three numbers"),
    ({"profile": "1mpx", "recordings": 900_000, "seconds": 3600}, "GB are free"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD)
def test_impossible_arguments_are_one_sentence_and_nothing_is_made(
    tmp_path: Path, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(FateError, match=words):
        simulate(tmp_path / "new" / "set", **arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        (None, "None: no folder can be there"),
        (7, "7: no folder can be there"),
        ("n" * 256, "no folder can be there .*too long"),
        ("/".join(["n" * 200] * 30), "no folder can be there .*too long"),
    ],
)
def test_a_folder_that_can_be_none_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Any, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FateError, match=words) as caught:
        simulate(folder, 1, 0.1)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="there is no /proc on this system")
@pytest.mark.parametrize("folder", ["/proc/drives", "/proc/self/drives/more"])
def test_proc_is_no_place_for_a_dataset(folder: str) -> None:
    with pytest.raises(FateError, match=rf"^{folder}: no folder can be made in /proc.* on a disk that can be written$"):
        simulate(folder, 1, 0.1)


def test_cuda_is_refused_where_there_is_none(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA GPU")
    with pytest.raises(FateError, match="no CUDA GPU"):
        simulate(tmp_path / "set", device="cuda")


def test_bad_arguments_are_refused_without_loading_torch(tmp_path: Path) -> None:
    code = f"""
        import sys
        from fate.errors import FateError
        from fate.workflows.simulate import simulate
        try:
            simulate({str(tmp_path / "set")!r}, recordings=0)
        except FateError:
            print("torch" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
