"""Studies of the shrunk digits, for tests that run them."""

import sweep
from configs import cifar10
from runs.progress import Progress
from tests.helpers.runs import mini

QUIET = Progress(quiet=True)


SPACE = cifar10.get_search_space("mini")[:3]


BOTH = ("baseline", "before_augmentation_e2")


def study(trials=2, searches=1, conditions=BOTH, **more):
    plan = cifar10.get_studies("mini")["demo"]
    config = mini(budget__fresh_examples=320, checkpoint_every_fresh_examples=0, **more)
    return sweep.Study(
        name="demo",
        config=config,
        config_flag="configs/cifar10.py:mini",
        conditions=tuple(
            {"name": name, "label": sweep.label(plan["conditions"][name])}
            | {"overrides": plan["conditions"][name]}
            for name in conditions
        ),
        space=SPACE,
        trials=trials,
        searches=searches,
        baseline="baseline",
    )
