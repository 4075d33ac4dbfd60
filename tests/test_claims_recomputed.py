"""Numbers of results/claims.csv and factor_ratios.csv, recomputed from the published records alone.

Only json and pandas are used, following docs/statistics.md, docs/studies.md, and docs/runs.md: what
a reader would do who distrusts the code of `analysis`. `python -m benchmarks.evidence --check`
recomputes all of them.
"""

import functools
import itertools
import json
import math
import statistics

import pandas as pd
import pytest

from tests.helpers.runs import ROOT

RESULTS = ROOT / "results"
TRIALS = pd.read_parquet(RESULTS / "trials.parquet")
PLACE = ["study", "condition", "search", "trial"]
CURVES = pd.read_parquet(RESULTS / "curves.parquet", columns=[*PLACE, "fresh_examples"])
CURVES = CURVES.groupby(PLACE)["fresh_examples"].agg(list)


@functools.cache
def study(name):
    """The trials that count."""
    trials = TRIALS[TRIALS["study"] == name]
    plan = json.loads(trials["plan"].iloc[0])
    trials = trials.assign(seed=trials["model_seed"])
    trials["mode"] = plan["target"]["mode"]  # whether the target lies "above" or "below"
    if plan["study"] in ("confirmation", "weight_decay_of_winners"):
        # a run after one that diverged forms no pair
        trials = trials[trials["trial"] == 0]
    # the first N of each search that neither diverged nor failed
    trials = trials[trials["status"].isin(["reached", "exhausted"])].sort_values("trial")
    return trials.groupby(["condition", "search"]).head(plan["trials"])


def scores(name, column):
    """The scores of all searches, all of which reached the target, by condition and search."""
    trials = study(name)
    groups = trials.groupby(["condition", "search"])[column]
    highest = column == "best_value" and (trials["mode"] == "above").all()
    return groups.max() if highest else groups.min()


def tuned(name, condition, baseline, column="fresh_examples_to_target"):
    """'median [smallest, largest]' over the pairs of searches."""
    table = scores(name, column)
    own, base = table[condition], table[baseline]
    effects = own - base if column == "best_value" else own / base
    form = "+.3g" if column == "best_value" else ".2f"
    middle, low, high = (format(x, form) for x in (effects.median(), effects.min(), effects.max()))
    return f"{middle} [{low}, {high}]"


def bounds(name, condition):
    """By search and model seed, the fresh examples between which a trial reached the target."""
    trials = study(name)
    rows = {}
    for trial in trials[trials["condition"] == condition].to_dict("records"):
        at = trial["fresh_examples_to_target"]
        low, high = trial["fresh_examples"], math.inf
        if not math.isnan(at):
            place = [trial[key] for key in ("study", "condition", "search", "trial")]
            earlier = CURVES.loc[tuple(place)]
            low, high = max((fresh for fresh in earlier if fresh < at), default=0), at
        rows[trial["search"], trial["seed"]] = (low, high)
    return pd.DataFrame(rows, index=["low", "high"]).T


def p_value(below, above):
    """Of the two-sided sign test."""
    number = below + above
    return 2 * sum(math.comb(number, k) for k in range(min(below, above) + 1)) / 2**number


def rejected(below, above):
    """Whether the two-sided sign test rejects at 5%."""
    return p_value(below, above) <= 0.05


def matched(name, condition, baseline):
    """'balance [low, high]' of the sign test with matched seeds."""
    base = bounds(name, baseline).add_suffix("_of_baseline")
    both = bounds(name, condition).join(base, how="inner")
    lows, highs = both["low"] / both["high_of_baseline"], both["high"] / both["low_of_baseline"]
    ends = sorted({end for end in (*lows, *highs) if 0 < end < math.inf})
    # the signs change at the ends only; between two of them they are those of the middle
    grid = [(end, end) for end in ends] + list(itertools.pairwise(ends))
    signs = {
        (a, b): (int((highs <= (a + b) / 2).sum()), int((lows >= (a + b) / 2).sum()))
        for a, b in grid
    }
    kept = [span for span, (below, above) in signs.items() if not rejected(below, above)]
    even = [span for span, (below, above) in signs.items() if below == above]
    # where pairs share a value, the signs may pass from more above to more below at it
    turn = min(a for (a, _), (below, above) in signs.items() if below > above)
    low, high = (min(a for a, _ in even), max(b for _, b in even)) if even else (turn, turn)
    middle = math.sqrt(low * high)
    return f"{middle:.2f} [{min(a for a, _ in kept):.2f}, {max(b for _, b in kept):.2f}]"


