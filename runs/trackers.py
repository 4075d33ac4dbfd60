"""Experiment trackers: TensorBoard, Weights & Biases, MLflow. Each is an observer of a run."""

import contextlib
import logging
import os
import pathlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import event_pb2, plugin_hparams_pb2

from runs import records, trial_records
from runs.observers import Observer
from runs.study import flat

# What trackers compare runs by, besides what a search has drawn.
_COMPARED = (
    *("echo.insertion", "echo.policy", "echo.factor", "echo.shuffle_buffer", "batch_size"),
    *("optimizer.learning_rate", "optimizer.momentum", "optimizer.weight_decay", "workload"),
)
_SCORES = ("fresh_examples_to_target", "steps_to_target", "seconds_to_target")
_FAILED = ("diverged", "failed")
_HPARAMS_SUCCESS, _HPARAMS_FAILURE = 1, 2  # of TensorBoard's enumeration of statuses
_FLUSH_SECONDS = 120.0  # between writes of TensorBoard's file to disk


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
        self.config = flat(config)
        self.hparams: dict[str, Any] = dict(zip(("condition", "search"), path.parts, strict=False))
        self.hparams |= {name: self.config[name] for name in _COMPARED}
        with contextlib.suppress(records.Damaged):
            record = trial_records.read_hparams(workdir)
            drawn = record.pop("hparams", None) or {}
            self.hparams |= record | drawn

    def identity(self, tracker: str, new: Callable[[], str]) -> str:
        """The run's identity with a tracker: that of an earlier process, or a new one."""
        path, known = self.workdir / records.TRACKED, {}
        with self._lock:
            with contextlib.suppress(records.Damaged):
                known = records.read_object(path) or {}
            if not isinstance(known.get(tracker), str):
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


class TensorBoard(Observer):
    """Writes WORKDIR/tensorboard: scalars over fresh examples, and the run's row in HParams.

    Not by tensorboardX's SummaryWriter: on a full disk its thread ends with a traceback, and the
    process then waits forever for someone to empty the thread's queue.
    """

    def __init__(self, run: Tracked):
        self._run = run
        self._writer: Any = None
        logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)  # it reports every NaN

    def start(self, fresh_examples: int) -> None:
        directory = self._run.workdir / records.TENSORBOARD
        directory.mkdir(exist_ok=True)
        self._writer = EventsWriter(str(directory / "events"))
        self._fresh_examples, self._due = fresh_examples, 0.0
        # TensorBoard drops what an earlier process has recorded from here on.
        session = event_pb2.SessionLog(status="START")  # pyright: ignore
        self._write(fresh_examples + 1, session_log=session)
        tags = [f"score/{name}" for name in ("reached", "best", *_SCORES)]
        experiment, start, _ = summary.hparams(self._run.hparams, dict.fromkeys(tags))
        self._add(experiment)
        self._add(start)

    def record(self, record: Mapping[str, Any]) -> None:
        self._fresh_examples = record["fresh_examples"]
        for tag, value in _scalars(record).items():
            self._add(summary.scalar(tag, value))

    def end(self, result: Mapping[str, Any]) -> None:
        if result["status"] != "preempted":
            for tag, value in _scores(result).items():
                self._add(summary.scalar(tag, value))
            self._add(_session_end(failed=result["status"] in _FAILED))
        self.close()

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _add(self, proto: Any) -> None:
        self._write(self._fresh_examples, summary=proto)

    def _write(self, step: int, **content: Any) -> None:
        event = event_pb2.Event(wall_time=time.time(), step=step, **content)  # pyright: ignore
        self._writer.write_event(event)
        if time.monotonic() >= self._due:
            self._writer.flush()
            self._due = time.monotonic() + _FLUSH_SECONDS


def _session_end(failed: bool) -> Any:
    """The summary that ends a row of HParams; tensorboardX itself writes only successes."""
    _, _, end = summary.hparams({}, {})
    data = end.value[0].metadata.plugin_data
    content = plugin_hparams_pb2.HParamsPluginData.FromString(data.content)  # pyright: ignore
    content.session_end_info.status = _HPARAMS_FAILURE if failed else _HPARAMS_SUCCESS
    data.content = content.SerializeToString()
    return end


class WeightsAndBiases(Observer):
    """Logs to Weights & Biases, in the project of WANDB_PROJECT (default: data-echoing)."""

    def __init__(self, run: Tracked):
        self._run = run

    def start(self, fresh_examples: int) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")  # no prompts over the display of progress
        import wandb  # pyright: ignore[reportMissingImports]

        settings = wandb.Settings(console="off")
        self._wandb = wandb.init(
            project=settings.project or "data-echoing",
            group=self._run.group,
            name=self._run.name,
            id=self._run.identity("wandb", lambda: secrets.token_hex(8)),
            resume="allow",
            reinit="create_new",
            config=self._run.config,
            dir=str(self._run.workdir),
            settings=settings,
        )
        self._wandb.define_metric("*", step_metric="fresh_examples")

    def record(self, record: Mapping[str, Any]) -> None:
        counts = {name: record[name] for name in ("step", "fresh_examples")}
        self._wandb.log(counts | _scalars(record))

    def end(self, result: Mapping[str, Any]) -> None:
        self._wandb.summary.update(_scores(result) | {"status": result["status"]})
        self._wandb.finish(exit_code=int(result["status"] in _FAILED))


class MLflow(Observer):
    """Logs to MLflow, in an experiment named after the study, at MLFLOW_TRACKING_URI."""

    def __init__(self, run: Tracked):
        self._run = run

    def start(self, fresh_examples: int) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it reports every new experiment
        self._mlflow, self._client = mlflow, mlflow.MlflowClient()
        self._id = self._run.identity("mlflow", self._create)
        self._client.update_run(self._id, status="RUNNING")

    def _create(self) -> str:
        experiment = self._mlflow.set_experiment(self._run.group).experiment_id
        run_id = self._client.create_run(experiment, run_name=self._run.name).info.run_id
        params = self._run.config | self._run.hparams
        for name, value in params.items():
            self._client.log_param(run_id, name, value)
        return run_id

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
