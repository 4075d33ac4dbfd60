"""What follows a run from outside: trackers, a profile, a mirror. None can hold up or end it."""

import argparse
import contextlib
import dataclasses
import functools
import importlib.util
import logging
import os
import pathlib
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from runs import cli, records
from runs.cli import InputError
from runs.study import flat

# How long the end of a run waits for a follower that does not answer.
_SILENT_SECONDS = 300.0

# What trackers compare runs by, besides what a search has drawn.
_COMPARED = ("echo.insertion", "echo.policy", "echo.factor", "echo.shuffle_buffer", "batch_size")
_COMPARED += ("optimizer.learning_rate", "optimizer.momentum", "optimizer.weight_decay", "workload")
_SCORES = ("fresh_examples_to_target", "steps_to_target", "seconds_to_target")
_FAILED = ("diverged", "failed")


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

    def followers(
        self, workdir: pathlib.Path, config: Mapping[str, Any], say: Callable[[str], None]
    ) -> "Followers":
        """What follows the run in `workdir`, `root` or below it.

        Args:
            config: the run's nested configuration.
            say: called with warnings.
        """
        from runs import processes

        run, make = Tracked(workdir, self.root, config), dict[str, Callable[[int], Any]]()
        for name in self.trackers:
            make[f"--tracker={name}"] = functools.partial(TRACKERS[name][0], run)
        make |= self._mirror(workdir, say)
        profile = Profile(workdir, *self.profile, say) if self.profile else None
        return Followers(make if processes.is_first() else {}, say, profile)

    def copy(self, directory: pathlib.Path, say: Callable[[str], None]) -> None:
        """Brings the mirror of a directory, `root` or below it, up to date, and waits for it."""
        from runs import processes

        followers = Followers(self._mirror(directory, say) if processes.is_first() else {}, say)
        followers.tell("start", 0)
        followers.close()

    def check(self, directory: pathlib.Path) -> None:
        """Raises InputError if `directory`, of a run or study that is about to begin or resume,
        cannot have its mirror: see mirror.check_writable. Leaves nothing there."""
        from runs import mirror

        if self.mirror and directory.absolute() == self.root.absolute():
            mirror.check(self.mirror, self.root)
            mirror.check_writable(self.mirror, self.root)

    def _mirror(
        self, directory: pathlib.Path, say: Callable[[str], None]
    ) -> dict[str, Callable[[int], Any]]:
        from runs.mirror import Mirror

        make = lambda _: Mirror(self.root, self.mirror, directory, say)  # noqa: E731
        return {"--mirror": make} if self.mirror else {}


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
    if arguments.mirror is not None:
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
            allowed = ", ".join(TRACKERS)
            raise InputError(
                f"--tracker is {text!r}; allowed: {allowed}, separated by commas, or none"
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
    numbers = [int(part) for part in text.split(":") if cli.is_whole_number(part)]
    if text.count(":") == 1 and len(numbers) == 2 and 1 <= numbers[0] < numbers[1]:
        return numbers[0], numbers[1]
    raise InputError(
        f"--profile is {text!r}; allowed: START:STOP, the first step to trace, from 1, and the "
        "step before which the trace ends"
    )


class Followers:
    """Tells what follows a run of its events, each in a thread of its own. A follower that fails is
    named in a warning, and left out from then on.

    A follower has a method for each event that it needs:
    * `record(record)`: the run has written `step`, `fresh_examples`, `split`, and numbers by name;
    * `saved()`: a checkpoint is complete;
    * `end(result)`: the run has ended with this result.json, perhaps to be resumed later;
    * `close()`: comes last, also if an error prevented a result.

    Args:
        make: by name, what makes a follower at the event `start(fresh_examples)`: the run is about
            to take its first step in this process, at this position, and later records of an
            earlier process will be recorded again.
        say: called with the warning.
        profile: is told of each step.
    """

    def __init__(
        self,
        make: Mapping[str, Callable[[int], Any]],
        say: Callable[[str], None],
        profile: "Profile | None" = None,
    ):
        self._say, self._profile = say, profile
        self._queues: list[tuple[queue.SimpleQueue, threading.Thread]] = []
        for name, maker in make.items():
            events = queue.SimpleQueue()
            follow = threading.Thread(
                target=self._follow, args=(maker, events), name=name, daemon=True
            )
            follow.start()
            self._queues.append((events, follow))

    def step(self, step: int) -> None:
        """The run is about to take a step; the first one is 1."""
        if self._profile:
            self._profile.step(step)

    def tell(self, event: str, *arguments: Any) -> None:
        """Passes an event on without waiting."""
        for events, _ in self._queues:
            events.put((event, arguments))

    def close(self) -> None:
        """Waits for the followers; called once, last."""
        if self._profile:
            self._profile.close()
        # One after the other: the mirror comes last, and copies what the others have written.
        for events, follow in self._queues:
            events.put(("close", ()))
            events.put(None)
            follow.join(_SILENT_SECONDS)
            if follow.is_alive():
                self._say(f"warning: {follow.name} does not answer; the run ends without it")

    def _follow(self, make: Callable[[int], Any], events: queue.SimpleQueue) -> None:
        follower = None
        try:
            while item := events.get():
                event, arguments = item
                if event == "start":
                    follower = make(*arguments)
                elif hasattr(follower, event):
                    getattr(follower, event)(*arguments)
        except Exception as error:
            name = threading.current_thread().name
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self._say(f"warning: {name} failed ({reason}); the run continues without it")


class Profile:
    """Traces the steps from `start` until `stop`, without it, into WORKDIR/profile, which
    TensorBoard and Perfetto display.

    The host's regions (read, decode, echo, augment, transfer, step, evaluate, save) are named in it
    by `jax.profiler.TraceAnnotation`, which costs next to nothing while no trace is taken.
    """

    def __init__(self, workdir: pathlib.Path, start: int, stop: int, say: Callable[[str], None]):
        self._directory, self._say = workdir / records.PROFILE, say
        self._steps, self._tracing, self._traced = range(start, stop), False, False

    def step(self, step: int) -> None:
        import jax

        if step in self._steps and not self._tracing:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # every call of Python would bury the named regions
            jax.profiler.start_trace(self._directory, profiler_options=options)
            self._tracing = self._traced = True
        elif step not in self._steps and self._tracing:
            self._tracing = False
            jax.profiler.stop_trace()

    def close(self) -> None:
        self.step(self._steps.stop)
        if not self._traced:
            self._say(
                f"warning: this launch trained none of the steps {self._steps.start}:"
                f"{self._steps.stop} of --profile, so there is no trace"
            )


class Tracked:
    """A run as trackers see it.

    Args:
        workdir: the run's directory.
        root: the study's directory; `workdir` itself for a single run.
        config: the nested configuration.

    Attributes:
        name: such as 'e2/0/3', or the directory's name.
        group: the name of the study, or of the run.
        hparams: what runs are compared by.
    """

    def __init__(self, workdir: pathlib.Path, root: pathlib.Path, config: Mapping[str, Any]):
        self.workdir, self._lock = workdir, threading.Lock()
        path = workdir.absolute().relative_to(root.absolute())
        self.group = root.absolute().name
        self.name = path.as_posix() if path.parts else self.group
        redact = lambda x: records.redacted(x) if isinstance(x, str) else x  # noqa: E731
        self.config = {name: redact(value) for name, value in flat(config).items()}
        record = records.read_json(workdir / records.HPARAMS)
        drawn = record.pop("hparams", {})
        self.hparams = {name: self.config[name] for name in _COMPARED} | record | drawn

    def identity(self, tracker: str, new: Callable[[], str]) -> str:
        """The run's identity with a tracker: that of an earlier process, or a new one."""
        path = self.workdir / records.TRACKED
        with self._lock:
            known = records.read_json(path)
            if tracker not in known:
                known[tracker] = new()
                records.write_json(path, known)
            return known[tracker]


def _scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record by tag, such as 'train/loss'."""
    names = record.keys() - {"step", "fresh_examples", "split"}
    return {f"{record['split']}/{name}": float(record[name]) for name in sorted(names)}


def _scores(result: Mapping[str, Any]) -> dict[str, float]:
    """The numbers by which a run is judged; those of a target that was not reached are missing."""
    scores = {name: result.get(name) for name in _SCORES}
    scores |= {"best": result["best"]["value"], "reached": result["status"] == "reached"}
    return {f"score/{name}": float(value) for name, value in scores.items() if value is not None}


class TensorBoard:
    """Writes WORKDIR/tensorboard: scalars over fresh examples, and the run's row in HParams.

    Not by tensorboardX's SummaryWriter: on a full disk its thread ends with a traceback, and the
    process then waits forever for someone to empty the thread's queue.
    """

    def __init__(self, run: Tracked, fresh_examples: int):
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter

        logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)  # it reports every NaN
        directory = run.workdir / records.TENSORBOARD
        directory.mkdir(exist_ok=True)
        self._summary, self._writer = summary, EventsWriter(str(directory / "events"))
        # TensorBoard drops what an earlier process has recorded from here on.
        self._write(fresh_examples + 1, session_log={"status": "START"})
        tags = [f"score/{name}" for name in ("reached", "best", *_SCORES)]
        experiment, row, self._success = summary.hparams(run.hparams, dict.fromkeys(tags))
        self._write(fresh_examples, summary=experiment)
        self._write(fresh_examples, summary=row)

    def record(self, record: Mapping[str, Any]) -> None:
        self._add(_scalars(record), record["fresh_examples"])

    def end(self, result: Mapping[str, Any]) -> None:
        if result["status"] != "preempted":
            self._add(_scores(result), result["fresh_examples"])
        if result["status"] in records.COUNTABLE:
            self._write(result["fresh_examples"], summary=self._success)

    def close(self) -> None:
        self._writer.close()

    def _add(self, values: Mapping[str, float], fresh_examples: int) -> None:
        for tag, value in values.items():
            self._write(fresh_examples, summary=self._summary.scalar(tag, value))
        self._writer.flush()

    def _write(self, step: int, **content: Any) -> None:
        from tensorboardX.proto import event_pb2

        event = event_pb2.Event(wall_time=time.time(), step=step, **content)  # pyright: ignore
        self._writer.write_event(event)


class WeightsAndBiases:
    """Logs to Weights & Biases, in the project of WANDB_PROJECT (default: data-echoing)."""

    def __init__(self, run: Tracked, fresh_examples: int):
        del fresh_examples  # the axis of a run that resumes continues by itself
        os.environ.setdefault("WANDB_SILENT", "true")  # no prompts over the display of progress
        import wandb  # pyright: ignore[reportMissingImports]

        settings = wandb.Settings(console="off")
        self._wandb = wandb.init(
            project=settings.project or "data-echoing",
            group=run.group,
            name=run.name,
            id=run.identity("wandb", lambda: secrets.token_hex(8)),
            resume="allow",
            reinit="create_new",
            config=run.config,
            dir=str(run.workdir),
            settings=settings,
        )
        self._wandb.define_metric("*", step_metric="fresh_examples")

    def record(self, record: Mapping[str, Any]) -> None:
        counts = {name: record[name] for name in ("step", "fresh_examples")}
        self._wandb.log(counts | _scalars(record))

    def end(self, result: Mapping[str, Any]) -> None:
        self._wandb.summary.update(_scores(result) | {"status": result["status"]})
        self._wandb.finish(exit_code=int(result["status"] in _FAILED))


class MLflow:
    """Logs to MLflow, in an experiment named after the study, at MLFLOW_TRACKING_URI."""

    def __init__(self, run: Tracked, fresh_examples: int):
        del fresh_examples  # MLflow keeps every value of a step
        import mlflow  # pyright: ignore[reportMissingImports]

        def create() -> str:
            experiment = mlflow.set_experiment(run.group).experiment_id
            identity = self._client.create_run(experiment, run_name=run.name).info.run_id
            for name, value in (run.config | run.hparams).items():
                self._client.log_param(identity, name, value)
            return identity

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it reports every new experiment
        self._client = mlflow.MlflowClient()
        self._id = run.identity("mlflow", create)
        self._client.update_run(self._id, status="RUNNING")

    def record(self, record: Mapping[str, Any]) -> None:
        self._log(_scalars(record), record["fresh_examples"])

    def end(self, result: Mapping[str, Any]) -> None:
        self._log(_scores(result), result["fresh_examples"])
        self._client.set_tag(self._id, "status", result["status"])
        status = {"preempted": "KILLED", **dict.fromkeys(_FAILED, "FAILED")}
        self._client.set_terminated(self._id, status.get(result["status"], "FINISHED"))

    def _log(self, values: Mapping[str, float], fresh_examples: int) -> None:
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        now = int(1000 * time.time())
        metrics = [Metric(k, v, now, fresh_examples) for k, v in values.items()]
        self._client.log_batch(self._id, metrics=metrics)


# By name: the tracker, and its package.
TRACKERS: dict[str, tuple[Callable[[Tracked, int], Any], str]] = {
    "tensorboard": (TensorBoard, "tensorboardX"),
    "wandb": (WeightsAndBiases, "wandb"),
    "mlflow": (MLflow, "mlflow"),
}


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
        from runs import processes

        self._workdir, self._followers = workdir, followers
        self.active = processes.is_first()
        if self.active:
            self._metrics = records.LinesWriter(workdir / records.METRICS, keep_bytes)
            (workdir / records.RESULT).unlink(missing_ok=True)

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
                for path in [*self._workdir.iterdir()]:
                    if records.is_error_file(path.name) and path.is_file():
                        path.unlink()
            result = records.write_result(self._workdir, result, self._extent)
            self._followers.tell("end", result)
        return result
