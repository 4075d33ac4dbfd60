"""What follows a run from outside: trackers, a profile, a mirror. None can hold up or end it."""

import argparse
import contextlib
import dataclasses
import importlib.util
import os
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from echo.threads import DaemonPool, done_within
from runs import mirror, processes, records
from runs.cli import InputError, expanded
from runs.trackers import TRACKERS, Profile

# How long the end of a run waits for a follower that does not answer.
_SILENT_SECONDS = 300.0


@dataclasses.dataclass(frozen=True)
class Tools:
    """The tools that follow runs.

    Attributes:
        trackers: names in TRACKERS.
        profile: (start, stop), the steps to trace; None for none.
        mirror: URL of a copy of `root`; None for none.
        root: the directory of the study; None for that of the run.
    """

    trackers: tuple[str, ...] = ("tensorboard",)
    profile: tuple[int, int] | None = None
    mirror: str | None = None
    root: pathlib.Path | None = None

    def followers(
        self, workdir: pathlib.Path, config: Mapping[str, Any], say: Callable[[str], None]
    ) -> "Followers":
        """What follows the run in `workdir`.

        Args:
            config: the run's nested configuration.
            say: called with warnings.
        """
        names = self.trackers if processes.is_first() else ()
        root = self.root or workdir
        made = {f"--tracker={n}": TRACKERS[n][0](workdir, root, config) for n in names}
        profile = Profile(workdir, *self.profile, say) if self.profile else None
        return Followers(made | self._mirror(workdir, say), say, profile)

    def copy(self, directory: pathlib.Path, say: Callable[[str], None]) -> None:
        """Brings the mirror of a study's or run's directory up to date, and waits for it."""
        Followers(self._mirror(directory, say), say).close()

    def _mirror(self, directory: pathlib.Path, say: Callable[[str], None]) -> dict[str, Any]:
        if not (self.mirror and processes.is_first()):
            return {}
        root = self.root or directory
        return {"--mirror": mirror.Mirror(root, self.mirror, directory, say)}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds --tracker and --mirror."""
    parser.add_argument(
        "--tracker",
        type=_trackers,
        default=("tensorboard",),
        metavar="NAME[,NAME]",
        help=f"also record to {', '.join(TRACKERS)}, or none (default tensorboard)",
    )
    parser.add_argument(
        "--mirror",
        type=_place,
        metavar="URL",
        help="copy the directory to s3://BUCKET/PATH, gs://BUCKET/PATH, or another directory after "
        "each checkpoint and at the end",
    )


def _place(text: str) -> str:
    """A URL, or the absolute path of a directory, since workers may have another working one."""
    if not text:
        raise InputError("--mirror is ''; give a URL or a directory")
    return text if "://" in text else os.path.abspath(expanded(text))


def _trackers(text: str) -> tuple[str, ...]:
    """The names in 'NAME,NAME'."""
    names = () if text == "none" else tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in TRACKERS:
            allowed = ", ".join(TRACKERS)
            raise InputError(f"--tracker is {text!r}; allowed: {allowed}, with commas, or none")
        package = TRACKERS[name][1]
        if importlib.util.find_spec(package) is None:
            raise InputError(f"--tracker={name} needs the package {package}; pip install {package}")
    return names


def steps_to_profile(text: str) -> tuple[int, int]:
    """'START:STOP' as two numbers; raises InputError."""
    start, stop = map(records.whole_number, text.partition(":")[::2])
    if 1 <= start < stop:
        return start, stop
    raise InputError(
        f"--profile is {text!r}; allowed: START:STOP, the first step to trace, from 1, and the "
        "step before which the trace ends"
    )


class Followers:
    """Tells what follows a run of its events, each in a thread of its own, but for the profile. A
    follower that fails is named in a warning, and left out from then on.

    A follower has a method for each event that it needs:
    * `start(fresh_examples)`: the run is about to take its first step in this process, at this
      position; later records of an earlier process will be recorded again;
    * `record(record)`: the run has written `step`, `fresh_examples`, `split`, and numbers by name;
    * `saved()`: a checkpoint is complete;
    * `end(result)`: the run has ended with this result.json, perhaps to be resumed later;
    * `close()`: comes last, also if an error prevented a result.

    Args:
        followers: by name.
        say: called with the warning.
        profile: is told of each step.
    """

    def __init__(
        self,
        followers: Mapping[str, Any],
        say: Callable[[str], None],
        profile: Profile | None = None,
    ):
        self._followers, self._say = {**followers, "--profile": profile}, say
        self._threads = {name: DaemonPool(1) for name in followers}

    def step(self, step: int) -> None:
        """The run is about to take a step; the first one is 1."""
        self._call("--profile", "step", (step,))

    def tell(self, event: str, *arguments: Any) -> None:
        """Passes an event on without waiting."""
        for name, thread in self._threads.items():
            thread.submit(self._call, name, event, arguments)

    def close(self) -> None:
        """Waits for the followers; called once, last."""
        self._call("--profile", "close", ())
        # One after the other: the mirror comes last, and copies what the others have written.
        for name, thread in self._threads.items():
            last = thread.submit(self._call, name, "close", ())
            thread.close()
            if not done_within(_SILENT_SECONDS, last):
                self._say(f"warning: {name} does not answer; the run ends without it")

    def _call(self, name: str, event: str, arguments: tuple) -> None:
        try:
            if call := getattr(self._followers[name], event, None):
                call(*arguments)
        except Exception as error:
            self._followers[name] = None
            reason = records.plain(f"{type(error).__name__}: {error}")
            self._say(f"warning: {name} failed ({reason}); the run continues without it")


class Recorder:
    """Writes a run's `metrics.jsonl` and `result.json`, and passes them on to followers.

    Removes the result of an interruption from which the run resumes, since it has not ended now.

    Args:
        workdir: the run's directory.
        keep_bytes: see records.LinesWriter.
        followers: get each record, and the result.

    Attributes:
        active: whether this process writes; only the first of several does.
    """

    def __init__(self, workdir: pathlib.Path, keep_bytes: int, followers: Followers):
        self._workdir, self._followers = workdir, followers
        self.active = processes.is_first()
        if self.active:
            (workdir / records.RESULT).unlink(missing_ok=True)  # before what it covers is cut
            self._metrics = records.LinesWriter(workdir / records.METRICS, keep_bytes)

    def write(self, record: dict[str, Any]) -> None:
        """Appends a record: `step`, `fresh_examples`, `split`, and numbers by name."""
        if self.active:
            self._metrics.write(record)
            self._followers.tell("record", record)

    def sync(self) -> records.Extent:
        """Forces records to disk; returns the extent of metrics.jsonl."""
        return self._metrics.sync() if self.active else records.Extent()

    def close(self) -> None:
        """Forces metrics.jsonl to disk and closes it; the result, which says that it is whole, may
        follow."""
        if self.active:
            with contextlib.closing(self._metrics):
                self._extent = self._metrics.sync()

    def write_result(self, result: dict[str, Any]) -> dict[str, Any]:
        """Writes result.json, the last record; returns its content. A run that has finished no
        longer has the errors of earlier attempts."""
        if self.active:
            if result["status"] in records.FINISHED:
                for path in self._workdir.glob("error*.txt"):
                    if re.fullmatch(r"error\d*\.txt", path.name):  # not a user's
                        path.unlink()
            result = result | {"records": {records.METRICS: dataclasses.asdict(self._extent)}}
            records.write_json(self._workdir / records.RESULT, result)
            self._followers.tell("end", result)
        return result
