"""A run: one training step per call of `Run.step`, what it keeps between steps, and how it ends."""

import contextlib
import dataclasses
import pathlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.profiler import TraceAnnotation
from ml_collections import ConfigDict

from configs import base
from pipeline import accounting, streams
from pipeline.evaluation import EvaluationBatch
from pipeline.map_datasets import Batch
from runs import cli, origins, processes, records, resuming, tracking, workdirs
from runs.checkpoints import Checkpoints
from runs.clock import Clock
from runs.progress import Progress, Status, TimeLeft
from runs.tracking import Recorder
from training import check, divergence, optimizer
from training.experiment import Experiment, make_experiment, open_splits_of
from training.step import Rows, Stepper, TrainState


class Diverged(Exception):
    """The run has diverged; the message says how."""


class Preempted(Exception):
    """The run was asked to stop, and saves a checkpoint."""


@dataclasses.dataclass
class Counters:
    """The position of a run; saved with every checkpoint.

    Attributes:
        evaluated, saved: how many multiples of the cadences of evaluation and saving have passed.
        evaluated_step: the step of the last evaluation; -1 before the first.
        value: the target's metric there.
        best: the best validation value so far, {metric, value, fresh_examples, step}, or None.
        best_step: its step; -1 before the first evaluation.
        initial_loss: the training loss of step 1, before any update; 0.0 before it is known.
    """

    step: int = 0
    fresh_examples: int = 0
    evaluated: int = 0
    saved: int = 0
    evaluated_step: int = -1
    value: float | None = None
    best: dict[str, Any] | None = None
    best_step: int = -1
    initial_loss: float = 0.0


