"""Checkpoints, replaced whole, and stopping in order when a signal asks for it."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, Trainer
from torch import distributed

from fate.errors import FateError
from fate.models.checkpoints import save_model
from fate.processes import STOP_SIGNALS, existing_signals, own_rank
from fate.training.config import TrainConfig
from fate.training.guard import Guard
from fate.training.metrics import stepped
from fate.training.module import TrainingModule
from fate.training.run_directory import RunDirectory
from fate.training.together import processes


class Checkpoints(Callback):
    """``last.ckpt`` and ``last.safetensors``, replaced whole; a stop asked for by signal is obeyed after a step."""

    def __init__(self, run: RunDirectory, config: TrainConfig, guard: Guard) -> None:
        self.run, self.config, self.guard = run, config, guard
        self.stop_asked = self.queue_again = False
        self.saved_at = -1
        self.failed: str | None = None

    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        """From now on SIGTERM and Ctrl-C mean: save, then stop; SIGUSR1: and go on in another job.

        The engine puts back what signals meant before when it is done.
        """
        with suppress(ValueError):  # signals can be listened to in the main thread alone
            for number in STOP_SIGNALS:
                signal.signal(number, self._asked)

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save when it is time."""
        if not stepped(trainer, batch_idx):
            return
        step, run = trainer.global_step, self.config.run
        stop = self.stop_asked if processes() == 1 else step % run.log_every == 0 and _anyone(self.stop_asked, module)
        if stop:
            trainer.should_stop = True
        if stop or step % run.save_every == 0 or step >= self.config.steps:
            self.save(trainer, module)

    def save(self, trainer: Trainer, module: TrainingModule) -> None:
        """Write both files; where that fails, the last good ones stay and training goes on."""
        self.guard.look()
        checkpoint = Path(os.path.realpath(self.run.checkpoint))  # where it is a link, its file is replaced
        draft = checkpoint.with_name(".last.ckpt.part")
        try:
            self._write(trainer, draft)
            if trainer.is_global_zero:
                _to_disk(draft)
                os.replace(draft, checkpoint)
                save_model(module.teacher, self.run.folder / "last.safetensors", facts=self._facts(trainer))
        except (OSError, RuntimeError, FateError) as error:
            if isinstance(error, RuntimeError) and "file" not in str(error).lower():
                raise
            self.failed = " ".join(str(error).split())
            self._say(
                f"step {trainer.global_step}: no checkpoint could be written ({self.failed}); the last good one stays"
            )
        else:
            self.saved_at, self.failed = trainer.global_step, None
        finally:
            if trainer.is_global_zero:
                with suppress(OSError):
                    draft.unlink(missing_ok=True)

    def _write(self, trainer: Trainer, draft: Path) -> None:
        """Every process has a share in it: the first writes, and they leave together, also where writing fails."""
        try:
            trainer.save_checkpoint(draft)
        except (OSError, RuntimeError):
            if trainer.is_global_zero:
                trainer.strategy.barrier()  # the others wait there already
            raise

    def _say(self, text: str) -> None:
        print(text, flush=True)
        self.run.log(text)

    def _facts(self, trainer: Trainer) -> dict[str, Any]:
        return {"training": {"step": trainer.global_step, "strategy": self.config.strategy.name,
                             "seed": self.config.run.seed, "data": self.config.data.path,
                             "fingerprint": self.config.fingerprint()}}  # fmt: skip

    def on_train_end(self, trainer: Trainer, module: Any) -> None:
        """Where SLURM has announced the end of the time (``--signal=USR1@90``), the job queues again."""
        job = os.environ.get("SLURM_JOB_ID")
        if self.queue_again and job and trainer.is_global_zero and self.saved_at == trainer.global_step:
            done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, check=False)
            self._say(f"job {job} queues again" if done.returncode == 0 else f"scontrol requeue {job}: {done.stderr}")

    def _asked(self, number: int, frame: Any) -> None:
        if number == signal.SIGINT:
            if self.stop_asked:
                raise KeyboardInterrupt
            if own_rank() == 0:  # written as it is: what was printed half must not be waited for in here
                os.write(2, b"\nstops after this step, and saves; again Ctrl-C: at once\n")
        self.stop_asked = True
        self.queue_again = number in existing_signals("SIGUSR1")


def _to_disk(file: Path) -> None:
    """Wait until the file is on the disk: otherwise its new name could lead to an empty file after a power cut."""
    with file.open("r+b") as written:  # Windows refuses to sync a file that is open for reading only
        os.fsync(written.fileno())


def _anyone(asked: bool, module: TrainingModule) -> bool:
    flag = torch.tensor([float(asked)], device=module.device)
    distributed.all_reduce(flag)
    return bool(flag.item())
