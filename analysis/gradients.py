"""Gradient statistics of a run, from its records: noise, and how repeats differ from fresh rows.

They are there where a run had `gradient_statistics_every_steps` set.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from runs import records

NAMES = (
    "gradient_squared_norm",
    "gradient_noise_trace",
    "fresh_loss",
    "repeat_loss",
    "gradient_cosine",
    "gradient_norm_ratio",
    "fresh_rows",
)


def gradient_statistics(
    trial: str | os.PathLike | Sequence[Mapping[str, Any]],
) -> pd.DataFrame:
    """The gradient statistics of one run, a row a measured step.

    Args:
        trial: a run's directory, or its records (`runs.records.read_metrics`).

    Returns:
        step, fresh_examples, train_seconds, and by name what training/gradient_statistics.py
        defines, missing where it is undefined: a batch without repeats has no repeat_loss.
        No rows where nothing was measured.
    """
    kept = records.read_metrics(trial) if isinstance(trial, str | os.PathLike) else trial
    rows = [record for record in kept if record.get("split") == records.GRADIENTS]
    frame = pd.DataFrame(rows, columns=["step", "fresh_examples", "train_seconds", *NAMES])
    return frame.astype(dict.fromkeys(NAMES, float))


def noise_scale(frame: pd.DataFrame) -> float:
    """The simple noise scale tr(Sigma) / |G|^2 of McCandlish et al. (2018, arXiv 1812.06162,
    equation 2.9), in examples, over the rows of `frame`.

    It is the mean of the one estimate over the mean of the other, since a single step's are too
    noisy to divide. Take the rows of a phase of training through which it changes little. NaN where
    there are no rows or where they do not suffice to tell the gradient from its noise (their mean
    estimate of |G|^2 is not positive).
    """
    squared_norm = frame["gradient_squared_norm"].mean()
    return (
        float(frame["gradient_noise_trace"].mean() / squared_norm)
        if squared_norm > 0
        else float("nan")
    )
