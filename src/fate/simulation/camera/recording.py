"""Recording many scenes, on the CPU or on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fate.simulation.camera.recorder import Piece, record
from fate.simulation.render.scene import Scene


def record_many(
    scenes: Sequence[Callable[[], Scene]],
    times_us: Callable[[Scene], NDArray[np.int64]],
    device: str = "cpu",
    threads: int | None = None,
) -> Iterator[Piece]:
    """Record scenes: one after the other on the CPU, side by side on a GPU (their pieces then alternate).

    Args:
        scenes: make the scenes, each when its turn comes; a piece's recording is a place in this list.
        times_us: when boxes of a scene are wanted, sorted.
        device: "cpu" or "cuda".
        threads: CPU threads that share the work; all cores by default.
    """
    if device != "cpu":
        from fate.simulation.camera.recorder_gpu import record_on_gpu  # noqa: PLC0415  (needs triton, which needs a GPU)

        yield from record_on_gpu(scenes, times_us, device, threads)
        return
    for number, make in enumerate(scenes):
        scene = make()
        yield from record(scene, times_us(scene), threads, number)
