"""Trains one configuration until it reaches its target, uses up its budget, or diverges.

    python train.py --config=configs/cifar10.py:mini --workdir=DIR
    python train.py --evaluate DIR

`train(config, workdir)` does the same from Python. A run can be started again at any time with the
same command: a finished run says so, and an interrupted one resumes bit for bit.
"""

if __name__ == "__main__":  # before slow imports, so that signals never print a traceback
    from runs import signals

    signals.install_for_start()

import argparse
import contextlib
import dataclasses
import pathlib
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from configs import base
from runs import cli, tracking


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Flags of the command, and overrides of the configuration; raises InputError."""
    parser = cli.Parser(__doc__, base.FIELDS)
    add = parser.add_argument
    add("--config", help="FILE[:VARIANT], such as configs/cifar10.py:mini")
    add("--workdir", type=cli.directory, help="the run's directory; run the same command to resume")
    add(
        "--evaluate",
        type=cli.directory,
        metavar="WORKDIR",
        help="instead of training: evaluate a run's best checkpoint (so far, if it was "
        "interrupted) on its validation split, and on its test split if it has one; writes "
        "WORKDIR/evaluation.json, and WORKDIR/parameters.npz, which numpy.load reads "
        "(params/stem/conv/kernel, ...)",
    )
    tracking.add_flags(parser)
    add(
        "--profile",
        type=tracking.steps_to_profile,
        metavar="START:STOP",
        help="trace these steps, without STOP, into WORKDIR/profile, for TensorBoard or Perfetto",
    )
    arguments, overrides = cli.parse(parser, argv)
    given = [name for name in ("config", "workdir") if getattr(arguments, name)]
    if arguments.evaluate and given:
        parser.error("--evaluate takes the run's own configuration; leave out --config, --workdir")
    tools = ("tracker", "mirror", "profile")
    unused = [f"--{name}" for name in tools if getattr(arguments, name) is not None]
    if arguments.evaluate and unused:
        parser.error(f"--evaluate trains nothing to follow; leave out {', '.join(unused)}")
    if not arguments.evaluate:
        missing = [f"--{name}" for name in ("config", "workdir") if name not in given]
        if missing:
            parser.error(f"the following arguments are required: {', '.join(missing)}")
        arguments.tools = tracking.chosen(arguments, arguments.workdir)
    return arguments, overrides


if __name__ == "__main__":
    cli.answer_early(parse)

import jax
import numpy as np
from jax.profiler import TraceAnnotation
from ml_collections import ConfigDict

from data.splits import remarks
from pipeline import streams
from pipeline.evaluation import EvaluationBatch
from pipeline.map_datasets import Batch
from runs import (
    environment,
    origins,
    processes,
    records,
    resuming,
    signals,
    trial_records,
    workdirs,
)
from runs.checkpoints import Checkpoints
from runs.clock import Clock
from runs.progress import Progress, Status, TimeLeft, duration, several, write
from runs.tracking import Followers, Recorder
from training import best_checkpoint, divergence, gradient_statistics, memory, optimizer
from training.experiment import Experiment, make_experiment
from training.step import Rows

# Called with the number of steps that a run has taken, after each of them.
OnStep = Callable[[int], None]


class Diverged(Exception):
    """The run has diverged; the message says how."""


class Preempted(Exception):
    """The run was asked to stop, and saves a checkpoint."""


def train(
    config: ConfigDict,
    workdir: str | pathlib.Path,
    progress: Progress | None = None,
    *,
    locked: bool = False,
    on_step: OnStep | None = None,
    tools: tracking.Tools | None = None,
) -> dict[str, Any]:
    """Trains `config` in `workdir`, from the start or from the last checkpoint.

    Args:
        config: a resolved configuration (see configs/base.py).
        workdir: the run's directory; created if it does not exist.
        progress: displays the progress; None for none.
        locked: whether the caller holds the directory's lock.
        on_step: called after each step.
        tools: trackers, a profile, a mirror; None for TensorBoard alone.

    Returns:
        The content of WORKDIR/result.json.

    Raises:
        InputError: wrong input, or a directory in use. Nothing has been written.
        DiskFull: the run can be resumed from its last checkpoint.
    """
    workdirs.check_apart(pathlib.Path(workdir), config, "--workdir")
    experiment = make_experiment(config)
    progress = progress or Progress(quiet=True)
    for remark in [] if locked else remarks(config.dataset):  # a study says them once
        progress.say(remark)
    with signals.stop_requested() as stop:
        steps = step_by_step(
            experiment,
            pathlib.Path(workdir),
            progress,
            lambda step: stop(),
            interrupt=stop,
            locked=locked,
            on_step=on_step,
            tools=tools,
        )
        return next(result for result in steps if result is not None)


def step_by_step(
    experiment: Experiment,
    workdir: pathlib.Path,
    progress: Progress,
    stop: Callable[[int], bool],
    *,
    interrupt: Callable[[], bool] = lambda: False,
    locked: bool = False,
    on_step: OnStep | None = None,
    tools: tracking.Tools | None = None,
) -> Iterator[dict[str, Any] | None]:
    """Trains like `train`, one step per iteration, so that several runs can take turns.

    Args:
        experiment: the run.
        workdir: the run's directory; created if it does not exist.
        progress: displays the progress.
        stop: called before each step with the number of steps taken; whether to save and stop.
        interrupt: called in evaluations once a batch has been read; whether to save and stop there.
            The resumed run evaluates again.
        locked: whether the caller holds the directory's lock.
        on_step: called after each step.
        tools: trackers, a profile, a mirror; None for TensorBoard alone.

    Yields:
        None before the first step and after each one, then the content of WORKDIR/result.json.
    """
    record = {
        "config": experiment.config.to_dict(),
        "dataset": experiment.info.to_record(),
        **environment.describe(),
    }
    tools = tools or tracking.Tools(root=workdir)
    with cli.disk_full_named(workdir), contextlib.ExitStack() as held:
        finished = processes.decided_by_first(
            lambda: workdirs.enter(
                workdir, record, base.MAY_CHANGE_ON_RESUME, lock=None if locked else held
            )
        )
        if finished:
            tools.copy(workdir, progress.say)
            yield finished
            return
        followers = tools.followers(workdir, record["config"], progress.say)
        held.callback(followers.close)
        config, mesh = experiment.config, experiment.program.task.mesh
        with memory.exhaustion_explained(config, mesh):
            run = _Run(experiment, workdir, progress, followers, interrupt)
        error = None
        with contextlib.closing(run):
            with cli.writing_to(workdir):
                processes.decided_by_first(
                    lambda: origins.note(
                        workdir, record, run.counters.step, base.CHANGE_ROUNDING, progress.say
                    )
                )
            try:
                yield None  # the input is at its position, and no batch has been taken
                status = yield from run.loop(stop, on_step or (lambda step: None))
            except Diverged as caught:
                status, error = "diverged", str(caught)
            except Preempted:
                status = "preempted"
            except Exception as caught:
                if cli.is_disk_full(caught):
                    raise
                exhaustion = memory.exhaustion(caught, config, mesh)
                status, error = "failed", exhaustion or f"{type(caught).__name__}: {caught}"
                # it may contain file names of any bytes
                text = traceback.format_exc().encode(errors="backslashreplace")
                records.write_bytes(workdir / records.error_file(jax.process_index()), text)
        result = run.result(status, error)
        run.recorder.write_result(result)
    yield result  # the lock is free by now, whatever still refers to this generator


@dataclasses.dataclass
class Counters:
    """The position of a run; saved with every checkpoint.

    Attributes:
        evaluated, saved: how many multiples of the cadences of evaluation and saving have passed.
        evaluated_step: the step of the last evaluation; -1 before the first.
        value: the target's metric there.
        best: the best validation value so far, {metric, value, fresh_examples}, or None.
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


