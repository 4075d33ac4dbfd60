"""Trackers (TensorBoard, Weights & Biases, MLflow) and a profiler; see tracking.Followers."""

import logging
import os
import pathlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from runs import records
from runs.records import flat

_SCORES = ("fresh_examples_to_target", "steps_to_target", "seconds_to_target")
_FAILED = ("diverged", "failed")

_identities = threading.Lock()  # on trackers.json, which the trackers of a run share


class Tracker:
    """A run as trackers see it.

    Args:
        workdir: the run's directory.
        root: the study's directory; `workdir` itself for a single run.
        config: the nested configuration.

    Attributes:
        name: such as 'e2/0/3', or the directory's name.
        group: the name of the study, or of the run.
        config: the fields by dotted name.
    """

    def __init__(self, workdir: pathlib.Path, root: pathlib.Path, config: Mapping[str, Any]):
        path = workdir.absolute().relative_to(root.absolute())
        self.workdir, self.group = workdir, root.absolute().name
        self.name = path.as_posix() if path.parts else self.group
        self.config = {
            name: records.redacted(value) if isinstance(value, str) else value
            for name, value in flat(config).items()
        }

    def write(self, values: Mapping[str, float], at: Mapping[str, Any]) -> None:
        """Adds values by tag, at the `step` and `fresh_examples` of a record."""

    def record(self, record: Mapping[str, Any]) -> None:
        split, names = record["split"], record.keys() - {"step", "fresh_examples", "split"}
        self.write({f"{split}/{name}": float(record[name]) for name in sorted(names)}, record)

    def identity(self, tracker: str, new: Callable[[], str]) -> str:
        """The run's identity with a tracker: that of an earlier process, or a new one."""
        path = self.workdir / records.TRACKED
        with _identities:
            known = records.read_json(path)
            if tracker not in known:
                known[tracker] = new()
                records.write_json(path, known)
            return known[tracker]


def _scores(result: Mapping[str, Any]) -> dict[str, float]:
    """The numbers by which a run is judged; those of a target that was not reached are missing."""
    scores = {name: result.get(name) for name in _SCORES}
    scores |= {"best": result["best"]["value"], "reached": result["status"] == "reached"}
    return {f"score/{name}": float(value) for name, value in scores.items() if value is not None}


class TensorBoard(Tracker):
    """Writes WORKDIR/tensorboard: scalars over fresh examples.

    Not by tensorboardX's SummaryWriter: on a full disk its thread ends with a traceback, and the
    process then waits forever for someone to empty the thread's queue.
    """

    _writer: Any = None

    def start(self, fresh_examples: int) -> None:
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter

        logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)  # it reports every NaN
        directory = self.workdir / records.TENSORBOARD
        directory.mkdir(exist_ok=True)
        self._summary, self._writer = summary, EventsWriter(str(directory / "events"))
        # TensorBoard drops what an earlier process has recorded from here on.
        self._event(fresh_examples + 1, session_log={"status": "START"})

    def write(self, values: Mapping[str, float], at: Mapping[str, Any]) -> None:
        for tag, value in values.items():
            self._event(at["fresh_examples"], summary=self._summary.scalar(tag, value))
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:  # the run has begun
            self._writer.close()

    def _event(self, step: int, **content: Any) -> None:
        from tensorboardX.proto import event_pb2

        event = event_pb2.Event(wall_time=time.time(), step=step, **content)  # pyright: ignore
        self._writer.write_event(event)


class WeightsAndBiases(Tracker):
    """Logs to Weights & Biases, in the project of WANDB_PROJECT (default: data-echoing)."""

    def start(self, fresh_examples: int) -> None:  # the axis of a run that resumes continues
        os.environ.setdefault("WANDB_SILENT", "true")  # no prompts over the display of progress
        import wandb  # pyright: ignore[reportMissingImports]

        settings = wandb.Settings(console="off")
        self._wandb = wandb.init(
            project=settings.project or "data-echoing",
            group=self.group,
            name=self.name,
            id=self.identity("wandb", lambda: secrets.token_hex(8)),
            resume="allow",
            reinit="create_new",
            config=self.config,
            dir=str(self.workdir),
            settings=settings,
        )
        self._wandb.define_metric("*", step_metric="fresh_examples")

    def write(self, values: Mapping[str, float], at: Mapping[str, Any]) -> None:
        self._wandb.log({name: at[name] for name in ("step", "fresh_examples")} | dict(values))

    def end(self, result: Mapping[str, Any]) -> None:
        self._wandb.summary.update(_scores(result) | {"status": result["status"]})
        self._wandb.finish(exit_code=int(result["status"] in _FAILED))


class MLflow(Tracker):
    """Logs to MLflow, in an experiment named after the study, at MLFLOW_TRACKING_URI."""

    def start(self, fresh_examples: int) -> None:  # MLflow keeps every value of a step
        import mlflow  # pyright: ignore[reportMissingImports]

        def create() -> str:
            experiment = mlflow.set_experiment(self.group).experiment_id
            identity = self._client.create_run(experiment, run_name=self.name).info.run_id
            for name, value in self.config.items():
                self._client.log_param(identity, name, value)
            return identity

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it reports every new experiment
        self._client = mlflow.MlflowClient()
        self._id = self.identity("mlflow", create)
        self._client.update_run(self._id, status="RUNNING")

    def write(self, values: Mapping[str, float], at: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        now, x = int(1000 * time.time()), at["fresh_examples"]
        self._client.log_batch(self._id, metrics=[Metric(*v, now, x) for v in values.items()])

    def end(self, result: Mapping[str, Any]) -> None:
        self.write(_scores(result), result)
        self._client.set_tag(self._id, "status", result["status"])
        status = {"preempted": "KILLED", **dict.fromkeys(_FAILED, "FAILED")}
        self._client.set_terminated(self._id, status.get(result["status"], "FINISHED"))


# By name: the tracker, and its package.
TRACKERS: dict[str, tuple[type[Tracker], str]] = {
    "tensorboard": (TensorBoard, "tensorboardX"),
    "wandb": (WeightsAndBiases, "wandb"),
    "mlflow": (MLflow, "mlflow"),
}


class Profile:
    """Traces the steps from `start` until `stop`, without it, into WORKDIR/profile, which
    TensorBoard and Perfetto display.

    The host's regions (read, decode, echo, augment, transfer, step, evaluate, save) are named in it
    by `jax.profiler.TraceAnnotation`, which costs next to nothing while no trace is taken.
    """

    def __init__(self, workdir: pathlib.Path, start: int, stop: int, say: Callable[[str], None]):
        self._directory, self._steps = workdir / records.PROFILE, range(start, stop)
        self._say, self._tracing = say, False
        self._traced: bool | None = None  # None before the first step

    def step(self, step: int) -> None:
        """The run is about to take a step; the first one is 1."""
        inside = step in self._steps
        self._traced = self._traced or inside
        if inside == self._tracing:
            return
        self._tracing = not self._tracing
        if self._tracing:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # every call of Python would bury the named regions
            jax.profiler.start_trace(self._directory, profiler_options=options)
        else:
            jax.profiler.stop_trace()

    def close(self) -> None:
        if self._traced is False:
            steps = f"{self._steps.start}:{self._steps.stop}"
            self._say(f"warning: no step of --profile={steps} was taken, so there is no trace")
        self.step(self._steps.stop)
