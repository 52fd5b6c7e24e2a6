"""The rates of the paper."""

from __future__ import annotations

#: Rates in Hz of the paper's tables, in rising order; the first is the canonical rate.
PAPER_RATES = (20.0, 40.0, 80.0, 100.0, 200.0)
