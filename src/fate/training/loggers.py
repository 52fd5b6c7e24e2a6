"""Loggers of a run by name, through Lightning's classes; ``metrics.jsonl`` is written in any case.

=============  ========================================================================================
csv            ``csv/version_N/metrics.csv`` in the run directory, a new N each time that the run continues
tensorboard    ``tensorboard/`` in the run directory: ``tensorboard --logdir runs``
wandb          the project ``fate`` on the server that ``wandb login`` has set, or offline (``WANDB_MODE=offline``)
mlflow         the experiment ``fate`` on ``MLFLOW_TRACKING_URI``, or ``mlflow.db`` in the run directory
=============  ========================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from fate.errors import missing_packages
from fate.training.config import TrainConfig
from fate.training.run_directory import RunDirectory

#: Loggers that need a package of their own, which has the same name.
NEED_PACKAGE = ("tensorboard", "wandb", "mlflow")


def check_loggers(names: Sequence[str]) -> None:
    """Raise an error with the pip line if a package that a logger needs is missing; called before anything is done."""
    for name in names:
        if name in NEED_PACKAGE and find_spec(name) is None:
            raise missing_packages(f"run.loggers=[{name}]", (name,))


class Loggers:
    """Passes numbers to all loggers of a run. A logger that fails is reported once and left out; training goes on."""

    def __init__(self, config: TrainConfig, run: RunDirectory) -> None:
        self._config, self._run = config, run
        self._names = list(config.run.loggers)
        self._made: dict[str, Any] = {}

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Log numbers of a step; the first call makes the loggers. For the first process only."""
        self._each(lambda logger: logger.log_metrics(dict(numbers), step))

    def close(self) -> None:
        """Write what is waiting, also if training failed."""
        if self._made:
            self._each(_finish)

    def _each(self, use: Callable[[Any], object]) -> None:
        for name in list(self._names):
            try:
                if name not in self._made:
                    self._made[name] = self._make(name)
                use(self._made[name])
            except Exception as error:  # of a server, a disk, a package: none of them may end a training
                self._names.remove(name)
                self._run.announce(f"the logger {name} failed ({error}); training goes on without it")

    def _make(self, name: str) -> Any:
        """The logger of a name, with the settings of the run."""
        from pytorch_lightning import loggers  # noqa: PLC0415  (it takes seconds to load)

        folder = self._run.folder
        logger: Any
        if name == "csv":
            logger = loggers.CSVLogger(folder, "csv", flush_logs_every_n_steps=1)
        elif name == "tensorboard":
            logger = loggers.TensorBoardLogger(folder, "tensorboard", version="", default_hp_metric=False)
        elif name == "wandb":
            logger = loggers.WandbLogger(folder.name, folder, project="fate")
        else:
            # a database, because MLflow 3 refuses folders of files
            server = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').resolve()}"
            logger = loggers.MLFlowLogger("fate", folder.name, tracking_uri=server)
        logger.log_hyperparams(self._config.model_dump(mode="json", by_alias=True))
        return logger


def _finish(logger: Any) -> None:
    logger.finalize("success")
    if hasattr(logger.experiment, "finish"):  # wandb: otherwise the next training of this process continues its run
        logger.experiment.finish()
