"""Studies of the shrunk digits, for tests that run them."""

from configs import cifar10
from runs.progress import Progress
from studies.plan import make_study
from tests.helpers.runs import mini

QUIET = Progress(quiet=True)
AXES = cifar10.get_search_space("mini")[:3]
BOTH = ("baseline", "before_augmentation_e2")


def study(trials=2, searches=1, conditions=BOTH, axes=AXES, overrides=None, **fields):
    """The demo study with the given conditions; `overrides` adds to those of the last condition."""
    definition = cifar10.get_studies("mini")["demo"]["conditions"]
    chosen = {name: dict(definition[name]) for name in conditions}
    chosen[conditions[-1]] |= overrides or {}
    return make_study(
        "demo",
        mini(budget__fresh_examples=320, checkpoint_every_fresh_examples=0, **fields),
        conditions=chosen,
        space=axes,
        trials=trials,
        searches=searches,
        baseline="baseline",
        config_flag="configs/cifar10.py:mini",
    )
