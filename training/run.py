"""A run: one training step per call of `Run.step`, what it keeps between steps, and how it ends.

The order of a step is a contract: evaluate -> target? -> save -> next(batch) -> step -> log. The
iterator moves only after the save, so a checkpoint is one moment of the whole run.
"""

import contextlib
import copy
import dataclasses
import functools
import math
import pathlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
import numpy as np
from jax.profiler import TraceAnnotation
from ml_collections import ConfigDict

from pipeline import streams
from pipeline.build import chosen_workers
from pipeline.evaluation import EvaluationBatch
from pipeline.map_datasets import Batch, num_skipped
from runs import cli, origins, processes, records, resuming, tracking, workdirs
from runs.checkpoints import Checkpoints
from runs.progress import SEPARATOR, Clock, Progress, duration
from runs.tracking import Recorder
from training import optimizer
from training.experiment import Experiment, make_experiment, open_data
from training.step import TrainState, why_diverged


class Ended(Exception):
    """The run has ended: (status, why it diverged or None)."""


@dataclasses.dataclass
class Counters:
    """The position of a run; saved with every checkpoint."""

    step: int = 0
    fresh_examples: int = 0
    evaluated: int = 0  # multiples of the cadence of evaluation that have passed
    saved: int = 0  # multiples of the cadence of checkpoints
    evaluated_step: int = -1  # of the last evaluation
    value: float | None = None  # of the target's metric there
    best: dict[str, Any] | None = None  # {metric, value, fresh_examples, step}
    best_step: int = -1
    initial_loss: float = 0.0  # the training loss of step 1, before any update
    skipped: int = 0  # fresh examples that were damaged, with dataset.damaged=skip


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
    ):
        self.config, self.workdir, self.interrupt = config, workdir, interrupt
        self.progress, self.on_step = progress or Progress(quiet=True), on_step
        self.counters = Counters()
        self.result: dict[str, Any] | None = None
        self._open = contextlib.ExitStack()  # what a run that has not ended holds
        tools = tools or tracking.Tools()
        with contextlib.ExitStack() as opened:
            # What is refused early is cheap, and nothing is written before all is known to be
            # possible: the data, then the directory, then the rest.
            if experiment is None:
                data = open_data(config)
                info = data[-1]
                self.config = config = copy.deepcopy(config)
                config.loader.workers = chosen_workers(config, info)
            else:
                data, info = None, experiment.info
            record = {"config": config.to_dict(), "dataset": info.to_record()}
            record |= origins.describe()
            resumes = False
            self.result = processes.decided_by_first(lambda: workdirs.checked(workdir, record))
            if self.result is None:
                if count := config.loader.workers:
                    self.progress.say(f"input: {count} worker processes (config.loader.workers)")
                self.experiment = experiment or make_experiment(config, data)
                lock = None if locked else opened
                enter = functools.partial(workdirs.enter, workdir, record, lock)
                self.result, resumes = processes.decided_by_first(enter)
            if self.result is not None:  # it has ended before
                tools.copy(workdir, self.progress.say)
                return
            self.followers = tools.followers(workdir, record["config"], self.progress.say)
            opened.callback(self.followers.close)
            self._begin(record if resumes else None, opened)
            self._open = opened.pop_all()

    def _begin(self, resumes: dict[str, Any] | None, opened: contextlib.ExitStack) -> None:
        """Opens the rest, which `opened` closes, at the start, or where an earlier process ended
        if the run resumes, with what config.json would contain if it began now."""
        self.policy, self.transfer = self.experiment.policy, self.experiment.transfer
        self.state = self.experiment.program.init(self.config.seed.model)
        self.clock = Clock()  # starts here, after what is compiled once per process
        self._train_step: Any = None  # compiled before the first step
        self._whole = True  # whether model and input are at the same moment
        self._loss = math.nan  # the training loss of the last step that was read
        self._pending: list[tuple[dict[str, Any], Any]] = []  # (record, metrics) of unread steps
        self._saved = -1  # the step of the last checkpoint
        self._running = opened.enter_context(contextlib.ExitStack())  # closed before the result
        saved = functools.partial(self.followers.tell, "saved")
        self.checkpoints = Checkpoints(self.workdir / records.CHECKPOINTS, saved)
        self.iterator = iter(self.experiment.batches)
        for part in (self.checkpoints, self.iterator, self.progress, self.policy):
            self._running.callback(part.close)
        keep_bytes = self._restore(resumes) if resumes else 0
        self.recorder = Recorder(self.workdir, keep_bytes, self.followers)
        self._running.callback(self.recorder.close)
        self.followers.tell("start", self.counters.fresh_examples)
        self.policy.resume(self.workdir, self.counters.step)

    def _restore(self, record: dict[str, Any]) -> int:
        """Moves everything to the newest usable checkpoint, if there is one, and notes what differs
        since the run began. Returns how many bytes of metrics.jsonl the checkpoint covers."""
        place, keep_bytes, say = self.workdir, 0, self.progress.say
        if usable := resuming.newest_usable(place, self.checkpoints, self.state, say):
            self._saved, self.state, value = usable
            self.iterator.set_state(value["input"])
            self.counters, self.clock = Counters(**value["counters"]), Clock(**value["clock"])
            self.transfer.bytes_sent = value["bytes_sent"]
            keep_bytes = value["records"][records.METRICS]["bytes"]
        step = self.counters.step
        if (place / records.RESULT).exists() and not records.intact_result(place):
            say(f"warning: {place / records.RESULT} is damaged; steps after {step} are taken again")
        processes.decided_by_first(lambda: resuming.note(place, record, step, say))
        return keep_bytes

    def step(self, stop: bool = False) -> bool:
        """Takes the next training step; returns whether it has. Otherwise the run has ended, and
        `result` is set.

        Args:
            stop: whether to save and end instead, as preempted.

        Raises:
            OSError: a disk is full; the run can be resumed from its last checkpoint.
        """
        if self.result is not None:
            return False
        try:
            self._step(stop)
            return True
        except Ended as ended:
            self._end(*ended.args)
        except Exception as error:
            if cli.is_disk_full(error):
                raise
            self._end("failed", error)
        return False

    def _step(self, stop: bool) -> None:
        """Takes a step in the order of the contract, or raises Ended or an error."""
        at, saves = self.counters, self.config.checkpoint_every_fresh_examples > 0
        self._whole = True
        try:
            improved = self._passed("evaluate") > at.evaluated and self._evaluate()
            # Not only just after an evaluation: a process may end between its last checkpoint and
            # its result.
            if self._reached_target():
                self._finish("reached")
            if self._passed("checkpoint") > at.saved or (improved and saves):
                self._save()
            if stop:
                raise Ended("preempted", None)
            batch = self._next_batch()
            if batch is None:
                if at.evaluated_step != at.step:
                    self._evaluate()
                self._finish("reached" if self._reached_target() else "exhausted")
            self._take(batch)
            if self.on_step:
                self.on_step(at.step)
            self._log(keep=1)  # the last step is still running; the one before has ended
        except Exception as error:
            # Saved once, if model and input are at the same moment. Several processes would have to
            # save an error together, and do not know of another's.
            status = error.args[0] if isinstance(error, Ended) else "failed"
            known = status == "preempted" or (status == "failed" and jax.process_count() == 1)
            if self._whole and known and not cli.is_disk_full(error):
                self._save()
            raise

    # What `_step` consists of, in its order.

    def _passed(self, cadence: str) -> int:
        """How many multiples of a cadence have been passed."""
        every = self.config[f"{cadence}_every_fresh_examples"]
        return self.counters.fresh_examples // every if every else 0

    def _evaluate(self) -> bool:
        """Evaluates on the validation split; whether the target's metric is the best so far."""
        self._log()
        target, at = self.experiment.target, self.counters
        with self._paused("evaluate") as state:
            values = self.experiment.program.evaluate(state, self._validation_batches())
        # Counted only now: if it is interrupted, it is due again when the run is resumed.
        at.evaluated, at.evaluated_step = self._passed("evaluate"), at.step
        at.value = values[target.metric]
        self.recorder.write(self._position() | {"split": "validation"} | values)
        improved = target.better(at.value, than=at.best["value"] if at.best else None)
        if improved:
            at.best, at.best_step = {"metric": target.metric, "value": at.value}, at.step
            at.best |= {"fresh_examples": at.fresh_examples, "step": at.step}
        return improved

    def _validation_batches(self) -> Iterator[EvaluationBatch]:
        for batch in self.experiment.validation:
            if self.interrupt():
                raise Ended("preempted", None)
            yield batch

    def _reached_target(self) -> bool:
        at = self.counters
        if at.evaluated_step != at.step or at.value is None:
            return False
        return self.experiment.target.reached(at.value)

    def _finish(self, status: str) -> NoReturn:
        """Saves the last checkpoint, unless none are to be saved, and ends the run."""
        if self.config.checkpoint_every_fresh_examples:
            self._save()
        raise Ended(status, None)

    def _save(self) -> None:
        """Saves model, optimizer, input position, counters, and clocks as of one moment. No step is
        saved twice: one that was saved before its evaluation is evaluated again on resuming."""
        self._log()
        at = self.counters
        at.saved = self._passed("checkpoint")
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
        if self._train_step is None:  # a large shuffle buffer is filled first
            self.progress.update(lambda: "input wait: the first batch")
        with self.clock.waiting():
            batch = next(self.iterator, None)
        # Under `auto` the input waits on purpose for fresh examples while the device still runs
        # the last step. That time does not count as waiting.
        self.clock.waited -= self.policy.busy(self.clock.waited - waited)
        return batch

    def _take(self, batch: Batch) -> None:
        """Dispatches a step. `_log` reads its metrics after the next one has been dispatched."""
        self._whole, at, config = False, self.counters, self.config
        self.followers.step(at.step + 1)
        with TraceAnnotation("transfer"):
            rows = self.transfer.put(batch)
        horizon = config.optimizer.schedule.horizon_fresh_examples
        done = self._done(self.policy.horizon_steps, horizon)
        hyper = optimizer.hyperparameters(config, min(1.0, done))  # past it, the last rate
        arguments = rows, hyper, np.uint32(config.seed.data)
        if self._train_step is None:
            with self._paused("compile") as state:
                program = self.experiment.program
                self._train_step = program.compile("train", program.train, (state, *arguments))
        with TraceAnnotation("step"):
            self.state, metrics = self._train_step(self.state, *arguments)
        at.step += 1
        at.fresh_examples = int(batch.fresh_examples)
        at.skipped += num_skipped(self.experiment.source, config.seed.data, batch)
        self.policy.dispatched(at.step, batch, metrics)
        rate, sent = float(hyper.learning_rate), self.transfer.bytes_sent
        record = {"split": "train", "learning_rate": rate, "bytes_sent": sent}
        if at.step % config.log_every_steps == 0:  # else it is not written
            record["repeated"] = float(np.mean(batch.copy > 0))
            record["unique_fraction"] = len(np.unique(batch.index)) / len(batch.index)
        self._pending.append((self._position() | record, metrics))

    def _log(self, keep: int = 0) -> None:
        """Reads the metrics of all unread steps but the last `keep`, checks them for divergence,
        and records those that are due."""
        at, every = self.counters, self.config.log_every_steps
        while len(self._pending) > keep:
            position, metrics = self._pending.pop(0)
            step = position["step"]
            self.policy.awaits(metrics)
            values = {name: float(value) for name, value in jax.device_get(metrics).items()}
            nonfinite = int(values.pop("nonfinite"))
            if step % every == 0 and self.recorder.active:
                self.recorder.write({**position, **values})
            self._loss = values["loss"]
            if step == 1:
                at.initial_loss = values["loss"]
            if why := why_diverged(step, values["loss"], nonfinite, at.initial_loss):
                # a step that has been dispatched since does not count
                at.step, at.fresh_examples = step, position["fresh_examples"]
                raise Ended("diverged", why)
            self.progress.update(self._status)

    # The end.

    def _end(self, status: str, error: str | Exception | None) -> None:
        if isinstance(error, Exception):  # where it came from is written to a file
            text = records.redacted(traceback.format_exc())
            file = self.workdir / f"error{jax.process_index() or ''}.txt"
            records.write_bytes(file, text.encode(errors="backslashreplace"))  # names of any bytes
            known = cli.explained(error)
            explained = isinstance(known, cli.InputError | cli.Failed)
            error = str(known) if explained else f"{type(error).__name__}: {error}"
        with self.clock.paused():
            self._running.close()
        target, best = self.experiment.target, self.counters.best
        reads = self.counters.fresh_examples * self.config.dataset.spaced_epochs
        # a preempted run has seconds left, and counting the files of a bucket may take longer
        read = None if status == "preempted" else self.experiment.source.bytes_read(reads)
        used = round(self.clock.readings()["cores"], 6), read
        position = self._position() | dict(zip(records.USED, used, strict=True))
        result = records.run_result(status, target, position, best, error)
        result = self.recorder.write_result(result)
        self.close()
        self.result = result

    def close(self) -> None:
        """Ends threads, closes files, waits for a checkpoint that is being written, and releases
        the directory. A run that has ended is closed."""
        self._open.close()

    # What they share.

    @contextlib.contextmanager
    def _paused(self, region: str) -> Iterator[TrainState]:
        """Excludes time from training, and stops a throttled upstream meanwhile; yields the state,
        which is ready. `region` is its name in a profile."""
        state = jax.block_until_ready(self.state)
        clock = self.experiment.upstream_clock
        stopped = clock.stopped() if clock else contextlib.nullcontext()
        with self.clock.paused(), stopped, TraceAnnotation(region):
            yield state

    def _done(self, steps: int | None, fresh_examples: int) -> float:
        """The fraction of `steps` that has been taken; if that number is not known in advance, the
        fraction of `fresh_examples` (0: the budget). Counting steps avoids the jump at the start,
        where filling a shuffle buffer admits many examples at once."""
        if steps is not None:
            return self.counters.step / steps
        return self.counters.fresh_examples / (fresh_examples or self.config.budget.fresh_examples)

    def _position(self) -> dict[str, Any]:
        """The fields that every record begins with."""
        position = {
            "step": self.counters.step,
            "fresh_examples": self.counters.fresh_examples,
            "train_seconds": round(self.clock.train, 6),
            "wall_seconds": round(self.clock.wall, 6),
            "input_wait_fraction": round(self.clock.input_wait_fraction, 6),
        }
        if self.config.dataset.damaged == "skip":
            position["skipped_examples"] = self.counters.skipped
            position["skipped_validation_examples"] = len(self.experiment.held_out.damaged)
        return position

    def _status(self) -> str:
        """The line that progress shows, the most important parts first."""
        at, target, seconds = self.counters, self.experiment.target, self.clock.train
        done = self._done(self.policy.total_steps, 0)
        value = "-" if at.value is None else f"{at.value:.4g}"
        goal = f"{'>=' if target.mode == 'above' else '<='} {target.value:g}"
        parts = [f"{target.metric} {value} ({goal})", f"training loss {self._loss:.3g}"]
        parts += [f"{duration(seconds / done * (1 - done))} left"] if done > 0.01 else []
        parts += [f"input wait {self.clock.input_wait_fraction:.0%}"]
        parts += [f"{at.fresh_examples / seconds:,.0f} fresh/s"] if seconds else []
        parts += [f"{at.fresh_examples:,} of {self.config.budget.fresh_examples:,} fresh"]
        return SEPARATOR.join(parts)
