"""A loss that is not a number stops the run, with the batch that gave it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Callback, Trainer
from torch import Tensor

from fate.data.batches import ClipBatch
from fate.errors import FateError
from fate.training.run_directory import RunDirectory


class Guard(Callback):
    """Looks at every loss; comes first among the callbacks.

    On a GPU the loss of a step is looked at while the next one is under way, since looking means waiting; but always
    before weights are saved.

    Attributes:
        ended: when the last step ended.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.ended = 0.0
        self._pending: tuple[Tensor, Any, ClipBatch, int] | None = None

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: ClipBatch, batch_idx: int) -> None:
        """Look at the loss before, and remember this one."""
        self.look()
        loss = outputs["loss"].detach()
        self._pending = (*_sent_home(torch.isfinite(loss).all()), batch, trainer.global_step)
        if loss.device.type != "cuda":
            self.look()
        self.ended = time.perf_counter()

    def on_train_end(self, trainer: Trainer, module: Any) -> None:
        """The last step is looked at too."""
        self.look()

    def look(self) -> None:
        """Stop where the last loss was not a number."""
        if self._pending is None:
            return
        good, arrived, batch, step = self._pending
        self._pending = None
        if arrived is not None:
            arrived.synchronize()
        if bool(good):
            return
        path = self.run.folder / f"bad-batch-{step}.npz"
        try:
            save_batch(path, batch)
            kept = f"its batch was saved as {path.name}"
        except OSError as error:
            kept = f"its batch could not be saved ({error.strerror})"
        older = f", and the last good state is {self.run.checkpoint.name}" if self.run.checkpoint.exists() else ""
        raise FateError(
            f"{self.run.folder}: the loss of step {step} is not a number; {kept}{older}; try a smaller optimiser.lr, or"
            " run.precision=float32"
        )


def save_batch(path: Path, batch: ClipBatch) -> None:
    """All that a batch holds as plain arrays: columns of its events, or images; its clips; a row for each label."""
    events, given = batch.events, [labels for labels in batch.labels if labels is not None]
    windows = [number for number, labels in enumerate(batch.labels) if labels is not None]
    names = ("t_us", "x", "y", "p", "offsets", "start_us", "duration_us")
    columns: dict[str, Any] = (
        {"images": events} if isinstance(events, Tensor) else {name: getattr(events, name) for name in names}
    )
    np.savez_compressed(
        path,
        steps=batch.steps,
        clips=np.array(
            [[clip.recording, clip.hz, clip.first, clip.steps, clip.begins] for clip in batch.clips], np.float64
        ),
        labelled_windows=np.array(windows, np.int64),
        label_window=np.repeat(windows, [len(labels) for labels in given]).astype(np.int64),
        label_boxes=np.concatenate([np.zeros((0, 4), np.float32), *(labels.boxes for labels in given)]),
        label_class=np.concatenate([np.zeros(0, np.int32), *(labels.class_id for labels in given)]),
        label_score=np.concatenate([np.zeros(0, np.float32), *(labels.score for labels in given)]),
        **{name: column.cpu().numpy() for name, column in columns.items()},
    )


def _sent_home(flag: Tensor) -> tuple[Tensor, Any]:
    """A flag on its way to the CPU, and what to wait for before reading it."""
    if flag.device.type != "cuda":
        return flag, None
    home = torch.empty((), dtype=flag.dtype, pin_memory=True).copy_(flag, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()
    return home, arrived
