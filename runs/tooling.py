"""The tools that follow a run, as flags choose them: trackers, the profiler, a mirror."""

import argparse
import dataclasses
import importlib.util
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from runs.cli import InputError, is_whole_number
from runs.observers import InBackground, Observer, Observers

# By name: the class in runs/trackers.py, and its package.
TRACKERS = {
    "tensorboard": ("TensorBoard", "tensorboardX"),
    "wandb": ("WeightsAndBiases", "wandb"),
    "mlflow": ("MLflow", "mlflow"),
}


@dataclasses.dataclass(frozen=True)
class Tools:
    """The tools that follow runs.

    Attributes:
        trackers: names in TRACKERS.
        profile: (start, stop), the steps to trace; None for none.
        mirror: URL of a copy of `root`; '' for none.
        root: the directory of the run or study that the flags were given for.
    """

    trackers: tuple[str, ...] = ("tensorboard",)
    profile: tuple[int, int] | None = None
    mirror: str = ""
    root: pathlib.Path = pathlib.Path("/")

    def observers(
        self, workdir: pathlib.Path, config: Mapping[str, Any], say: Callable[[str], None]
    ) -> Observers:
        """What follows the run in `workdir`.

        Args:
            workdir: the run's directory, `root` or below it.
            config: its nested configuration.
            say: called with warnings.
        """
        from runs import distributed

        observers: dict[str, Observer] = {}
        if not distributed.is_first():
            return Observers(observers, say)
        if self.trackers:
            from runs import trackers

            run = trackers.Tracked(workdir, self.root, config)
            for name in self.trackers:
                class_name, _ = TRACKERS[name]
                tracker = getattr(trackers, class_name)(run)
                observers[f"--tracker={name}"] = InBackground(tracker)
        if self.profile:
            from runs.profiler import Profiler

            observers["--profile"] = Profiler(workdir, *self.profile, say)
        if self.mirror:
            observers["--mirror"] = self._mirror(workdir, say)
        return Observers(observers, say)

    def copy(
        self, directory: pathlib.Path, say: Callable[[str], None], only: str | None = None
    ) -> None:
        """Brings the mirror of a directory up to date, `root` or below it, or of its file `only`;
        waits for it."""
        from runs import distributed

        if self.mirror and distributed.is_first():
            self._mirror(directory, say, only).end({})

    def _mirror(
        self, directory: pathlib.Path, say: Callable[[str], None], only: str | None = None
    ) -> Observer:
        from runs.mirror import Mirror

        place = directory.absolute().relative_to(self.root.absolute()).as_posix()
        url = self.mirror if place == "." else f"{self.mirror.rstrip('/')}/{place}"
        return Mirror(directory, url, say, only)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds --tracker and --mirror."""
    parser.add_argument(
        "--tracker",
        type=_trackers,
        metavar="NAME[,NAME]",
        help=f"also record to {', '.join(TRACKERS)}, or none (default tensorboard)",
    )
    parser.add_argument(
        "--mirror",
        metavar="URL",
        help="copy the directory to s3://BUCKET/PATH, gs://BUCKET/PATH, or another directory after "
        "each checkpoint and at the end",
    )


def chosen(arguments: argparse.Namespace, root: pathlib.Path) -> Tools:
    """The tools that flags choose for the run or study in `root`; raises InputError."""
    url = arguments.mirror or ""
    if arguments.mirror == "":
        raise InputError("--mirror is ''; allowed: a URL or a directory; leave it out for no copy")
    if url:
        from runs import mirror

        mirror.check(url, root)
        if "://" not in url:  # workers may have another working directory
            url = os.path.abspath(url)
    profile = getattr(arguments, "profile", None)
    trackers = ("tensorboard",) if arguments.tracker is None else arguments.tracker
    return Tools(trackers, profile, url, root.absolute())


def _trackers(text: str) -> tuple[str, ...]:
    """The names in 'NAME,NAME'."""
    names = () if text == "none" else tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in TRACKERS:
            raise InputError(
                f"--tracker is {text!r}; allowed: {', '.join(TRACKERS)}, separated by commas, or "
                "none"
            )
        package = TRACKERS[name][1]
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"--tracker={name} needs the package {package}, which is not installed; "
                f"pip install {package}, or leave it out"
            )
    return names


def steps_to_profile(text: str) -> tuple[int, int]:
    """'START:STOP' as two numbers; raises InputError."""
    start, colon, stop = text.partition(":")
    numbers = colon and is_whole_number(start) and is_whole_number(stop)
    if numbers and 1 <= int(start) < int(stop):
        return int(start), int(stop)
    raise InputError(
        f"--profile is {text!r}; allowed: START:STOP, the first step to trace, from 1, and the "
        "step before which the trace ends"
    )