class _Run:
    """One run: the training loop, and what it keeps between steps."""

    def __init__(
        self,
        experiment: Experiment,
        workdir: pathlib.Path,
        progress: Progress,
        followers: Followers,
        interrupt: Callable[[], bool],
    ):
        self.config, self.progress = experiment.config, progress
        self.experiment, self.policy = experiment, experiment.policy
        self.transfer, self.stepper = experiment.transfer, experiment.stepper
        self.counters = Counters()
        self.stepper.state = experiment.program.init(self.config.seed.model)
        self.iterator = iter(experiment.batches)
        self.checkpoints = Checkpoints(workdir / records.CHECKPOINTS, followers.saved)
        self.clock = Clock()  # starts here, after what is compiled once per process
        self.time_left = TimeLeft()
        self._begun = False  # whether this process has asked for a batch
        self._pending: list[tuple[dict[str, Any], Any]] = []  # (record, metrics) of unread steps
        self._saved: tuple[int, bool] | None = None  # (step, whether it was evaluated there)
        keep_bytes = self._restore(workdir)
        self.recorder = Recorder(workdir, keep_bytes, followers)
        self.followers, self.interrupt = followers, interrupt
        followers.start(self.counters.fresh_examples)
        self.policy.resume(workdir, self.counters.step)

    def loop(self, stop: Callable[[int], bool], on_step: OnStep) -> Generator[None, None, str]:
        """Trains to the end and yields after each step; returns 'reached' or 'exhausted'."""
        # The order is a contract: evaluate -> target? -> save -> next(batch) -> step -> log. The
        # iterator moves only after the save, so a checkpoint is one moment of the whole run.
        while True:
            improved = False
            if self._crossed("evaluate_every_fresh_examples", "evaluated"):
                improved = self._evaluate()
            # Not only just after an evaluation: a process may end between its last checkpoint and
            # its result.
            if self.counters.evaluated_step == self.counters.step and self._reached_target():
                return self._end("reached")
            due = self._crossed("checkpoint_every_fresh_examples", "saved")
            saves_best = improved and self.config.checkpoint_every_fresh_examples > 0
            stops = stop(self.counters.step)
            if stops or due or saves_best:
                self._save()
            if stops:
                raise Preempted
            batch = self._next_batch()
            if batch is None:
                break
            self._step(batch)
            on_step(self.counters.step)
            yield
            self._log(keep=1)  # the last step is still running; the one before has ended
        if self.counters.evaluated_step != self.counters.step:
            self._evaluate()
        return self._end("reached" if self._reached_target() else "exhausted")

    def result(self, status: str, error: str | None) -> dict[str, Any]:
        """The content of result.json."""
        at = self.counters
        position = {
            "step": at.step,
            "fresh_examples": at.fresh_examples,
            "train_seconds": self.clock.train,
            "wall_seconds": self.clock.wall,
            "input_wait_fraction": self.clock.input_wait_fraction,
        }
        return records.run_result(status, self.experiment.target, position, at.best, error)

    def close(self) -> None:
        """Ends threads, closes files, and waits for a checkpoint that is being written."""
        with self.clock.paused(), contextlib.ExitStack() as last_to_first:
            last_to_first.callback(self.recorder.close)
            last_to_first.callback(self.checkpoints.close)
            last_to_first.callback(self.iterator.close)
            last_to_first.callback(self.progress.close)
            last_to_first.callback(self.policy.close)

    # Steps of the loop, in its order.

    def _crossed(self, cadence: str, counter: str) -> bool:
        """Notes the multiples of a cadence passed so far; returns whether one was passed since the
        last call."""
        every = self.config[cadence]
        passed = self.counters.fresh_examples // every if every else 0
        crossed = passed > getattr(self.counters, counter)
        setattr(self.counters, counter, passed)
        return crossed

    def _evaluate(self) -> bool:
        """Evaluates on the validation split; whether the target's metric is the best so far."""
        self._log()
        target, at = self.experiment.target, self.counters
        state = self.stepper.state
        jax.block_until_ready(state)
        try:
            with self._paused("evaluate"):
                values = self.experiment.program.evaluate(state, self._validation_batches())
        except Exception as error:
            at.evaluated = -1  # so that the run evaluates here when it is resumed
            if isinstance(error, Preempted):  # in every process
                self._save()
            else:
                self._save_after_error()
            raise
        at.value, at.evaluated_step = values[target.metric], at.step
        self.recorder.write({**self._position("validation"), **values})
        improved = target.better(at.value, than=at.best["value"] if at.best else None)
        if improved:
            fresh = at.fresh_examples
            at.best = {"metric": target.metric, "value": at.value, "fresh_examples": fresh}
            at.best_step = at.step
        return improved

    def _validation_batches(self) -> Iterator[EvaluationBatch]:
        for batch in self.experiment.validation:
            if self.interrupt():
                raise Preempted
            yield batch

    def _reached_target(self) -> bool:
        value = self.counters.value
        return value is not None and self.experiment.target.reached(value)

    def _save(self) -> None:
        """Saves model, optimizer, input position, counters, and clocks as of one moment."""
        self._log()
        at = self.counters
        evaluated = at.evaluated_step == at.step
        if self._saved == (at.step, evaluated):
            return
        state = self.stepper.state
        jax.block_until_ready(state)
        with self._paused("save"):
            extents = {records.METRICS: self.recorder.sync()} | self.policy.sync()
            value = {
                "input": streams.merge_states(processes.gather(self.iterator.get_state())),
                "counters": dataclasses.asdict(at),
                "clock": self.clock.readings(),
                "bytes_sent": self.transfer.bytes_sent,
                "records": {name: dataclasses.asdict(extent) for name, extent in extents.items()},
            }
            self.checkpoints.save(at.step, state, value, at.best_step)
        self._saved = (at.step, evaluated)

    def _save_after_error(self) -> None:
        """Saves, if this process is the only one. Several would have to save together, and the
        others do not know of the error."""
        if jax.process_count() == 1:
            self._save()

    def _next_batch(self) -> Batch | None:
        """The next batch; None at the end of the input."""
        waited = self.clock.waited
        shown = contextlib.nullcontext()
        if not self._begun:  # it may fill a shuffle buffer, or be of a slow source
            self._begun, shown = True, self.progress.meanwhile("waiting for the first batch")
        try:
            with shown, self.clock.waiting():
                return next(self.iterator, None)
        except Exception:
            self._save_after_error()  # the iterator is still at its position before the batch
            raise
        finally:
            # Under `auto` the input waits on purpose for fresh examples while the device still runs
            # the last step. That time does not count as waiting.
            self.clock.waited -= self.policy.busy(self.clock.waited - waited)

    def _step(self, batch: Batch) -> None:
        """Dispatches a step. `_log` reads its metrics after the next one has been dispatched."""
        at = self.counters
        self.followers.step(at.step + 1)
        with TraceAnnotation("transfer"):
            rows = self.transfer.put(batch)
        hyper = optimizer.hyperparameters(self.config, self._schedule_progress())
        if not self.stepper.compiled:
            with self._paused("compile"):
                self.stepper.compile(rows, hyper)
        gradients = self._gradient_statistics(batch, rows)  # before the step, which donates state
        with TraceAnnotation("step"):
            metrics = self.stepper.step(rows, hyper)
        at.step += 1
        at.fresh_examples = int(batch.fresh_examples)
        if gradients:
            self.recorder.write(self._position(records.GRADIENTS) | gradients)
        record = self._position("train") | {"learning_rate": float(hyper.learning_rate)}
        record["bytes_sent"] = self.transfer.bytes_sent
        self._pending.append((record, metrics))
        self.policy.stepped(at.step, batch)

    def _gradient_statistics(self, batch: Batch, rows: Rows) -> dict[str, float]:
        """The statistics of the gradient of the next step; empty if they are not due."""
        step = self.counters.step
        if not gradient_statistics.due(step, self.config.gradient_statistics_every_steps):
            return {}
        self._log()
        state = self.stepper.state
        jax.block_until_ready(state)
        with self._paused("gradient statistics"):
            repeat_b = self.experiment.repeated_rows(step, batch.copy)
            data_seed = np.uint32(self.config.seed.data)
            return self.experiment.program.gradient_statistics(state, rows, repeat_b, data_seed)

    def _log(self, keep: int = 0) -> None:
        """Reads the metrics of all unread steps but the last `keep`, checks them for divergence,
        and records those that are due."""
        at = self.counters
        while len(self._pending) > keep:
            position, metrics = self._pending.pop(0)
            values = {name: float(value) for name, value in self.stepper.fetch(metrics).items()}
            step, every = position["step"], self.config.log_every_steps
            nonfinite = int(values.pop("nonfinite"))
            if step % every == 0 and self.recorder.active:
                copies = self.experiment.copies.window(step - every, step)
                self.recorder.write({**position, **values, **copies})
            if step == 1:
                at.initial_loss = values["loss"]
            why = divergence.explanation(step, values["loss"], nonfinite, at.initial_loss)
            if why:  # a step that has been dispatched since does not count
                at.step, at.fresh_examples = step, position["fresh_examples"]
                raise Diverged(why)
            self.progress.update(self._status())

    def _end(self, status: str) -> str:
        self._log()
        if self.config.checkpoint_every_fresh_examples:
            self._save()
        return status

    # What the steps of the loop share.

    @contextlib.contextmanager
    def _paused(self, region: str) -> Iterator[None]:
        """Excludes time from training, and stops a throttled upstream meanwhile; `region` is its
        name in a profile."""
        stopped = self.experiment.upstream_clock.stopped()
        with self.clock.paused(), stopped, TraceAnnotation(region):
            yield

    def _schedule_progress(self) -> float:
        """The progress of the learning-rate schedule, from 0 to 1; 1 past its horizon."""
        horizon = self.config.optimizer.schedule.horizon_fresh_examples
        budget = self.config.budget.fresh_examples
        return min(1.0, self._fraction_done(self.policy.horizon_steps, horizon or budget))

    def _fraction_done(self, steps: int | None, fresh_examples: int) -> float:
        """The fraction of `steps` that has been taken; if that number is not known in advance,
        the fraction of `fresh_examples`. Counting steps avoids the jump at the start, where filling
        a shuffle buffer admits many examples at once."""
        if steps is None:
            return self.counters.fresh_examples / fresh_examples
        return self.counters.step / steps

    def _position(self, split: str) -> dict[str, Any]:
        """The fields that every record begins with."""
        return {
            "step": self.counters.step,
            "fresh_examples": self.counters.fresh_examples,
            "train_seconds": round(self.clock.train, 6),
            "wall_seconds": round(self.clock.wall, 6),
            "input_wait_fraction": round(self.clock.input_wait_fraction, 6),
            "split": split,
        }

    def _restore(self, workdir: pathlib.Path) -> int:
        """Restores the newest usable checkpoint, if there is one; returns the length of
        metrics.jsonl at that moment."""
        usable = resuming.newest_usable(
            workdir, self.checkpoints, self.stepper.state, self.progress.say
        )
        if usable is None:
            return 0
        step, self.stepper.state, value = usable
        self.iterator.set_state(value["input"])
        self.counters, self.clock = Counters(**value["counters"]), Clock(**value["clock"])
        self.transfer.bytes_sent = value["bytes_sent"]
        self._saved = (step, self.counters.evaluated_step == step)
        return value["records"][records.METRICS]["bytes"]

    def _status(self) -> Status:
        at, target, seconds = self.counters, self.experiment.target, self.clock.train
        budget = self.config.budget.fresh_examples
        done = self._fraction_done(self.policy.total_steps, budget)
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
        )


