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
    threads = min(num_threads(), len(items))
    if threads <= 1:
        return [work(item) for item in items]
    results: dict[int, Result] = {}
    places = iter(range(len(items)))  # shared: whoever is free takes the next

    def run() -> None:
        for place in places:
            results[place] = work(items[place])

    pool = _pool(threads - 1)
    helping = [pool.submit(run) for _ in range(threads - 1)]
    run()  # the caller works too: to wake a thread takes as long as a small task
    for helper in helping:
        helper.result()
    return [results[place] for place in range(len(items))]


def num_threads() -> int:
    """As torch is told: ``torch.set_num_threads``."""
    return torch.get_num_threads()


def _pool(threads: int) -> ThreadPoolExecutor:
    """The pool of this process: threads do not survive a fork, so a forked data loader makes its own."""
    key = (os.getpid(), threads)
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(threads, thread_name_prefix="fate-encode")
    return _pools[key]
