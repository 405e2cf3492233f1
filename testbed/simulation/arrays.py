"""Arrays of rates and times, and when two of them are the same."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

#: Shares that differ by no more are the same except for rounding.
SAME = 1e-12
#: What is left of a flow, as a share of its size, below which it has ended.
LEFT = 1e-13
