"""The studies of every workload, generated from a few numbers of the workload.

docs/studies.md explains the keys of a study. Figure numbers are those of arXiv 1907.05550.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from configs import base

Conditions = dict[str, dict[str, Any]]
Studies = dict[str, dict[str, Any]]
Ends = Mapping[str, Sequence[float]]  # the ends of each axis of `space`, or its choices
Space = tuple[dict[str, Any], ...]

_INSERTIONS = ("before_augmentation", "after_augmentation", "after_batching")


def echo(insertion: str, factor: float, shuffle_buffer: int) -> dict[str, Any]:
    """Overrides that set an insertion point, a factor, and a buffer."""
    return {
        "echo.insertion": insertion,
        "echo.factor": factor,
        "echo.shuffle_buffer": shuffle_buffer,
    }


def auto(max_factor: int, shuffle_buffer: int) -> dict[str, Any]:
    """Overrides that echo opportunistically before augmentation."""
    return {
        "echo.insertion": "before_augmentation",
        "echo.policy": "auto",
        "echo.max_factor": max_factor,
        "echo.shuffle_buffer": shuffle_buffer,
    }


BASELINE: Conditions = {
    "baseline": {"echo.insertion": "none", "echo.factor": 1, "echo.shuffle_buffer": 0}
}

HORIZON = "optimizer.schedule.horizon_fresh_examples"

# The axes of `space`. `log_one_minus` spaces 1 - value evenly in log.
_AXES = {
    "learning_rate": {"field": "optimizer.learning_rate", "scale": "log"},
    "one_minus_momentum": {"field": "optimizer.momentum", "scale": "log_one_minus"},
    "weight_decay": {"field": "optimizer.weight_decay", "scale": "log"},
    "final_factor": {"field": "optimizer.schedule.final_factor", "scale": "log"},
    "step_factor": {"field": "optimizer.schedule.step_factor", "scale": "log"},
    "budgets_of_decay": {"field": HORIZON, "scale": "log", "times": "budget.fresh_examples"},
    "label_smoothing": {"field": "loss.label_smoothing", "scale": "choice"},
}


def space(ends: Ends) -> Space:
    """Axes, named as in `_AXES`, from end to end; searched separately for each condition."""
    axes = []
    for name, values in ends.items():
        choice = _AXES[name]["scale"] == "choice"
        own = {"values": values} if choice else dict(zip(("min", "max"), values, strict=True))
        axes.append(_AXES[name] | own)
    return tuple(axes)


# The horizon of every schedule that decays is searched. With a fixed horizon, the decay would come
# too late for conditions that finish early.
DECAY = (1 / 32, 2.0)


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The numbers of a workload; by default those of a mini, whose trials take a minute and start
    over. Buffer sizes are our choice: the paper gives none."""

    batch_sizes: Sequence[int]  # the workload's batch size, and others to compare with it
    upstream: float  # rate of a slow upstream, examples per second: about a sixth of the step's
    budget: int  # fresh examples per trial
    demo: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # its own keys
    buffer: int = 256  # copies in the shuffle buffer; after batching, as many in whole batches
    buffers: Sequence[int] = (0, 64, 256, 1024)  # that the study of shuffling compares
    never: float = 2.0  # a value of the target's metric that no run reaches
    trials: int = 16  # per search
    searches: int = 3  # per condition
    demo_factors: Sequence[int] = ()  # of the demo's echoing before augmentation, besides 2
    augments: bool = True  # if not, the first two insertion points are equal
    decays: bool = True  # whether the learning rate does, so that the schedule has a horizon
    overrides: Mapping[str, Any] = dataclasses.field(  # of every study
        default_factory=lambda: {"checkpoint_every_fresh_examples": 0}
    )

    @property
    def insertions(self) -> tuple[str, ...]:
        return _INSERTIONS if self.augments else (_INSERTIONS[0], _INSERTIONS[2])

    def at(
        self, insertion: str, factor: float, batch_size: int = 0, buffer: int | None = None
    ) -> dict[str, Any]:
        """Overrides for an insertion point, with the workload's batch size and buffer unless
        given."""
        items = self.buffer if buffer is None else buffer
        if insertion == "after_batching":
            items = math.ceil(items / (batch_size or self.batch_sizes[0]))
        return echo(insertion, factor, items)

    def before(self, *factors: float) -> Conditions:
        """A condition for each factor, before augmentation."""
        return {f"before_augmentation_e{e}": self.at("before_augmentation", e) for e in factors}

    def grid(
        self, batch_sizes: Iterable[int], insertions: Sequence[str], factors: Sequence[float]
    ) -> Conditions:
        """No echoing and each combination, by names such as `after_batching_e2_b32`."""
        conditions = {}
        for size in batch_sizes:
            conditions[f"baseline_b{size}"] = BASELINE["baseline"] | {"batch_size": size}
            for insertion in insertions:
                for e in factors:
                    own = self.at(insertion, e, size) | {"batch_size": size}
                    conditions[f"{insertion}_e{e}_b{size}"] = own
        return conditions


