"""A few threads for compiled loops, which run without Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def in_threads(work: Callable[[int], Result], items: Sequence[int]) -> list[Result]:
    """``work`` of each item, in their order; on as many threads as torch may use."""
    if min(num_threads(), len(items)) <= 1:
        return [work(item) for item in items]
    return list(_pool(num_threads()).map(work, items))


def num_threads() -> int:
    """As torch is told: ``torch.set_num_threads``."""
    return torch.get_num_threads()


def _pool(threads: int) -> ThreadPoolExecutor:
    """The pool of this process: threads do not survive a fork, so a forked data loader makes its own."""
    key = (os.getpid(), threads)
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(threads, thread_name_prefix="fate-encode")
    return _pools[key]
