"""Everything imports and trains on a system that has no more than Windows has; the system itself is not tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.conftest import small_config, write_drives

pytest.importorskip("pytorch_lightning", reason="training needs pytorch-lightning")

#: Hides what Windows lacks from fate. The libraries that it builds on have their own ways, and are loaded before.
HIDING = """
import importlib, multiprocessing.resource_tracker, os, pkgutil, signal, sys, types
import pytorch_lightning, pytorch_lightning.strategies, torch
import pytorch_lightning.trainer.connectors.signal_connector as lightning_signals
import numba, scipy.optimize, matplotlib.pyplot, h5py

def hide():
    lightning_signals.signal = types.SimpleNamespace(**vars(signal))
    multiprocessing.resource_tracker._HAVE_SIGMASK = False
    for name in ("fcntl", "resource", "pwd", "grp", "termios"):
        sys.modules[name] = None
    for name in ("SIGUSR1", "SIGUSR2", "SIGKILL", "SIGHUP", "SIGQUIT", "SIGALRM", "pthread_sigmask", "alarm"):
        vars(signal).pop(name, None)
    for name in ("setpgid", "killpg", "getuid", "geteuid", "mkfifo", "sched_getaffinity", "memfd_create", "O_CLOEXEC",
                 "O_NONBLOCK", "O_NOFOLLOW", "O_DIRECTORY", "fchmod", "getpgid", "setsid"):
        vars(os).pop(name, None)
    context = multiprocessing.get_context

    def only_spawn(method=None):
        if method not in (None, "spawn"):
            raise ValueError(f"cannot find context for {method!r}")
        return context(method)

    multiprocessing.get_context = only_spawn
    multiprocessing.get_all_start_methods = lambda: ["spawn"]

if __name__ == "__main__":
    hide()
    import fate
    ours = [module.name for module in pkgutil.walk_packages(fate.__path__, "fate.")]
    for name in ours:
        if name.endswith("__main__"):
            continue
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in ("triton", "rosbags"):  # optional, and no question of the system
                raise
    print(len(ours), "modules")
    fate.train(sys.argv[1], sys.argv[2])
    assert fate.training.loop.train(sys.argv[1], sys.argv[2]).finished  # the lock was given back
    from fate.training.dry_run import dry_run
    from fate.training.config import read_config
    print("\\n".join(dry_run(read_config(sys.argv[1])).lines()))
"""


@pytest.mark.slow
def test_every_module_imports_and_two_steps_train_without_what_windows_lacks(tmp_path: Path) -> None:
    dataset = write_drives(tmp_path)
    config = tmp_path / "small.yaml"
    config.write_text(small_config(dataset, data={"workers": 1, "steps": 2}, run={"epochs": 1}).to_yaml())
    script = tmp_path / "hidden.py"
    script.write_text(HIDING)
    done = subprocess.run(
        [sys.executable, str(script), str(config), str(tmp_path / "run")],
        capture_output=True, text=True, check=False, env=os.environ, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "modules" in done.stdout
    assert (tmp_path / "run" / "last.safetensors").exists()
