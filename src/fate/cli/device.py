"""Where a command computes: the option ``--device``, and the number of CPU threads."""

from __future__ import annotations

import gc
import logging
import re
import time
from typing import Annotated

import typer

from fate.cli.terminal import note
from fate.errors import FateError
from fate.processes import idle_seconds
from fate.threads import free_threads

_CUDA = re.compile(r"cuda(?::(\d{1,3}))?")


def check_device(device: str) -> str:
    """Refuse a text that names no device. torch is not loaded, so the device may still be missing here."""
    if device not in ("auto", "cpu") and _CUDA.fullmatch(device) is None:
        raise FateError(f"{device} was given; expected auto, cpu, cuda, or a GPU by its number such as cuda:1")
    return device


Device = Annotated[str, typer.Option(autocompletion=lambda: ["auto", "cpu", "cuda"], parser=check_device)]


def pick_device(device: str, *, announce: bool = True) -> str:
    """Return "cpu" or "cuda", make the GPU that was asked for the current one, and say what was chosen.

    On a CPU, torch gets as many threads as there are free processors, unless OMP_NUM_THREADS is set: threads that wait
    for a busy processor make every step of a detector several times slower.
    """
    idle, began = idle_seconds(), time.perf_counter()
    gc.disable()  # while torch loads, a tenth of the time would go into collections that find nothing
    import torch

    gc.freeze()
    gc.enable()

    there = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
    match = _CUDA.fullmatch(device)
    if match is not None and int(match[1] or 0) >= there:
        known = f"this machine has cuda:0 to cuda:{there - 1}" if there else "torch finds no CUDA GPU on this machine"
        raise FateError(f"--device {device} was given; {known}; give another one, cpu or auto")
    if match is not None or (device == "auto" and there):
        number = int(match[1] or 0) if match else 0
        torch.cuda.set_device(number)
        if announce:
            note(f"device: cuda:{number} ({torch.cuda.get_device_name(number)})")
        return "cuda"
    took_s, idle_after = time.perf_counter() - began, idle_seconds()
    usual = torch.get_num_threads()
    threads = free_threads(usual, None if idle is None or idle_after is None else idle_after - idle, took_s)
    logging.getLogger("fate.cli").info("torch %s, loaded in %.1f s, %d threads", torch.__version__, took_s, threads)
    if threads < usual:
        torch.set_num_threads(threads)
    if announce:
        few = f", {threads} of {usual} threads because the other processors are busy (OMP_NUM_THREADS sets the number)"
        note(f"device: cpu{few if threads < usual else ''}")
    return "cpu"