def get_search_space(searches: Mapping[str, tuple[Ends, Numbers]], variant: str = "") -> Space:
    """What the `get_search_space` of a configuration file returns, of the searches of its
    variants."""
    return space(base.choose(searches, variant)[0])


def get_studies(searches: Mapping[str, tuple[Ends, Numbers]], variant: str = "") -> Studies:
    """What the `get_studies` of a configuration file returns."""
    return studies(base.choose(searches, variant)[1])


def studies(numbers: Numbers) -> Studies:
    """A demo, the studies behind the paper's figures 4 to 9, and controls that it lacks."""
    sizes, budget, none = numbers.batch_sizes, numbers.budget, BASELINE["baseline"]
    ends, e2 = (_INSERTIONS[0], _INSERTIONS[2]), numbers.at(_INSERTIONS[0], 2)
    twice = BASELINE | {f"{point}_e2": numbers.at(point, 2) for point in numbers.insertions}
    made: Studies = {
        "demo": {
            "about": "A first look: where to echo, and how often, with a small search.",
            "conditions": twice | numbers.before(*numbers.demo_factors),
            "cadence": "step",  # as in the numbers that pages print
            **numbers.demo,
        },
        "pilot": {
            "about": "A few trials of e = 1, 4, and 16: how much is a repeat worth here?",
            "conditions": BASELINE | numbers.before(4, 16),
            "trials": 4,
            "searches": 1,
        },
        "insertion": {
            "about": "Figure 4: every insertion point at e = 2, compared with no echoing.",
            "conditions": twice,
        },
        "wall_time": {
            "about": "Figure 5: seconds to the target behind a slow upstream, e = 1 to 5.",
            "conditions": BASELINE | numbers.before(2, 3, 4, 5),
            "overrides": {"upstream.examples_per_second": numbers.upstream},
            "score": "seconds",
        },
        "factor": {
            "about": "Figure 6: e = 1, 2, 4, 8, 16 at two batch sizes; does e = 16 "
            "gain more at the larger?",
            "conditions": numbers.grid(sizes[:2], ends[:1], (2, 4, 8, 16)),
            "baseline": f"baseline_b{sizes[0]}",
        },
        "batch_size": {
            "about": "Figure 7: e = 2 at several batch sizes, each compared with no echoing.",
            "conditions": numbers.grid(sizes, ends, (2,)),
            "baseline": f"baseline_b{sizes[0]}",
        },
        "shuffle": {
            "about": "Figure 8: e = 2 with shuffle buffers of several sizes; after batching they "
            "hold batches with as many examples.",
            "conditions": BASELINE
            | {
                f"{insertion}_e2_buffer_{size}": numbers.at(insertion, 2, buffer=size)
                for insertion in ends
                for size in numbers.buffers
            },
        },
        "quality": {
            "about": "Figure 9: the best value within a fixed budget of fresh examples.",
            "conditions": twice | numbers.before(4),
            "overrides": {"target.value": numbers.never},
            "score": "best_value",
        },
        "controls": {
            "about": "Does the gain come from echoing, from more steps, or from another schedule? "
            "The baseline with as many steps as e = 2, e = 2 with as many as the baseline, the "
            "baseline with half its horizon, and repeats that are a pass over the data apart.",
            "conditions": {
                "baseline": none,
                "before_augmentation_e2": e2,
                "spaced_epochs_2": none | {"dataset.spaced_epochs": 2},
                "baseline_steps_of_e2": none | {"budget.fresh_examples": 2 * budget},
                "before_augmentation_e2_steps_of_baseline": e2
                | {"budget.fresh_examples": budget // 2},
            },
            "not_searched": (HORIZON,),
        },
    }
    if numbers.decays:
        half = none | {HORIZON: budget // 2}
        made["controls"]["conditions"]["baseline_horizon_of_half"] = half
    defaults = {"baseline": "baseline", "trials": numbers.trials, "searches": numbers.searches}
    for name, own in made.items():
        made[name] = defaults | own
        made[name]["overrides"] = {**numbers.overrides, **own.get("overrides", {})}
        if "space" in own:
            made[name]["space"] = space(own["space"])
    return made
