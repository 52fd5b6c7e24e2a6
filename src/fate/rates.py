"""The rates of the paper."""

from __future__ import annotations

#: Rates in Hz of the paper's tables, in rising order.
PAPER_RATES = (20.0, 40.0, 80.0, 100.0, 200.0)
#: The rate of the windows that detectors are first trained on and that a teacher sees, and the length of these windows.
CANONICAL_HZ = PAPER_RATES[0]
CANONICAL_US = 50_000
