"""Writes the grids of the IQ formats as sets, from the package `gguf` (python make.py, with gguf 0.19.0).

An entry has a digit for each value, the first lowest; the entries are sorted by this number, so a bit for each possible
number says all. NAME.inc has these bits as words of 64, lowest first, for C and for grids.rs alike.
"""

from pathlib import Path

import numpy as np
from gguf import quants

for name in ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]:
    format = getattr(quants, name)
    format.init_grid()
    values = sorted(format.grid_map)
    digits = np.searchsorted(values, format.grid.reshape(format.grid_shape))
    numbers = digits @ len(values) ** np.arange(digits.shape[1])
    assert (np.diff(numbers) > 0).all(), name
    words = [0] * -(-(len(values) ** digits.shape[1]) // 64)
    for number in numbers:
        words[number // 64] |= 1 << int(number) % 64
    lines = ["".join(f"0x{w:016x}, " for w in words[i : i + 5]).rstrip() for i in range(0, len(words), 5)]
    Path(__file__).with_name(f"{name.lower()}.inc").write_text("\n".join(lines) + "\n")