def main(argv: Sequence[str], on_step: OnStep | None = None) -> int:
    """Runs the command; returns its exit code."""
    arguments, overrides = parse(argv)
    if arguments.evaluate:
        return _evaluate(arguments.evaluate, overrides)
    config, _ = cli.load_config(arguments.config, overrides)
    processes.initialize()
    progress = Progress(quiet=not processes.is_first())
    before = trial_records.intact_result(arguments.workdir)
    result = train(config, arguments.workdir, progress, on_step=on_step, tools=arguments.tools)
    if result["status"] == "failed" and not processes.is_first():
        write(f"process {jax.process_index()}: {result['error']}", sys.stderr)
    already = "already finished: " if result == before else ""
    progress.say(already + _summary(result, arguments.workdir))
    if result["status"] != "failed":  # perhaps in this process only
        processes.wait_for_all()
    return cli.EXIT_CODES[result["status"]]


def _evaluate(workdir: pathlib.Path, overrides: Sequence[str]) -> int:
    processes.initialize()
    evaluation = best_checkpoint.evaluate(workdir, overrides)
    if processes.is_first():
        step, fresh = evaluation["step"], evaluation["fresh_examples"]
        status = evaluation.get("status", "exhausted")  # earlier versions wrote none
        ended = status in records.FINISHED
        so_far = "" if ended else f"; the best so far, since the run is {status}"
        write(f"step {step:,}, {several(fresh, 'fresh example')}{so_far}")
        for split, values in evaluation["splits"].items():
            texts = ("not finite" if x is None else f"{x:.4g}" for x in values.values())
            metrics = ", ".join(map(" ".join, zip(values, texts, strict=True)))
            write(f"{split}: {metrics}")
    return cli.OK


def _summary(result: dict[str, Any], workdir: pathlib.Path) -> str:
    best = result["best"]
    value = "none" if best["value"] is None else f"{best['value']:.4g}"
    line = (
        f"{result['status']}: {several(result['fresh_examples'], 'fresh example')}, "
        f"{several(result['step'], 'step')}, {duration(result['train_seconds'])} of training; "
        f"best {best['metric']} {value}; see {workdir}"
    )
    return f"{line}\nerror: {result['error']}" if "error" in result else line


if __name__ == "__main__":
    signals.exit_command(cli.guarded(main))
