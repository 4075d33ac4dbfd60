"""Whether factors that fall, or rise, during training gain more than a constant one.

    python -m benchmarks.decaying_factors --train=out/decaying_factors    five minutes; resumes
    python -m benchmarks.decaying_factors --problem=sentences --train=out/decaying_sentences
                                                      half an hour; data in $TFDS_DATA_DIR; resumes
    python -m analysis out/decaying_factors/study --out=DIR               table and figures

Logistic regression or sentences, as in the grid (results/protocol.md, which says how this is
judged). Decisions that training replays (docs/auto.md) say how many fresh examples each batch
takes. The first batch has nothing to repeat. A period of fresh examples later (PERIODS), all
conditions have emitted each of these twice on average, in equally many steps; then all echo evenly,
e = 2.
"""

import functools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import sweep
from benchmarks import common
from configs import catalog, problems
from runs.progress import Progress
from runs.study import Study
from studies.executors import PoolExecutor
from studies.search import make_study

BATCH_SIZE, BUFFER = 32, 256
PERIODS = {"logistic": 3_600, "sentences": 2_880}  # by problem
MAX_FACTOR = 16  # never reached

# After the first batch: (thirds of the period up to which it holds, echo factor), and e = 2 beyond.
SCHEDULES = {
    "constant": (),
    "decaying": ((1, 4), (3, 1)),
    "growing": ((2, 1), (3, 4)),
}


def decisions(schedule: Sequence[tuple[int, int]], period: int, budget: int) -> list[int]:
    """Fresh examples of each batch."""
    taken, left = [BATCH_SIZE], budget - BATCH_SIZE
    ends = [(thirds * period // 3, factor) for thirds, factor in schedule]
    for end, factor in (*ends, (left, 2)):
        start = sum(taken) - BATCH_SIZE
        taken += [BATCH_SIZE // factor] * ((end - start) * factor // BATCH_SIZE)
    return taken


def study(problem: str, root: pathlib.Path, trials: int, searches: int) -> Study:
    """The study; writes the decisions that its conditions replay below `root`."""
    config = problems.get_config(problem)
    config.batch_size, budget = BATCH_SIZE, config.budget.fresh_examples
    config.evaluate_every_fresh_examples = budget // problems.EVALUATIONS // 2
    conditions: dict[str, dict[str, Any]] = {}
    for name, schedule in SCHEDULES.items():
        path = root / f"{name}.jsonl"
        taken = enumerate(decisions(schedule, PERIODS[problem], budget), 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"step": k, "fresh": [n]}) + "\n" for k, n in taken))
        conditions[name] = catalog.auto(MAX_FACTOR, BUFFER) | {"echo.replay": str(path)}
    return make_study(
        "decaying_factors",
        config,
        conditions,
        problems.get_search_space(problem),
        trials=trials,
        searches=searches,
        baseline="constant",
        config_flag=f"configs/problems.py:{problem}",
    )


def main(argv: list[str] | None = None) -> None:
    parser = common.bare_parser(__spec__.name, __doc__)
    parser.add_argument(
        "--train", type=pathlib.Path, metavar="DIR", required=True, help="train in DIR"
    )
    parser.add_argument("--problem", choices=PERIODS, default="logistic", help="default: logistic")
    options = parser.parse_args(argv)
    trials = problems.PROBLEMS[options.problem].trials
    plan = study(options.problem, options.train, trials, problems.SEARCHES)
    workers = functools.partial(PoolExecutor, number=2)
    if sweep.run(plan, options.train / "study", Progress(), workers) != "finished":
        raise SystemExit("stopped; the same command resumes")


if __name__ == "__main__":
    common.command(main)