def e(factor, size):
    return f"before_augmentation_e{factor}_b{size}"


BEFORE, AFTER, BATCH = "before_augmentation_e2", "after_augmentation_e2", "after_batching_e2"
CLAIMS = (RESULTS / "claims.csv").read_text(encoding="utf-8")
FACTORS = (RESULTS / "factor_ratios.csv").read_text(encoding="utf-8")
CONFIRMED = (RESULTS / "confirmation.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("statistic", "arguments", "page"),
    [
        (tuned, ("language_insertion", BEFORE, "baseline"), CLAIMS),
        (tuned, ("digits_factor", e(16, 32), "baseline_b32"), CLAIMS),
        (tuned, ("grid/quality_digits", BATCH, "baseline", "best_value"), CLAIMS),
        (tuned, ("grid/quality_sentences", BEFORE, "baseline", "best_value"), CLAIMS),
        (matched, ("grid/controls_digits", BEFORE, "spaced_epochs_2"), CLAIMS),
        (tuned, ("grid/digits", e(4, 32), e(16, 32)), CLAIMS),
        (matched, ("grid/digits", e(2, 32), f"{BATCH}_b32"), CLAIMS),
        (matched, ("grid/decaying_logistic", "growing", "constant"), CLAIMS),
        (matched, ("grid/shuffle_cells", f"{BATCH}_buffer_256", f"{BATCH}_buffer_0"), CLAIMS),
        (matched, ("grid/common_cadence_logistic", e(16, 32), "baseline_b32"), CLAIMS),
        (matched, ("language_insertion", BEFORE, BATCH), CLAIMS),
        (tuned, ("grid/digits", e(4, 32), "baseline_b32"), FACTORS),
        (matched, ("grid/mnist", e(4, 32), "baseline_b32"), FACTORS),
        (matched, ("grid/confirmation_sentences", e(4, 32), "baseline_b32"), FACTORS),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_number_of_the_claims_follows_from_the_records(statistic, arguments, page):
    assert statistic(*arguments) in page


def test_a_confirmed_ratio_follows_from_the_records():
    own = matched("grid/confirmation_logistic", e(4, 32), e(16, 32))
    middle, _, interval = own.partition(" ")
    assert f"{middle},{interval.strip('[]').replace(', ', ' to ')}" in CONFIRMED


@pytest.mark.parametrize(
    ("name", "condition", "baseline"),
    [("controls", BEFORE, "spaced_epochs_2"), ("decaying", "growing", "constant")],
)
def test_a_number_of_the_further_searches_follows_from_their_trials(name, condition, baseline):
    """'median [low, high]' over the searches, all of which reached the target."""
    trials = TRIALS[(TRIALS["study"] == f"further/{name}") & TRIALS["counted"]]
    table = trials.groupby(["condition", "search"])["fresh_examples_to_target"].min()
    ratios = sorted(table[condition] / table[baseline])
    number = len(ratios)
    outside = max(k for k in range(number // 2) if rejected(k, number - k))
    middle, low, high = ratios[number // 2], ratios[outside], ratios[-1 - outside]
    assert f"{middle:.2f} [{low:.2f}, {high:.2f}]" in CLAIMS


def test_slopes_of_the_convex_problem():
    runs = TRIALS[TRIALS["study"] == "convex/regimes"]
    setting = runs["condition"].str.extract(r"e(?P<factor>\d+)_b(?P<batch_size>\d+)").astype(int)
    runs = setting.assign(rate=runs["optimizer.learning_rate"])
    rates = runs.groupby(["batch_size", "factor"])["rate"].first()
    text = (RESULTS / "convex.md").read_text(encoding="utf-8")
    for size in (4, 256):
        own = rates[size]
        points = [math.log(x) for x in own.index], [math.log(x) for x in own]
        slope = statistics.linear_regression(*points).slope
        assert f"{slope:+.2f} at batch size {size}" in text
