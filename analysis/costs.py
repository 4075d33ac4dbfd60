"""What a study used up to its target: bytes read, CPU seconds, and seconds of training."""

import pathlib

import numpy as np
import pandas as pd

from analysis import bounds, scores
from analysis.load import LoadedStudy
from runs import records

# By field of result.json, the heading and the unit of its column.
_USED = {
    "bytes_read": ("MB read", 1e6),
    "core_seconds": ("core seconds", 1.0),
    "train_seconds": ("seconds", 1.0),
}
Ends = tuple[pd.Series, pd.Series]  # lower and upper bounds, by search


def table(loaded: LoadedStudy) -> pd.DataFrame:
    """By condition, what the best trial of each search used: medians, and those of the ratios to
    the baseline, with their range. Empty for published records, and if no source knows its bytes.

    A trial that missed the target would have used more. One that trained on to a harder target than
    it is judged at counts by the share of its fresh examples. Seconds are left out if trials shared
    input or cores with others.
    """
    study = loaded.study
    best = scores.leaders(loaded.trials, scores.search_scores(loaded.trials, study))
    results = [records.intact_result(pathlib.Path(path)) for path in best["path"]]
    used = pd.DataFrame(results, index=best.index).reindex(columns=list(_USED)).astype(float)
    if used["bytes_read"].isna().all():
        return pd.DataFrame()
    reached = best[scores.REACHED].astype(float)
    low = used.mul((reached / best["fresh_examples"].astype(float)).fillna(1.0), axis=0)
    high = low.where(reached.notna() | study.scores_values, np.inf)
    known = {"bytes_read": _USED["bytes_read"]} if scores.is_shared(best).any() else _USED

    def ends(condition: str, field: str) -> Ends:
        own = best[best["condition"] == condition]
        low_s, high_s = (end.loc[own.index, field].set_axis(own["search"]) for end in (low, high))
        return low_s, high_s

    rows = []
    for condition in study.conditions:
        row, baseline = {"condition": condition.label}, study.baseline_of(condition)
        for field, (heading, unit) in known.items():
            row[heading], ratio = _texts(ends(condition.name, field), ends(baseline, field), unit)
            row[f"{heading}: ratio"] = "1.00" if condition.name == baseline else ratio
        rows.append(row)
    return pd.DataFrame(rows)


def _texts(own: Ends, base: Ends, unit: float) -> tuple[str, str]:
    """A median, and that of the ratios to the baseline with their range."""
    median = bounds.summary(*own)
    both = own[0].index.intersection(base[0].index)
    ratios = bounds.ratio(*([end[both] for end in side] for side in (own, base)))
    ratio, number = bounds.summary(*ratios), "{:.2f}".format
    text = bounds.text(ratio.low, ratio.high, number)
    if ratio.count > 1:
        text += f" [{bounds.range_text(ratio, number)}]"
    return bounds.text(median.low, median.high, lambda value: f"{value / unit:,.3g}"), text
