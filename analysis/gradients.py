"""Gradient statistics of a run with `gradient_statistics_every_steps`: noise, and repeats."""

import os

import pandas as pd

from runs import records
from runs.cli import InputError

NAMES = (
    *("gradient_squared_norm", "gradient_noise_trace", "fresh_loss", "repeat_loss"),
    *("gradient_cosine", "gradient_norm_ratio", "fresh_rows"),
)


def gradient_statistics(workdir: str | os.PathLike) -> pd.DataFrame:
    """The gradient statistics in a run's directory, one row per measured step.

    Returns:
        Columns step, fresh_examples, train_seconds, and the statistics that
        training/gradient_statistics.py defines, missing where undefined (a batch without repeats
        has no repeat_loss). No rows if nothing was measured.

    Raises:
        InputError: no such directory.
    """
    if not os.path.isdir(workdir):
        raise InputError(f"no such directory: {workdir}; give the directory of one run")
    rows = [r for r in records.read_metrics(workdir) if r.get("split") == records.GRADIENTS]
    frame = pd.DataFrame(rows, columns=["step", "fresh_examples", "train_seconds", *NAMES])
    return frame.astype(dict.fromkeys(NAMES, float))


def noise_scale(frame: pd.DataFrame) -> float:
    """The simple noise scale tr(Sigma) / |G|^2 of McCandlish et al. (2018, arXiv 1812.06162,
    equation 2.9), in examples: the ratio of the means over the rows of `frame`. NaN if there are
    too few rows to separate the gradient from its noise."""
    squared_norm = frame["gradient_squared_norm"].mean()
    noise = frame["gradient_noise_trace"].mean()
    return float(noise / squared_norm) if squared_norm > 0 else float("nan")
