"""Echoing factors beside each other at equal seeds, in the study of sentences.

    python -m results.studies.factors

Geometric means of ratios of fresh examples to the target, with 95 % t-intervals, over the counted
trials of equal search and number that reached it under both conditions.
"""

import pathlib

import numpy as np
import pandas as pd
from scipy import stats

TRIALS = pathlib.Path(__file__).parent / "sentences_factor" / "trials.csv"


def shown(log_ratios: pd.Series) -> str:
    """The ratio that logarithms stand for, its interval and how many there are."""
    found = log_ratios.dropna()
    low, high = stats.t.interval(0.95, len(found) - 1, found.mean(), stats.sem(found))
    mean, low, high = np.exp([found.mean(), low, high])
    return f"{mean:.2f} ({low:.2f} to {high:.2f}; {len(found)} pairs)"


def main() -> None:
    trials = pd.read_csv(TRIALS)
    table = np.log(
        trials[trials["counted"]].pivot(
            index=["search", "trial"],
            columns=["batch_size", "factor"],
            values="fresh_examples_to_target",
        )
    )
    for size in (32, 64):
        for e, other in ((2, 4), (8, 4), (16, 4), (16, 8)):
            ratios = table[size, e] - table[size, other]
            print(f"batch size {size}, e = {e} over e = {other}: {shown(ratios)}")
    both = (table[64, 16] - table[64, 4]) - (table[32, 16] - table[32, 4])
    print(f"e = 16 over e = 4, batch size 64 over 32: {shown(both)}")


if __name__ == "__main__":
    main()
