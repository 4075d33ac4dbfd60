"""Echoing factors beside each other with matched seeds, in the studies of factors.

    python -m benchmarks.factor_ratios

Ratios of fresh examples to the target over counted trials of equal search and number, by the sign
test as in the reports (docs/statistics.md): the effect at which signs balance, its 95 % interval
from ten pairs on, and the pairs that both reached, that only the one, only the other, and neither.
"""

import pathlib

import numpy as np
import pandas as pd

from analysis import bounds, load, tables, uncertainty

RECORDS = pathlib.Path(__file__).parents[1] / "results" / "studies"
STUDIES = ("sentences_factor", "digits_factor")
KEY = ["search", "trial"]


def shown(pairs: pd.DataFrame, study) -> str:
    """The effect of pairs, its interval, and how many there are of each kind."""
    (effect,) = uncertainty.paired_effects(pairs, study).to_dict("records")
    counts = (effect[n] for n in ("pairs", "condition_alone", "baseline_alone", "neither"))
    return f"{tables.paired_text(effect, study)}; pairs {' + '.join(map(str, counts))}"


def main() -> None:
    print("e over e': ratio [95 % interval]; pairs: both reached + only e + only e' + neither")
    for name in STUDIES:
        _print_study(name, load.read(RECORDS / name / "records.tar.xz"))


def _print_study(name: str, found: load.Records) -> None:
    low, high = uncertainty.trial_bounds(found.trials, found.study)
    trials = found.trials[found.trials["counted"]].assign(low=low, high=high)
    names = {(c.batch_size, c.factor): c.name for c in found.study.conditions}

    def beside(size: int, e: int, other: int) -> pd.DataFrame:
        return uncertainty.beside(trials, names[size, e], names[size, other], KEY, found.study)

    print(f"\n{name}")
    for size in (32, 64):
        for e, other in ((2, 4), (8, 4), (16, 4), (16, 8)):
            ratio = shown(beside(size, e, other), found.study)
            print(f"batch size {size}, e = {e} over e = {other}: {ratio}")
    ends = ["effect_low", "effect_high"]
    both = beside(64, 16, 4).merge(beside(32, 16, 4)[[*KEY, *ends]], on=KEY, suffixes=("", "_32"))
    low, high = bounds.ratio(
        (both["effect_low"], both["effect_high"]), (both["effect_low_32"], both["effect_high_32"])
    )
    known = int((np.isfinite(high) | (low > 0)).sum())
    low, high, *balance = uncertainty.sign_interval(low, high)
    ratio = bounds.text(*balance, "{:.2f}".format)
    if known >= uncertainty.FEWEST_PAIRS:
        ratio += f" [{low:.2f}, {high:.2f}]"
    print(f"e = 16 over e = 4, batch size 64 over 32: {ratio}; {known} pairs with a known side")


if __name__ == "__main__":
    main()
