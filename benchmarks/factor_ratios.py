"""Compares pairs of echo factors with matched seeds, in the packed studies of factors.

    python -m benchmarks.factor_ratios

Prints ratios of fresh examples to the target over counted trials with equal search and trial
number, by the sign test of the reports (docs/statistics.md): the effect at which the signs balance,
its 95% interval from ten pairs on, and the pairs in which both reached the target, only the first
factor, only the second, and neither.
"""

import pathlib

import numpy as np
import pandas as pd

from analysis import bounds, load, tables, uncertainty
from runs.study import Study

RECORDS = pathlib.Path(__file__).parents[1] / "results" / "studies"
STUDIES = ("sentences_factor", "digits_factor")
KEY = ["search", "trial"]


def effect_text(pairs: pd.DataFrame, study: Study) -> str:
    """The effect of pairs, its interval, and the number of pairs of each kind."""
    (effect,) = uncertainty.paired_effects(pairs, study).to_dict("records")
    counts = (effect[n] for n in ("pairs", "condition_alone", "baseline_alone", "neither"))
    return f"{tables.paired_text(effect, study)}; pairs {' + '.join(map(str, counts))}"


def main() -> None:
    print("e over e': ratio [95% interval]; pairs: both reached + only e + only e' + neither")
    for name in STUDIES:
        _print_study(name, load.read(RECORDS / name / "records.tar.xz"))


def _print_study(name: str, loaded: load.LoadedStudy) -> None:
    study = loaded.study
    low, high = uncertainty.trial_bounds(loaded.trials, study)
    trials = loaded.trials[loaded.trials["counted"]].assign(low=low, high=high)
    names = {(c.batch_size, c.factor): c.name for c in study.conditions}

    def paired(size: int, e: int, other: int) -> pd.DataFrame:
        return uncertainty.paired(trials, names[size, e], names[size, other], KEY, study)

    print(f"\n{name}")
    for size in (32, 64):
        for e, other in ((2, 4), (8, 4), (16, 4), (16, 8)):
            ratio = effect_text(paired(size, e, other), study)
            print(f"batch size {size}, e = {e} over e = {other}: {ratio}")
    ends = ["effect_low", "effect_high"]
    both = paired(64, 16, 4).merge(paired(32, 16, 4)[[*KEY, *ends]], on=KEY, suffixes=("", "_32"))
    low, high = bounds.ratio(
        (both["effect_low"], both["effect_high"]), (both["effect_low_32"], both["effect_high_32"])
    )
    known = int((np.isfinite(high) | (low > 0)).sum())
    low, high, *balance = uncertainty.sign_interval(low, high)
    ratio = bounds.text(balance[0], balance[1], "{:.2f}".format)
    if known >= uncertainty.MIN_PAIRS:
        ratio += f" [{low:.2f}, {high:.2f}]"
    print(f"e = 16 over e = 4, batch size 64 over 32: {ratio}; {known} pairs with a known side")


if __name__ == "__main__":
    main()
