"""Work on several devices: real processes, and jobs of a SLURM cluster on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from fate.errors import FateError, FateWarning
from fate.workflows.spread import Spread, beside, check_devices, open_spread, run_jobs
from tests.workflows import parts
from tests.workflows.parts import write_slurm

ROOT = Path(__file__).resolve().parents[2]
#: Two parts that wait, as a command would run them.
COMMAND = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start tests with Ctrl-C ignored
from functools import partial
from pathlib import Path
from fate.workflows.spread import open_spread, run_jobs
from tests.workflows import parts
home, devices = Path(sys.argv[1]), sys.argv[2]
spread = open_spread(devices, {"gpus_per_node": 0} if devices.startswith("slurm") else None)
run_jobs({name: partial(parts.sleep, home, name) for name in "ab"}, spread, home / "jobs")
"""
CPU = {"gpus_per_node": 0}  # jobs of SLURM without a GPU

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no process groups and no SLURM")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs find the functions of the tests."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster of two nodes on this machine; returns the folder of its jobs."""
    for name, value in write_slurm(tmp_path_factory.mktemp("slurm") / "here").items():
        monkeypatch.setenv(name, value)
    return Path(os.environ["SLURM_FOLDER"])


@pytest.mark.slow
def test_parts_run_in_processes_of_their_own_after_those_they_depend_on(tmp_path: Path) -> None:
    names = ["c-after-a-after-b", "a", "b"]
    seen: list[tuple[float, float | None, str]] = []
    with pytest.warns(FateWarning, match="every part says this") as warned:
        done = run_jobs(
            {name: partial(parts.describe, tmp_path, name) for name in names}, Spread("cuda", ("3", "GPU-a")),
            tmp_path / "jobs", after={names[0]: {"a", "b"}},
            progress=lambda done, total=1.0, text="", part="", /: seen.append((done, total, text)),
        )  # fmt: skip
    assert done.keys() == set(names)
    assert len({facts["process"] for facts in done.values()} | {os.getpid()}) == 4
    assert {facts["CUDA_VISIBLE_DEVICES"] for facts in done.values()} == {"3", "GPU-a"}
    assert len([each for each in warned if issubclass(each.category, FateWarning)]) == 1  # once, and not once a job
    assert seen[-1] == (3, 3, "3 of 3 jobs done")
    logs = "".join(log.read_text() for log in (tmp_path / "jobs").glob("*_log.out"))
    assert all(f"{name} is at work" in logs for name in names)
    assert not list((tmp_path / "jobs").glob("*.pkl"))


@pytest.mark.slow
def test_every_part_that_failed_is_named_with_its_log_and_the_others_are_done(tmp_path: Path) -> None:
    work = {
        "shard 1/3": parts.refuse,
        "shard 2/3": parts.kill,
        "shard 3/3": partial(parts.describe, tmp_path, "a"),
        "late": partial(parts.describe, tmp_path, "b"),
    }
    with pytest.warns(FateWarning), pytest.raises(FateError) as raised:
        run_jobs(work, open_spread("cpu,cpu,cpu"), tmp_path / "jobs", after={"late": {"shard 1/3"}})
    text = str(raised.value)
    assert "2 of 4 jobs failed, and 1 that depend on them were not started" in text
    assert "shard 1/3: drive.raw: is no recording; give another file (log: " in text
    assert "shard 2/3: it ended without a result, and the last line of its log is 'reading drive.raw' (log: " in text
    assert "the same command goes on" in text
    for log in (piece.split(")")[0] for piece in text.split("(log: ")[1:]):
        assert Path(log).read_text()
    assert (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()


def _wait_for(*files: Path, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not all(file.exists() for file in files):
        assert time.monotonic() < end, f"{files} did not come"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["cpu,cpu", "slurm:2"])
def test_ctrl_c_stops_all_jobs_in_order(tmp_path: Path, devices: str, slurm: Path) -> None:
    command = [sys.executable, "-c", COMMAND, str(tmp_path), devices]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True) as started:
        _wait_for(tmp_path / "a.begun", tmp_path / "b.begun")
        os.killpg(started.pid, signal.SIGINT)  # as a terminal does: every process of the group gets it
        _, text = started.communicate(timeout=60)
    assert started.returncode != 0
    assert "stops when all jobs have ended" in text
    assert text.count("Traceback") == 1  # that of the script; jobs print none
    _wait_for(tmp_path / "a.ended", tmp_path / "b.ended")
    if devices == "cpu,cpu":
        assert {file.suffix for file in (tmp_path / "jobs").iterdir()} == {".out"}


@pytest.mark.slow
def test_jobs_end_when_the_command_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMMAND, str(tmp_path), "cpu,cpu"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as started:
        _wait_for(tmp_path / "a.begun", tmp_path / "b.begun")
        started.kill()
    _wait_for(tmp_path / "a.ended", tmp_path / "b.ended")


@pytest.mark.slow
def test_parts_are_jobs_of_two_nodes_of_a_slurm_cluster(tmp_path: Path, slurm: Path) -> None:
    settings = {"partition": "gpu", "time": "30", "reservation": "us", "cpus_per_task": "2", "gpus_per_node": 0}
    work = {name: partial(parts.describe, tmp_path, name) for name in ("a", "b")}
    with pytest.warns(FateWarning):
        done = run_jobs(work, open_spread("slurm:2", settings), tmp_path / "jobs")
    assert {facts["SLURMD_NODENAME"] for facts in done.values()} == {"node1", "node2"}
    script = (slurm / "100" / "script").read_text()
    for line in ("partition=gpu", "time=30", "reservation=us", "cpus-per-task=2", "job-name=fate"):
        assert f"#SBATCH --{line}\n" in script
    assert "gpus" not in script


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="jobs on this machine find a GPU")
def test_a_slurm_job_asks_for_a_gpu_and_says_if_it_has_none(tmp_path: Path, slurm: Path) -> None:
    with pytest.raises(FateError, match="a: torch finds no GPU on .*; set gpus_per_node=0 for jobs on the CPU"):
        run_jobs({"a": parts.kill}, open_spread("slurm:1"), tmp_path / "jobs")
    assert "#SBATCH --gpus-per-node=1\n" in (slurm / "100" / "script").read_text()


def test_what_sbatch_refuses_is_one_sentence(tmp_path: Path, slurm: Path) -> None:
    spread = open_spread("slurm:2", {"partition": "closed"})
    with pytest.raises(FateError, match="a: cannot be started .*invalid partition specified: closed"):
        run_jobs({"a": parts.refuse}, spread, tmp_path / "jobs")


@pytest.mark.slow
def test_a_slurm_job_continues_after_its_time_limit(tmp_path: Path, slurm: Path) -> None:
    work = {"a": partial(parts.reach_time_limit, tmp_path)}
    assert run_jobs(work, open_spread("slurm:1", CPU), tmp_path / "jobs") == {"a": "continued"}
    assert [job.name for job in slurm.iterdir()] == ["100"]


@pytest.mark.slow
def test_a_slurm_job_that_is_killed_is_named(tmp_path: Path, slurm: Path) -> None:
    with pytest.raises(FateError, match="shard 1/1: it ended without a result, .*'reading drive.raw'"):
        run_jobs({"shard 1/1": parts.kill}, open_spread("slurm:1", CPU), tmp_path / "jobs")


def test_a_machine_without_slurm_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FateError, match="no command srun; run this on a machine of the cluster"):
        run_jobs({"a": parts.refuse}, open_spread("slurm:1"), tmp_path / "jobs")


@pytest.mark.parametrize(
    "text", ["", "none", "cuda", "cpu,cuda:0", "cuda:0,", "slurm", "slurm:0", "slurm:many", "all,cpu"]
)
def test_texts_that_name_no_devices_are_refused(text: str) -> None:
    with pytest.raises(FateError, match=r"was given; expected all .*cuda:0,cuda:1.*cpu,cpu.*slurm:8"):
        check_devices(text)


def test_devices_are_found_and_settings_of_slurm_are_for_slurm() -> None:
    assert len(open_spread("cpu,cpu", jobs=3).slots) == 6
    assert open_spread("cpu,cpu").shards(5) == [(1, 2), (2, 2)]
    assert open_spread("cpu,cpu").shards(1) == [(1, 1)]
    assert open_spread("slurm:2").device == open_spread("slurm:2", {"gres": "gpu:1"}).device == "cuda"
    without = open_spread("slurm:2", {"gpus_per_node": "0"})
    assert (without.device, without.slurm) == ("cpu", {"time": 1440})
    assert (open_spread("slurm:2", {"cpus-per-task": "8"}).slurm or {})["cpus_per_task"] == "8"
    for settings, named in (({"nodes": "2"}, "each job is one process"), ({"time": "1-0"}, "expected whole minutes")):
        with pytest.raises(FateError, match=named):
            open_spread("slurm:2", settings)
    with pytest.raises(FateError, match="they go with slurm:N"):
        open_spread("cpu,cpu", {"partition": "gpu"})
    assert beside("out/result.json").name == "result-jobs"
    assert beside("out/gen1.v2").name == "gen1.v2-jobs"


def test_gpus_are_those_that_this_process_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert open_spread("all").slots == ("0", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert open_spread("all").slots == ("GPU-a", "GPU-b")
    assert open_spread("cuda:1").slots == ("GPU-b",)
    with pytest.raises(FateError, match="cuda:2 was given; this machine has cuda:0 to cuda:1"):
        open_spread("cuda:0,cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(FateError, match="finds no CUDA GPU on this machine; give cpu,cpu"):
        open_spread("all")
