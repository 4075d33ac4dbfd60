"""More searches of logistic regression than its studies have, to decide what five left undecided.

    python -m benchmarks.further_searches --train=out/further    an hour or more; resumes

The studies, search spaces, and trials of results/protocol.md (More searches of logistic
regression), which fixes what is run, with SEARCHES searches of the compared conditions instead of
five. The first five repeat known searches, so that only the others are kept, in
results/further_searches.csv.xz; benchmarks.claims judges them. --train writes that file.
"""

# pandas has no complete type stubs.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import dataclasses
import functools
import math
import pathlib

import pandas as pd

import sweep
from analysis import load
from benchmarks import common, decaying_factors
from configs import problems
from runs.progress import Progress
from runs.study import Study
from studies.executors import PoolExecutor
from studies.plan import load_study

PROBLEM = "logistic"
KNOWN, SEARCHES = 5, 30  # searches that had been run before, and all of them
LANES = 16
RECORDS = pathlib.Path(__file__).parents[1] / "results" / "further_searches.csv.xz"

_BEFORE, _BATCH = "before_augmentation_e2", "after_batching_e2"
# By study, in the order in which they run: the compared conditions.
CONDITIONS = {
    "controls": (_BEFORE, "spaced_epochs_2"),
    "fractions": ("baseline", "before_augmentation_e1.5", _BEFORE),
    "quality": ("baseline", _BEFORE),
    "shuffle": tuple(f"{kind}_buffer_{size}" for kind in (_BEFORE, _BATCH) for size in (0, 1024)),
    "decaying": tuple(decaying_factors.SCHEDULES),
    "weight_decay": tuple(
        f"{name}_decay_{decay:g}"
        for name in ("baseline", "before_augmentation_e16")
        for decay in (0, 0.001)
    ),
}
# Columns of the trials that scores, pairs, and their statistics need.
_COLUMNS = ["condition", "search", "trial", "status", "counted", "lanes", "workers", "model_seed"]
_COLUMNS += ["fresh_examples", "fresh_examples_before_target", "fresh_examples_to_target"]
_COLUMNS += ["steps", "steps_to_target", "best_value"]
_SECONDS = ("train_seconds", "seconds_to_target")  # which mean nothing beside other trials


def study(name: str, root: pathlib.Path) -> Study:
    """A study with its compared conditions only, and SEARCHES searches; writes the decisions that
    `decaying` replays below `root`."""
    if name == "decaying":
        return decaying_factors.study(PROBLEM, root, problems.PROBLEMS[PROBLEM].trials, SEARCHES)
    whole = load_study(
        problems.get_config(PROBLEM),
        problems,
        f"configs/problems.py:{PROBLEM}",
        name,
        searches=SEARCHES,
    )
    kept = tuple(c for c in whole.conditions if c.name in CONDITIONS[name])
    baseline = whole.baseline if whole.baseline in CONDITIONS[name] else kept[0].name
    return dataclasses.replace(whole, conditions=kept, baseline=baseline)


def finished(root: pathlib.Path) -> pd.DataFrame:
    """The trials of the new searches that all conditions of a study have finished, with a column
    `study`."""
    tables = []
    for name in CONDITIONS:
        loaded = load.read(root / name)
        trials, plan = loaded.trials, loaded.study
        counted = trials[trials["counted"]].groupby(["search", "condition"]).size().unstack()
        whole = counted.eq(plan.trials).all(axis=1) & (counted.shape[1] == len(plan.conditions))
        new = whole.index[whole & (whole.index >= KNOWN)]
        axes = [axis.field for axis in plan.space]
        tables.append(trials[trials["search"].isin(new)][_COLUMNS + axes].assign(study=name))
    return pd.concat(tables)


def loaded(name: str) -> load.LoadedStudy:
    """The kept trials of a study, with the plan and the labels of its packed records."""
    packed = load.read(RECORDS.parent / "grid" / f"{name}_{PROBLEM}.tar.xz").study
    kept = tuple(c for c in packed.conditions if c.name in CONDITIONS[name])
    trials = pd.read_csv(RECORDS)
    trials = trials[trials["study"] == name].drop(columns="study").reset_index(drop=True)
    labels = {c.name: {"label": c.label, "insertion": c.insertion} for c in kept}
    for column in ("label", "insertion"):
        trials[column] = [labels[condition][column] for condition in trials["condition"]]
    trials = trials.assign(**dict.fromkeys(_SECONDS, math.nan))
    plan = dataclasses.replace(packed, conditions=kept, searches=trials["search"].nunique())
    return load.LoadedStudy(plan, trials, ())


def main(argv: list[str] | None = None) -> None:
    parser = common.bare_parser(__spec__.name, __doc__)
    parser.add_argument(
        "--train", type=pathlib.Path, metavar="DIR", required=True, help="train in DIR"
    )
    options = parser.parse_args(argv)
    workers = functools.partial(PoolExecutor, number=2)
    for name in CONDITIONS:
        plan, outdir = study(name, options.train), options.train / name
        lanes = 1 if name == "decaying" else LANES
        if sweep.run(plan, outdir, Progress(), workers, lanes=lanes) != "finished":
            raise SystemExit("stopped; the same command resumes")
    # more digits than the seven would double what the hyperparameters take
    finished(options.train).to_csv(RECORDS, index=False, float_format="%.7g")


if __name__ == "__main__":
    main()
