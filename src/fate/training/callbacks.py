"""Lightning callbacks that run after each training step.

Guard        stops the run if the loss is not finite, and saves the batch
Metrics      writes means over some steps to metrics.jsonl, log.txt and the loggers, and reports progress
Checkpoints  writes last.ckpt and last.safetensors, and stops the run after a signal
Validation   evaluates the teacher at several rates and keeps the best weights
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Callback, Trainer
from torch import Tensor, distributed

from fate.boxes.labels import Labels
from fate.data.dataset import Dataset
from fate.data.loading import ClipBatch
from fate.data.manifests import simulated_sensors
from fate.encoding.batch import COLUMNS, EventBatch
from fate.errors import FateError
from fate.evaluation.evaluate import AtRate, Evaluation, evaluate
from fate.inference.running import at_once
from fate.models.checkpoints import save_model
from fate.processes import STOP_SIGNALS, own_rank
from fate.progress import Progress
from fate.training.config import TrainConfig
from fate.training.loggers import Loggers
from fate.training.module import TrainingModule
from fate.training.run_directory import RunDirectory
from fate.training.several_processes import processes

#: Longest time between two reports of progress, in seconds.
SHOW_EVERY_S = 10.0
METRIC = "AP50:95"
#: Draws labels and predictions at one rate into a picture file.
DrawSamples = Callable[[AtRate, Dataset, Path], None]
#: Draws the learning curves of a run into its folder.
DrawCurves = Callable[[Path], None]


class Guard(Callback):
    """Checks every loss; the first of the callbacks.

    Reading a loss waits for the GPU, so there the loss of a step is read during the next one, but always before weights
    are saved.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.ended = 0.0  #: time at which the last step ended, seconds
        self._pending: tuple[Tensor, Any, ClipBatch, int] | None = None

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: ClipBatch, batch_idx: int) -> None:
        """Check the previous loss and keep this one."""
        self.check()
        finite, arrived = torch.isfinite(outputs["loss"].detach()).all(), None
        if finite.device.type == "cuda":
            finite = torch.empty((), dtype=torch.bool, pin_memory=True).copy_(finite, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        self._pending = finite, arrived, batch, trainer.global_step
        if arrived is None:
            self.check()
        self.ended = time.perf_counter()

    def on_train_end(self, trainer: Trainer, module: Any) -> None:
        """Check the loss of the last step."""
        self.check()

    def check(self) -> None:
        """Stop the run if the last loss is not finite."""
        if self._pending is None:
            return
        good, arrived, batch, step = self._pending
        self._pending = None
        if arrived is not None:
            arrived.synchronize()
        if bool(good):
            return
        path = self.run.folder / f"bad-batch-{step}.npz"
        kept = f"its batch was saved as {path.name}"
        try:
            save_batch(path, batch)
        except OSError as error:
            kept = f"its batch could not be saved ({error.strerror})"
        older = f", and the last good state is {self.run.checkpoint.name}" if self.run.checkpoint.exists() else ""
        raise FateError(
            f"{self.run.folder}: the loss of step {step} is not a number; {kept}{older}; try a smaller optimiser.lr, or"
            " run.precision=float32"
        )


def save_batch(path: Path, batch: ClipBatch) -> None:
    """Write a batch as plain arrays: its events or images, its clips, and a row for each label."""
    labels = {window: table for window, table in enumerate(batch.labels) if table is not None}
    columns: dict[str, Any] = {"images": batch.events}
    if isinstance(batch.events, EventBatch):
        columns = {name: getattr(batch.events, name) for name in COLUMNS}
    clips = [[clip.recording, clip.hz, clip.first, clip.steps, clip.begins] for clip in batch.clips]
    counts = [len(table) for table in labels.values()]
    np.savez_compressed(
        path,
        steps=batch.steps,
        clips=np.array(clips, np.float64),
        labelled_windows=np.array(list(labels), np.int64),
        label_window=np.repeat(np.array(list(labels), np.int64), np.array(counts, np.int64)),
        label_boxes=np.concatenate([np.zeros((0, 4), np.float32), *(table.boxes for table in labels.values())]),
        label_class=np.concatenate([np.zeros(0, np.int32), *(table.class_id for table in labels.values())]),
        label_score=np.concatenate([np.zeros(0, np.float32), *(table.score for table in labels.values())]),
        **{name: column.cpu().numpy() for name, column in columns.items()},
    )


class Metrics(Callback):
    """A line of ``metrics.jsonl`` every few steps; the last of the callbacks, so that their time is not counted.

    Loss terms are summed on their device and read once a line, because reading waits for the GPU.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: TrainConfig,
        guard: Guard,
        progress: Progress | None = None,
        loggers: Loggers | None = None,
    ) -> None:
        self.run, self.config, self.guard, self.progress = run, config, guard, progress
        self.loggers = loggers or Loggers(config, run)
        self._shown = time.perf_counter()
        self._begin()

    def _begin(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._rates: dict[float, int] = {}
        self._count, self._windows, self._data_s, self._step_s = 0, 0, 0.0, 0.0
        self._last = time.perf_counter()

    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        """Start the clock."""
        self._begin()

    def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        """Add the time that was spent on waiting for the batch."""
        now = time.perf_counter()
        self._data_s, self._last = self._data_s + now - self._last, now
        groups = trainer.optimizers[0].param_groups  # the backbone may have a lower rate than the other layers
        self._lr = max(group["lr"] for group in groups)  # after the step it is the next one's

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: ClipBatch, batch_idx: int) -> None:
        """Add the batch to the sums; every few steps, write a line."""
        terms = {**module.last_terms, "loss": outputs["loss"].detach() * self.config.run.accumulate}
        for name, term in terms.items():
            self._sums[name] = self._sums[name] + term if name in self._sums else term.clone()
        self._count += 1
        self._windows += batch.steps * len(batch.clips)
        for clip in batch.clips:
            self._rates[clip.hz] = self._rates.get(clip.hz, 0) + 1
        self._step_s += self.guard.ended - self._last
        if trainer.global_step % self.config.run.log_every == 0 and stepped(trainer, batch_idx):
            self._write(trainer)
        elif time.perf_counter() - self._shown >= SHOW_EVERY_S:
            step_s = (self._data_s + self._step_s) / self._count * self.config.run.accumulate
            self._report(trainer, f"{step_s:.2f} s a step")
        self._last = time.perf_counter()

    def teardown(self, trainer: Trainer, module: Any, stage: str) -> None:
        """Close the loggers, also if training failed; their threads would lose the last lines when Python ends."""
        self.loggers.close()

    def _write(self, trainer: Trainer) -> None:
        now = time.perf_counter()
        sums = torch.stack([total.float() for total in self._sums.values()])
        if processes() > 1:
            distributed.all_reduce(sums)
        means = dict(zip(self._sums, (sums / processes() / self._count).tolist(), strict=True))
        spent = self._data_s + self._step_s + time.perf_counter() - now  # reading waited for running steps
        line = {
            "step": trainer.global_step,
            "epoch": (trainer.global_step - 1) // self.config.run.epoch_steps,
            "lr": self._lr,
            **{name: value for name, value in means.items() if math.isfinite(value)},
            "windows_per_s": self._windows * processes() / spent,
            "waiting_for_data": self._data_s / spent,
            "step_s": spent / self._count * self.config.run.accumulate,
            "rates": {f"{hz:g}": self._rates[hz] for hz in sorted(self._rates)},
        }
        if trainer.is_global_zero:
            self.run.add_metrics(line)
            numbers = {name: value for name, value in line.items() if isinstance(value, float)}
            self.loggers.log(numbers, trainer.global_step)
        speed = f"{line['step_s']:.2f} s a step, {line['waiting_for_data']:.0%} for data"
        text = f"loss {means['loss']:.3f} · {speed}"
        if trainer.is_global_zero:
            self.run.log(f"step {trainer.global_step} of {self.config.steps}: {text}")
        self._report(trainer, text)
        self._begin()

    def _report(self, trainer: Trainer, text: str) -> None:
        """Report progress; on a slow machine also between two lines of metrics."""
        self._shown = time.perf_counter()
        if trainer.is_global_zero and self.progress is not None:
            self.progress(trainer.global_step, self.config.steps, text)


def stepped(trainer: Trainer, batch_idx: int) -> bool:
    """Whether the batch ended with a step of the optimiser."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0


def training_facts(config: TrainConfig, dataset: Dataset) -> dict[str, Any]:
    """The facts about a training on a dataset that a file of weights holds; the step is added to them."""
    facts: dict[str, Any] = {
        "strategy": config.strategy.name, "seed": config.run.seed, "data": config.data.path,
        "downscale": dataset.downscale,
    }  # fmt: skip
    names = [recording.name for recording in dataset.recordings]
    if sensors := simulated_sensors(dataset.root, names):  # a stream of such a sensor needs no warning
        facts["sensors"] = [list(size) for size in sorted({*sensors, dataset.sensor})]
    return facts


class Checkpoints(Callback):
    """Writes ``last.ckpt`` and ``last.safetensors`` atomically; after a signal, stops at the end of a step."""

    def __init__(self, run: RunDirectory, config: TrainConfig, guard: Guard, facts: Mapping[str, Any]) -> None:
        """``facts`` are those of :func:`training_facts`."""
        self.run, self.config, self.guard, self.facts = run, config, guard, facts
        self.stop_asked = self.queue_again = False
        self.saved_at = -1
        self.failed: str | None = None

    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        """Handle signals until the end of training: SIGTERM and Ctrl-C save and stop, SIGUSR1 also queues again."""
        with suppress(ValueError):  # only the main thread can handle signals
            for number in STOP_SIGNALS:
                signal.signal(number, self._asked)

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save every few steps, after a signal and at the end."""
        if not stepped(trainer, batch_idx):
            return
        step, run = trainer.global_step, self.config.run
        stop = self.stop_asked
        if processes() > 1:  # all of them stop after the same step
            stop = step % run.log_every == 0 and trainer.strategy.reduce_boolean_decision(self.stop_asked, all=False)
        if stop:
            trainer.should_stop = True
        if stop or step % run.save_every == 0 or step >= self.config.steps:
            self.save(trainer, module)

    def save(self, trainer: Trainer, module: TrainingModule) -> None:
        """Write both files; if that fails, the previous files stay and training continues."""
        self.guard.check()
        checkpoint = Path(os.path.realpath(self.run.checkpoint))  # the file behind a link is replaced
        draft = checkpoint.with_name(".last.ckpt.part")
        try:
            try:  # all processes save together and the first one writes; all of them continue, also if writing fails
                trainer.save_checkpoint(draft)
            except (OSError, RuntimeError):
                if trainer.is_global_zero:
                    trainer.strategy.barrier()  # the others wait there already
                raise
            if trainer.is_global_zero:
                with draft.open("r+b") as written:  # Windows refuses to sync a file that is open for reading only
                    os.fsync(written.fileno())  # or a power cut after the rename could leave an empty file
                os.replace(draft, checkpoint)
                about = {"step": trainer.global_step, **self.facts, "fingerprint": self.config.fingerprint()}
                save_model(module.teacher, self.run.folder / "last.safetensors", facts={"training": about})
        except (OSError, RuntimeError, FateError) as error:
            if isinstance(error, RuntimeError) and "file" not in str(error).lower():
                raise
            self.failed = " ".join(str(error).split())
            self.run.announce(
                f"step {trainer.global_step}: no checkpoint could be written ({self.failed}); the last good one stays"
            )
        else:
            self.saved_at, self.failed = trainer.global_step, None
        finally:
            if trainer.is_global_zero:
                with suppress(OSError):
                    draft.unlink(missing_ok=True)

    def on_train_end(self, trainer: Trainer, module: Any) -> None:
        """Queue the job again if SLURM has announced its end (``--signal=USR1@90``)."""
        job = os.environ.get("SLURM_JOB_ID")
        if self.queue_again and job and trainer.is_global_zero and self.saved_at == trainer.global_step:
            done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, check=False)
            self.run.announce(
                f"job {job} queues again" if done.returncode == 0 else f"scontrol requeue {job}: {done.stderr}"
            )

    def _asked(self, number: int, frame: Any) -> None:
        if number == signal.SIGINT:
            if self.stop_asked:
                raise KeyboardInterrupt
            if own_rank() == 0:  # print could wait for a lock that the interrupted code holds
                os.write(2, b"\nstops after this step, and saves; again Ctrl-C: at once\n")
        self.stop_asked = True
        self.queue_again = number == getattr(signal, "SIGUSR1", None)


def _is_better(score: float | None, best: float | None) -> bool:
    return score is not None and (best is None or score > best)


class Validation(Callback):
    """Evaluates the teacher. Each process detects in its share of the recordings, and the first one compares the
    predictions with the labels. Validation leaves the generators of training unchanged.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: TrainConfig,
        dataset: Dataset,
        draw_samples: DrawSamples | None = None,
        draw_curves: DrawCurves | None = None,
        loggers: Loggers | None = None,
        compare_with_start: bool = False,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """With ``compare_with_start``, evaluate the weights that a run starts from, too.

        ``facts`` are those of :func:`training_facts`.
        """
        self.run, self.config, self.dataset, self.facts = run, config, dataset, facts or {}
        self.draw_samples, self.draw_curves = draw_samples, draw_curves
        self.loggers = loggers or Loggers(config, run)
        self.compare_with_start = compare_with_start
        self.before: float | None = None  #: score before the first step
        self.best: float | None = None  #: highest score so far
        self._everyone: distributed.ProcessGroup | None = None

    def setup(self, trainer: Trainer, module: Any, stage: str) -> None:
        """Make the group that exchanges predictions and waits for the slowest process, which may take hours on 1Mpx.

        Steps keep the shorter limit of Lightning (half an hour), so that a process that hangs ends the run earlier.
        """
        if processes() > 1:
            self._everyone = distributed.new_group(timeout=timedelta(hours=12), backend="gloo")

    def state_dict(self) -> dict[str, Any]:
        """State for the checkpoint."""
        return {"best": self.best, "before": self.before}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.best, self.before = state_dict["best"], state_dict.get("before")

    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        """Evaluate the weights that the run starts from, so that the gain can be reported; they are not kept."""
        if self.compare_with_start and trainer.global_step == 0:
            found = self.evaluate(module)
            if found is not None:
                self.before, _ = self.record(found, 0)
            if self._everyone is not None:
                distributed.barrier(self._everyone)

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Validate every few epochs and at the end."""
        step, run = trainer.global_step, self.config.run
        if not stepped(trainer, batch_idx):
            return
        if step % (run.validate_every * run.epoch_steps) == 0 or step == self.config.steps:
            found = self.evaluate(module)
            if found is not None:
                self.keep(found, module, step)
            if self._everyone is not None:
                distributed.barrier(self._everyone)

    def evaluate(self, module: TrainingModule) -> Evaluation | None:
        """Evaluate the teacher; None in all processes but the first."""
        device, hz = module.device, self.config.run.validate_hz
        many, count = device.type == "cuda", processes()
        # as many windows as a training step has: they fit in the memory that training leaves
        windows = self.config.batch_size * self.config.data.steps if many else 16
        streams, steps = at_once(len(self.dataset.labelled), windows)
        own = (distributed.get_rank() + 1 if count > 1 else 1, count)
        done: Evaluation | None = None
        with torch.random.fork_rng(devices=[device] if many else []):
            if own[0] <= len(self.dataset.labelled):
                done = evaluate(
                    module.teacher, self.dataset, hz, shard=own, device=device, streams=streams, steps=steps,
                    workers=self.config.data.workers if many else 0,
                )  # fmt: skip
        if count == 1:
            return done
        predictions: dict[float, Mapping[str, Labels]] = {rate: {} for rate in hz}
        predictions |= {at.hz: at.run.predictions for at in (done.rates if done else ()) if at.run is not None}
        everyones: list[Any] | None = [None] * count if own[0] == 1 else None
        distributed.gather_object(predictions, everyones, group=self._everyone)
        if everyones is None or done is None:
            return None
        merged = {rate: {name: boxes for part in everyones for name, boxes in part[rate].items()} for rate in hz}
        whole = evaluate(merged, self.dataset, hz)
        # The pictures show recordings of the first process.
        both = zip(whole.rates, done.rates, strict=True)
        return replace(whole, rates=tuple(replace(at, run=ours.run) for at, ours in both))

    def record(self, found: Evaluation, step: int) -> tuple[float | None, dict[str, Any]]:
        """Write the figures of a validation, and return the mean AP over the rates and the figures by rate."""
        figures = {f"{at.hz:g}": {name: at.scores[name] for name in (METRIC, "AP50", "AP75")} for at in found.rates}
        known = [value for at in found.rates if (value := at.scores[METRIC]) is not None]
        score = float(np.mean(known)) if known else None
        is_best = step > 0 and _is_better(score, self.best)
        self.run.add_metrics({"step": step, "validation": figures, "score": score, "is_best": is_best})
        rows = [(f"{hz}hz/{name.replace(':', '-')}", ap) for hz, of in figures.items() for name, ap in of.items()]
        self.loggers.log({f"validation/{name}": ap for name, ap in rows if ap is not None}, step)
        shown = {hz: "–" if (ap := of[METRIC]) is None else f"{100 * ap:.1f} %" for hz, of in figures.items()}
        self.run.log(f"step {step}: " + ", ".join(f"{hz} Hz {METRIC} {score}" for hz, score in shown.items()))
        return score, figures

    def keep(self, found: Evaluation, module: TrainingModule, step: int) -> None:
        """Write the figures and a picture, and keep the best weights."""
        score, figures = self.record(found, step)
        is_best = _is_better(score, self.best)
        try:
            if is_best:
                facts = {"training": {"step": step, **self.facts}, "validation": figures}
                facts["protocol"] = found.protocol.to_dict()
                save_model(module.teacher, self.run.folder / "best.safetensors", facts=facts)
                self.best = score  # only after the weights are saved
            if self.draw_samples is not None:
                for at in found.rates:
                    self.draw_samples(at, self.dataset, self.run.pictures / f"step-{step:07d}-{at.hz:g}hz.png")
            if self.draw_curves is not None:
                self.draw_curves(self.run.folder)
        except (OSError, FateError) as error:
            fault = " ".join(str(error).split())
            self.run.announce(f"step {step}: not all of the validation could be kept ({fault}); training goes on")
