"""Work for the tests of jobs, and small commands of SLURM that start each job as a process of this machine."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from fate.errors import FateError, warn
from fate.models.checkpoints import load_model
from fate.models.detector import Detector
from fate.progress import Progress, ignore

#: Commands of SLURM. A job has a folder in $SLURM_FOLDER, with its process group and, when it has ended, its state.
SLURM = {
    "sbatch": """
        if grep -q -- '--partition=closed' "$1"; then
            echo "sbatch: error: invalid partition specified: closed" >&2
            exit 1
        fi
        id=$((100 + $(ls "$SLURM_FOLDER" | wc -l)))
        mkdir "$SLURM_FOLDER/$id"
        cp "$1" "$SLURM_FOLDER/$id/script"
        export SLURM_JOB_ID=$id SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURMD_NODENAME=node$((id % 2 + 1))
        export SLURM_JOB_NODELIST=$SLURMD_NODENAME
        setsid start-job "$SLURM_FOLDER/$id" >/dev/null 2>&1 </dev/null &
        echo "Submitted batch job $id"
    """,
    "start-job": """
        echo $$ >"$1/group"
        while true; do
            bash "$1/script" && state=COMPLETED || state=FAILED
            rm "$1/requeued" || break
        done
        echo $state >"$1/state"
    """,
    "scontrol": """
        touch "$SLURM_FOLDER/$2/requeued"  # scontrol requeue ID
    """,
    "srun": """
        while [[ $1 == --* ]]; do
            if [[ $1 == --output ]]; then out=${2//%j/$SLURM_JOB_ID}; shift; fi
            shift
        done
        SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 exec "$@" >>"${out//%t/0}" 2>&1
    """,
    "sacct": """
        echo "JobID|State|NodeList"
        for job in "$SLURM_FOLDER"/*; do
            echo "$(basename "$job")|$(cat "$job/state" 2>/dev/null || echo RUNNING)|node"
        done
    """,
    "scancel": """
        kill -TERM -- "-$(cat "$SLURM_FOLDER/$1/group")"
    """,
}


def write_slurm(folder: Path) -> dict[str, str]:
    """Write the commands of SLURM, and return the environment in which they are found."""
    (folder / "bin").mkdir(parents=True)
    (folder / "cluster").mkdir()
    for name, text in SLURM.items():
        lines = "\n".join(line.removeprefix("        ") for line in text.splitlines())
        (folder / "bin" / name).write_text(f"#!/bin/bash{lines}\n")
        (folder / "bin" / name).chmod(0o755)
    return {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "SLURM_FOLDER": str(folder / "cluster")}


def describe(folder: Path, name: str, progress: Progress) -> dict[str, Any]:
    """Leave a file, and return facts about this process; names of parts that must have been done are in the name."""
    warn("every part says this")
    for needed in name.split("-after-")[1:]:
        assert (folder / needed).exists(), needed
    progress(1, 2, f"{name} is at work")
    (folder / name).touch()
    facts = ("CUDA_VISIBLE_DEVICES", "SLURMD_NODENAME", "SLURM_JOB_ID")
    return {"process": os.getpid(), **{fact: os.environ.get(fact) for fact in facts}}


def refuse(progress: Progress) -> None:
    """Fail as bad input does."""
    raise FateError("drive.raw: is no recording; give another file")


def kill(progress: Progress) -> None:
    """End as a process does that the system kills."""
    print("reading drive.raw", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def reach_time_limit(folder: Path, progress: Progress) -> str:
    """Get the signal by which SLURM announces the end of a job; the second time, finish."""
    if not (folder / "begun").exists():
        (folder / "begun").touch()
        os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(60)
    return "continued"


def load_unless_first(model: Path, token: Path) -> Detector:
    """Load a detector; the first job that finds the file ``token`` takes it and is killed."""
    if os.environ.get("SUBMITIT_EXECUTOR"):
        with suppress(FileNotFoundError):  # another job has it
            token.unlink()
            kill(ignore)
    return load_model(model)


def sleep(folder: Path, name: str, progress: Progress) -> None:
    """Wait for a signal, and leave a file at the start and at the end."""
    (folder / f"{name}.begun").write_text(str(os.getpid()))
    try:
        time.sleep(300)
    finally:
        (folder / f"{name}.ended").touch()