class Run:
    """One run, from the start or from its last checkpoint.

        run = Run(config, workdir)
        while run.step():
            ...
        run.result

    Args:
        config: a resolved configuration.
        workdir: the run's directory; created if it does not exist.
        progress: displays the progress; None for none.
        experiment: of the configuration, if it shares its input with others; None to make it.
        interrupt: called in evaluations once a batch has been read; whether to save and stop there.
            The resumed run evaluates again.
        locked: whether the caller holds the directory's lock.
        on_step: called with the number of steps taken, after each of them.
        tools: trackers, a profile, a mirror; None for TensorBoard alone.
        stepper: takes the steps, like `Stepper`; None for one of its own.

    Attributes:
        result: the content of WORKDIR/result.json; None until the run has ended.
        counters: the position.

    Raises:
        InputError: wrong input, or a directory in use, or of another run. Nothing has been written.
    """

    def __init__(
        self,
        config: ConfigDict,
        workdir: pathlib.Path,
        progress: Progress | None = None,
        *,
        experiment: Experiment | None = None,
        interrupt: Callable[[], bool] = lambda: False,
        locked: bool = False,
        on_step: Callable[[int], None] | None = None,
        tools: tracking.Tools | None = None,
        stepper: Any = None,
    ):
        self.config, self.workdir = config, workdir
        self.progress, self.interrupt = progress or Progress(quiet=True), interrupt
        self.on_step = on_step or (lambda step: None)
        self.counters, self.time_left = Counters(), TimeLeft()
        self.result: dict[str, Any] | None = None
        self._begun = False  # whether this process has asked for a batch
        self._whole = True  # whether model and input are at the same moment
        self._loss: float | None = None  # the training loss of the last step that was read
        self._pending: list[tuple[dict[str, Any], Any]] = []  # (record, metrics) of unread steps
        self._saved = -1  # the step of the last checkpoint
        self._repeated_rows: accounting.RepeatedRows | None = None
        self._held = contextlib.ExitStack()  # the directory and what follows the run
        tools = tools or tracking.Tools(root=workdir)
        with cli.disk_full_named(workdir), contextlib.ExitStack() as held:
            with check.exhaustion_explained(config):
                record = self._enter(experiment, None if locked else held)
            if self.result is not None:  # it has ended before
                tools.copy(workdir, self.progress.say)
                return
            self.followers = tools.followers(workdir, record["config"], self.progress.say)
            held.callback(self.followers.close)
            with check.exhaustion_explained(config):
                self.policy, self.transfer = self.experiment.policy, self.experiment.transfer
                self.stepper = stepper or Stepper(self.experiment.program, config.seed.data)
                self._restore(held)
            at, note = self.counters.step, self.progress.say
            with cli.writing_to(workdir):
                processes.decided_by_first(
                    lambda: origins.note(workdir, record, at, base.CHANGE_ROUNDING, note)
                )
            self._held = held.pop_all()

    def _enter(
        self, experiment: Experiment | None, lock: contextlib.ExitStack | None
    ) -> dict[str, Any]:
        """Opens the data, checks the directory, builds the rest, and enters the directory: what is
        refused early is cheap, and nothing is written before all is known to be possible. Returns
        the content of config.json; `result` is set for a run that has finished."""
        data = experiment or open_splits_of(self.config)
        record = {
            "config": self.config.to_dict(),
            "dataset": data.info.to_record(),
            **origins.describe(),
        }
        place = self.workdir, record, base.MAY_CHANGE_ON_RESUME
        with cli.writing_to(self.workdir):
            self.result = processes.decided_by_first(lambda: workdirs.checked(*place))
        if self.result is None:
            made = data if isinstance(data, Experiment) else make_experiment(self.config, data)
            self.experiment = made
            self.result = processes.decided_by_first(lambda: workdirs.enter(*place, lock=lock))
        return record

    def _restore(self, held: contextlib.ExitStack) -> None:
        """Opens everything, at the newest usable checkpoint if there is one; `held` closes it."""
        self.stepper.state = self.experiment.program.init(self.config.seed.model)
        self.clock = Clock()  # starts here, after what is compiled once per process
        self._running = held.enter_context(contextlib.ExitStack())  # closed before the result
        self.checkpoints = Checkpoints(self.workdir / records.CHECKPOINTS, self.followers.saved)
        self._running.callback(self.checkpoints.close)
        self.iterator = iter(self.experiment.batches)
        self._running.callback(self.iterator.close)
        keep_bytes = 0
        if usable := resuming.newest_usable(
            self.workdir, self.checkpoints, self.stepper.state, self.progress.say
        ):
            step, self.stepper.state, value = usable
            self.iterator.set_state(value["input"])
            self.counters, self.clock = Counters(**value["counters"]), Clock(**value["clock"])
            self.transfer.bytes_sent = value["bytes_sent"]
            self._saved = step
            keep_bytes = value["records"][records.METRICS]["bytes"]
        self.recorder = Recorder(self.workdir, keep_bytes, self.followers)
        self._running.callback(self.recorder.close)
        self._running.callback(self.progress.close)
        self._running.callback(self.policy.close)
        self.followers.start(self.counters.fresh_examples)
        self.policy.resume(self.workdir, self.counters.step)

    def step(self, stop: bool = False) -> bool:
        """Takes the next training step; returns whether it has. Otherwise the run has ended, and
        `result` is set.

        Args:
            stop: whether to save and end instead, as preempted.

        Raises:
            DiskFull: the run can be resumed from its last checkpoint.
        """
        if self.result is not None:
            return False
        error = None
        try:
            with cli.disk_full_named(self.workdir):
                try:
                    status = self._step(stop)
                except Diverged as caught:
                    status, error = "diverged", str(caught)
                except Preempted:
                    status = "preempted"
                except Exception as caught:
                    if cli.is_disk_full(caught):
                        raise
                    status, error = "failed", self._recorded(caught)
                if status is not None:
                    self._end(status, error)
        except BaseException:
            self.close()
            raise
        return status is None

    def _step(self, stop: bool) -> str | None:
        """Takes a step, or ends the run and returns its status. An error, too, is saved here, once,
        if it left the model and the input at the same moment."""
        try:
            self._whole = True
            # The order is a contract: evaluate -> target? -> save -> next(batch) -> step -> log.
            # The iterator moves only after the save, so a checkpoint is one moment of the whole
            # run.
            improved = self._due("evaluate") and self._evaluate()
            # Not only just after an evaluation: a process may end between its last checkpoint and
            # its result.
            if self._reached_target():
                self._last_save()
                return "reached"
            saves = self.config.checkpoint_every_fresh_examples > 0
            if self._due("checkpoint") or (improved and saves):
                self._save()
            if stop:
                raise Preempted
            batch = self._next_batch()
            if batch is None:
                if self.counters.evaluated_step != self.counters.step:
                    self._evaluate()
                self._last_save()
                return "reached" if self._reached_target() else "exhausted"
            self._take(batch)
            self.on_step(self.counters.step)
            self._log(keep=1)  # the last step is still running; the one before has ended
        except Diverged:
            raise
        except Exception as error:
            # Several processes would have to save together, and do not know of another's error.
            known = isinstance(error, Preempted) or jax.process_count() == 1
            if self._whole and known and not cli.is_disk_full(error):
                self._save()
            raise
        return None

    # What `_step` consists of, in its order.

    def _due(self, cadence: str) -> bool:
        """Whether a multiple of a cadence has been passed since the last call, which is noted."""
        every = self.config[f"{cadence}_every_fresh_examples"]
        counter = {"evaluate": "evaluated", "checkpoint": "saved"}[cadence]
        passed = self.counters.fresh_examples // every if every else 0
        due = passed > getattr(self.counters, counter)
        setattr(self.counters, counter, passed)
        return due

    def _evaluate(self) -> bool:
        """Evaluates on the validation split; whether the target's metric is the best so far."""
        self._log()
        target, at = self.experiment.target, self.counters
        try:
            with self._paused("evaluate") as state:
                values = self.experiment.program.evaluate(state, self._validation_batches())
        except Exception:
            at.evaluated = -1  # so that the run evaluates here when it is resumed
            raise
        at.value, at.evaluated_step = values[target.metric], at.step
        self.recorder.write(self._position() | {"split": "validation"} | values)
        improved = target.better(at.value, than=at.best["value"] if at.best else None)
        if improved:
            fresh = at.fresh_examples
            at.best = {"metric": target.metric, "value": at.value, "fresh_examples": fresh}
            at.best["step"] = at.step
            at.best_step = at.step
        return improved

    def _validation_batches(self) -> Iterator[EvaluationBatch]:
        for batch in self.experiment.validation:
            if self.interrupt():
                raise Preempted
            yield batch

    def _reached_target(self) -> bool:
        at = self.counters
        if at.evaluated_step != at.step or at.value is None:
            return False
        return self.experiment.target.reached(at.value)

    def _last_save(self) -> None:
        self._log()
        if self.config.checkpoint_every_fresh_examples:
            self._save()

    def _save(self) -> None:
        """Saves model, optimizer, input position, counters, and clocks as of one moment. No step is
        saved twice: one that was saved before its evaluation is evaluated again on resuming."""
        self._log()
        at = self.counters
        if self._saved == at.step:
            return
        with self._paused("save") as state:
            extents = {records.METRICS: self.recorder.sync()} | self.policy.sync()
            value = {
                "input": streams.merge_states(processes.gather(self.iterator.get_state())),
                "counters": dataclasses.asdict(at),
                "clock": self.clock.readings(),
                "bytes_sent": self.transfer.bytes_sent,
                "records": {name: dataclasses.asdict(extent) for name, extent in extents.items()},
            }
            self.checkpoints.save(at.step, state, value, at.best_step)
        self._saved = at.step

    def _next_batch(self) -> Batch | None:
        """The next batch; None at the end of the input."""
        waited = self.clock.waited
        shown = contextlib.nullcontext()
        if not self._begun:  # it may fill a shuffle buffer, or be of a slow source
            self._begun, shown = True, self.progress.meanwhile("waiting for the first batch")
        with shown, self.clock.waiting():
            batch = next(self.iterator, None)
        # Under `auto` the input waits on purpose for fresh examples while the device still runs
        # the last step. That time does not count as waiting.
        self.clock.waited -= self.policy.busy(self.clock.waited - waited)
        return batch

    def _take(self, batch: Batch) -> None:
        """Dispatches a step. `_log` reads its metrics after the next one has been dispatched."""
        self._whole, at = False, self.counters
        self.followers.step(at.step + 1)
        with TraceAnnotation("transfer"):
            rows = self.transfer.put(batch)
        horizon = self.config.optimizer.schedule.horizon_fresh_examples
        budget = self.config.budget.fresh_examples
        done = self._done(self.policy.horizon_steps, horizon or budget)
        hyper = optimizer.hyperparameters(self.config, min(1.0, done))  # past it, the last rate
        if not self.stepper.compiled:
            with self._paused("compile"):
                self.stepper.compile(rows, hyper)
        gradients = {}
        if self.config.gradient_statistics_every_steps:  # before the step, which donates the state
            gradients = self._gradient_statistics(batch, rows)
        with TraceAnnotation("step"):
            metrics = self.stepper.step(rows, hyper)
        at.step += 1
        at.fresh_examples = int(batch.fresh_examples)
        self.policy.dispatched(at.step, batch, metrics)
        if gradients:
            self.recorder.write(self._position() | {"split": records.GRADIENTS} | gradients)
        rate, sent = float(hyper.learning_rate), self.transfer.bytes_sent
        record = {"split": "train", "learning_rate": rate, "bytes_sent": sent}
        self._pending.append((self._position() | record, metrics))

    def _gradient_statistics(self, batch: Batch, rows: Rows) -> dict[str, float]:
        """The statistics of the gradient of the next step; empty if they are not due."""
        from training import gradient_statistics

        step, run = self.counters.step, self.experiment
        if not gradient_statistics.due(step, self.config.gradient_statistics_every_steps):
            return {}
        self._log()
        if self._repeated_rows is None:
            self._repeated_rows = accounting.repeated_rows(self.config, run.held_streams)
        with self._paused("gradient statistics") as state:
            repeat_b = self._repeated_rows(step, batch.copy)
            data_seed = np.uint32(self.config.seed.data)
            return gradient_statistics.measured(run.program, state, rows, repeat_b, data_seed)

    def _log(self, keep: int = 0) -> None:
        """Reads the metrics of all unread steps but the last `keep`, checks them for divergence,
        and records those that are due."""
        at, every = self.counters, self.config.log_every_steps
        while len(self._pending) > keep:
            position, metrics = self._pending.pop(0)
            step = position["step"]
            self.policy.awaits(metrics)
            values = {name: float(value) for name, value in self.stepper.fetch(metrics).items()}
            nonfinite = int(values.pop("nonfinite"))
            if step % every == 0 and self.recorder.active:
                copies = self.experiment.copies.window(step - every, step)
                self.recorder.write({**position, **values, **copies})
            self._loss = values["loss"]
            if step == 1:
                at.initial_loss = values["loss"]
            why = divergence.explanation(step, values["loss"], nonfinite, at.initial_loss)
            if why:  # a step that has been dispatched since does not count
                at.step, at.fresh_examples = step, position["fresh_examples"]
                raise Diverged(why)
            self.progress.update(self._status())

    # The end.

    def _recorded(self, error: Exception) -> str:
        """Writes an error and where it came from to a file; returns it as one sentence."""
        text = traceback.format_exc().encode(errors="backslashreplace")  # file names of any bytes
        records.write_bytes(self.workdir / records.error_file(jax.process_index()), text)
        return check.exhaustion(error, self.config) or f"{type(error).__name__}: {error}"

    def _end(self, status: str, error: str | None) -> None:
        with self.clock.paused():
            self._running.close()
        target, best = self.experiment.target, self.counters.best
        result = records.run_result(status, target, self._position(), best, error)
        result = self.recorder.write_result(result)
        self.close()
        self.result = result

    def close(self) -> None:
        """Ends threads, closes files, waits for a checkpoint that is being written, and releases
        the directory. A run that has ended is closed."""
        self._held.close()

    # What they share.

    @contextlib.contextmanager
    def _paused(self, region: str) -> Iterator[TrainState]:
        """Excludes time from training, and stops a throttled upstream meanwhile; yields the state,
        which is ready. `region` is its name in a profile."""
        state = jax.block_until_ready(self.stepper.state)
        stopped = self.experiment.upstream_clock.stopped()
        with self.clock.paused(), stopped, TraceAnnotation(region):
            yield state

    def _done(self, steps: int | None, fresh_examples: int) -> float:
        """The fraction of `steps` that has been taken; if that number is not known in advance,
        the fraction of `fresh_examples`. Counting steps avoids the jump at the start, where filling
        a shuffle buffer admits many examples at once."""
        if steps is None:
            return self.counters.fresh_examples / fresh_examples
        return self.counters.step / steps

    def _position(self) -> dict[str, Any]:
        """The fields that every record begins with."""
        return {
            "step": self.counters.step,
            "fresh_examples": self.counters.fresh_examples,
            "train_seconds": round(self.clock.train, 6),
            "wall_seconds": round(self.clock.wall, 6),
            "input_wait_fraction": round(self.clock.input_wait_fraction, 6),
        }

    def _status(self) -> Status:
        at, target, seconds = self.counters, self.experiment.target, self.clock.train
        budget = self.config.budget.fresh_examples
        done = self._done(self.policy.total_steps, budget)
        rows_per_second = at.step * self.config.batch_size / seconds if seconds else 0.0
        return Status(
            metric=target.metric,
            value=at.value,
            goal=f"{'>=' if target.mode == 'above' else '<='} {target.value:g}",
            seconds_left=self.time_left(at.step, done),
            input_wait_fraction=self.clock.input_wait_fraction,
            fresh_examples=at.fresh_examples,
            budget=budget,
            fresh_per_second=at.fresh_examples / seconds if seconds else 0.0,
            rows_per_second=rows_per_second if self.policy.repeats else None,
            loss=self._loss,
        )
