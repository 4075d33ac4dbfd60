"""Trains one configuration until its target, the end of its budget, or divergence.

    python train.py --config=configs/cifar10.py:mini --workdir=DIR
    python train.py --evaluate DIR

`train(config, workdir)` does the same for a caller. A run's directory can be started again at any
time: a finished run says so, an interrupted one goes on, bit for bit as if it had not stopped.
"""

if __name__ == "__main__":  # before what takes long, so that Ctrl-C is quiet in all of it
    from runs import signals

    signals.install(signals.end_at_once)

import contextlib
import dataclasses
import pathlib
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from configs import base
from pipeline import streams
from pipeline.map_datasets import Batch
from runs import cli, distributed, environment, records, resuming, signals, terminal, workdirs
from runs.checkpoints import Checkpoints
from runs.clock import Clock
from runs.metrics_writer import Recorder
from runs.progress import Progress, Status, duration
from training import (
    best_checkpoint,
    divergence,
    evaluation,
    gradient_statistics,
    optimizer,
    sharding,
)
from training.experiment import Parts, open_data, prepare
from training.state import Counters, TrainState

__all__ = ["open_data", "prepare", "train", "turns"]

ROOT = pathlib.Path(__file__).resolve().parent


class Diverged(Exception):
    """The run cannot recover; the message says why."""


class Preempted(Exception):
    """The run was told to stop, and has saved itself."""


def train(
    config, workdir: str | pathlib.Path, progress: Progress | None = None, *, locked: bool = False
) -> dict[str, Any]:
    """Trains `config` in `workdir`, from the start or from where an earlier call stopped.

    Args:
        config: a resolved configuration (see configs/base.py).
        workdir: the run's directory; made if it is not there.
        progress: where to show how it goes; None shows nothing.
        locked: whether the caller holds the directory's lock.

    Returns:
        The content of WORKDIR/result.json.

    Raises:
        command.InputError: wrong input, or a directory in use, with nothing written.
        command.DiskFull: the run stands at its last checkpoint, and can be started again.
    """
    parts = prepare(config)
    with signals.stop_requested() as stop:
        progress = progress or Progress(quiet=True)
        run = turns(parts, pathlib.Path(workdir), progress, stop, locked=locked)
        return next(filter(None, run))


def turns(
    parts: Parts,
    workdir: pathlib.Path,
    progress: Progress,
    stop: Callable[[int], bool],
    *,
    locked: bool = False,
) -> Iterator[dict[str, Any] | None]:
    """Trains as `train` does, a step a turn: None after each, at last the result."""
    record = {
        "config": parts.config.to_dict(),
        "dataset": dataclasses.asdict(parts.info),
        **environment.describe(ROOT),
    }
    with cli.disk_full_named(workdir), contextlib.ExitStack() as held:
        finished = distributed.decided_by_first(
            lambda: workdirs.enter(
                workdir,
                record,
                base.MAY_CHANGE_ON_RESUME,
                lock=None if locked else held,
                say=progress.say,
            )
        )
        if finished:
            yield finished
            return
        run = _Run(parts, workdir, progress)
        error = None
        try:
            yield None  # before the first batch, so that a caller sees where all of its runs stand
            status = yield from run.loop(stop)
        except Diverged as caught:
            status, error = "diverged", str(caught)
        except Preempted:
            status = "preempted"
        except Exception as caught:
            if cli.is_disk_full(caught):
                raise
            status, error = "failed", f"{type(caught).__name__}: {caught}"
            name = f"error{jax.process_index() or ''}.txt"
            (workdir / name).write_text(traceback.format_exc())
        finally:
            run.close()
        result = run.result(status, error)
        if distributed.is_first():
            records.write_json(workdir / records.RESULT, result)
    yield result  # the lock is free by now, whatever still refers to this generator


class _Run:
    """One run: the loop, and what it keeps between steps."""

    def __init__(self, parts: Parts, workdir: pathlib.Path, progress: Progress):
        self.parts, self.config, self.progress = parts, parts.config, progress
        self.counters = Counters()
        self.state: TrainState = parts.program.init(self.config.seed.model)
        self.iterator = iter(parts.batches)
        self.checkpoints = Checkpoints(workdir / records.CHECKPOINTS)
        self._step = None  # the compiled training step
        self._pending: list[tuple[dict[str, Any], Any]] = []  # steps' (record, metrics), unread
        self._data_seed = np.uint32(self.config.seed.data)
        self.clock = Clock()  # from here on: what came before compiles, once a process
        self._saved: tuple[int, bool] | None = None  # (step, whether it was evaluated there)
        keep_bytes = self._restore(workdir)
        self.first, fresh = distributed.is_first(), self.counters.fresh_examples
        self.recorder = Recorder(workdir, keep_bytes, fresh, active=self.first)
        self.auto, self.decisions = self.config.echo.policy == "auto", None
        if self.auto:
            self._resume_decisions(workdir / records.DECISIONS)

    def loop(self, stop: Callable[[int], bool]) -> Generator[None, None, str]:
        """Trains to the end, and yields after each step; returns 'reached' or 'exhausted'."""
        # The order is a contract: evaluate -> target? -> save -> next(batch) -> step -> log. The
        # iterator moves only after the save, so that a checkpoint is one moment of the whole run.
        while True:
            improved = False
            if self._crossed("evaluate_every_fresh_examples", "evaluated"):
                improved = self._evaluate()
                if self.parts.target.reached(self.counters.value):
                    return self._end("reached")
            due = self._crossed("checkpoint_every_fresh_examples", "saved")
            keeps = self.config.checkpoint_every_fresh_examples > 0
            stops = stop(self.counters.step)
            if stops or due or (improved and keeps):
                self._save()
            if stops:
                raise Preempted
            batch = self._next_batch()
            if batch is None:
                break
            self._train_on(batch)
            yield
            self._log(but=1)  # of the step before, which is done by now
        if self.counters.evaluated_step != self.counters.step:
            self._evaluate()
        reached = self.parts.target.reached(self.counters.value)
        return self._end("reached" if reached else "exhausted")

    def result(self, status: str, error: str | None) -> dict[str, Any]:
        """The content of result.json."""
        at, target = self.counters, self.parts.target
        reached = status == "reached"
        return {
            "status": status,
            "target": dataclasses.asdict(target),
            "fresh_examples_to_target": at.fresh_examples if reached else None,
            "steps_to_target": at.step if reached else None,
            "seconds_to_target": self.clock.train if reached else None,
            "best": at.best or {"metric": target.metric, "value": None, "fresh_examples": None},
            "step": at.step,
            "fresh_examples": at.fresh_examples,
            "train_seconds": self.clock.train,
            "wall_seconds": self.clock.wall,
            "input_wait_fraction": self.clock.input_wait_fraction,
            **({"error": error} if error else {}),
        }

    def close(self) -> None:
        """Ends threads and files; waits for a checkpoint that is being written."""
        self.parts.exchange.close()
        self.progress.close()
        self.iterator.close()
        self.checkpoints.close()
        self.recorder.close()
        if self.decisions:
            self.decisions.close()

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        """Time in here is not training, and a limited upstream gives nothing."""
        with self.clock.paused(), self.parts.upstream_clock.stopped():
            yield

    def _crossed(self, cadence: str, counter: str) -> bool:
        """Whether the fresh counter has passed multiples of a cadence not dealt with yet."""
        every = self.config[cadence]
        passed = self.counters.fresh_examples // every if every else 0
        crossed = passed > getattr(self.counters, counter)
        setattr(self.counters, counter, passed)
        return crossed

    def _next_batch(self):
        waited = self.clock.waited
        try:
            with self.clock.waiting():
                return next(self.iterator, None)
        except Exception:
            self._save_alone()  # the input has ended in an error, and stands where it was
            raise
        finally:
            if self.auto:  # it waits while the device is busy
                self.clock.waited -= self.parts.pace.busy(self.clock.waited - waited)

    def _train_on(self, batch: Batch) -> None:
        """Dispatches a step; its metrics are read after the next one is dispatched."""
        at = self.counters
        rows = self.parts.input.put(batch)
        hyper = optimizer.hyperparameters(self.config, self._schedule_progress())
        arguments = (self.state, rows, hyper, self._data_seed)
        if self._step is None:
            with self._paused():
                self._step = self.parts.program.compile_train(*arguments)
        gradients = self._gradient_statistics(batch, rows)  # first: the step is given the state
        self.state, metrics = self._step(*arguments)
        self.parts.pace.dispatched(metrics)
        at.step += 1
        at.fresh_examples = int(batch.fresh_examples)
        if gradients:
            self.recorder.write(self._place(records.GRADIENTS) | gradients)
        record = self._place("train") | {"learning_rate": float(hyper.learning_rate)}
        record["bytes_sent"] = self.parts.input.bytes_sent
        self._pending.append((record, metrics))
        if self.decisions:
            if at.step > self._decided:
                self.decisions.write({"step": at.step, "fresh": batch.decisions})
            self.parts.copies.decided(batch.decisions)

    def _gradient_statistics(self, batch: Batch, rows: Any) -> dict[str, float]:
        """Those of the batch that the next step takes; nothing where they are not due."""
        step, every = self.counters.step, self.config.gradient_statistics_every_steps
        if not gradient_statistics.due(step, every):
            return {}
        self._log()
        jax.block_until_ready(self.state)
        program, state = self.parts.program, self.state
        with self._paused():
            repeat_B = self.parts.repeated_rows(step, batch.copy)
            inputs = (rows, sharding.put_batch(program.task.mesh, repeat_B), self._data_seed)
            measure = program.compile_statistics(state, *inputs)
            values = measure(state.params, state.model_state, *inputs)
            return gradient_statistics.defined(jax.device_get(values))

    def _log(self, but: int = 0) -> None:
        """Reads the metrics of steps but for the last `but`; checks them, and records them if
        their turn has come."""
        at = self.counters
        while len(self._pending) > but:
            place, metrics = self._pending.pop(0)
            values = {name: float(value) for name, value in self.parts.pace.fetch(metrics).items()}
            step, every = place["step"], self.config.log_every_steps
            nonfinite = int(values.pop("nonfinite"))
            if step % every == 0 and self.first:
                copies = self.parts.copies.window(step - every, step)
                self.recorder.write({**place, **values, **copies})
            if step == 1:
                at.initial_loss = values["loss"]
            why = divergence.explanation(step, values["loss"], nonfinite, at.initial_loss)
            if why:  # a step that was dispatched since does not count
                at.step, at.fresh_examples = step, place["fresh_examples"]
                raise Diverged(why)
            self.progress.update(self._status())

    def _schedule_progress(self) -> float:
        """How far the learning-rate schedule is, from 0 to 1, where it stays past its horizon."""
        horizon = self.config.optimizer.schedule.horizon_fresh_examples
        budget = self.config.budget.fresh_examples
        return min(1.0, self._share(self.parts.horizon_steps, horizon or budget))

    def _share(self, steps: int | None, fresh_examples: int) -> float:
        """How much of so many steps is done, or where their number is open, of so many fresh
        examples. In steps, the prefill of a shuffle buffer is no leap."""
        if steps is None:
            return self.counters.fresh_examples / fresh_examples
        return self.counters.step / steps

    def _evaluate(self) -> bool:
        """Evaluates on the validation split; whether the target's metric is the best so far."""
        self._log()
        target, at = self.parts.target, self.counters
        jax.block_until_ready(self.state)
        try:
            with self._paused():
                values = evaluation.evaluate(self.parts.program, self.state, self.parts.validation)
        except Exception:
            at.evaluated = -1  # so that a resumed run evaluates here
            self._save_alone()
            raise
        at.value, at.evaluated_step = values[target.metric], at.step
        self.recorder.write({**self._place("validation"), **values})
        improved = target.better(at.value, than=at.best and at.best["value"])
        if improved:
            fresh = at.fresh_examples
            at.best = {"metric": target.metric, "value": at.value, "fresh_examples": fresh}
            at.best_step = at.step
        return improved

    def _place(self, split: str) -> dict[str, Any]:
        """The fields that every record begins with."""
        return {
            "step": self.counters.step,
            "fresh_examples": self.counters.fresh_examples,
            "train_seconds": round(self.clock.train, 6),
            "wall_seconds": round(self.clock.wall, 6),
            "input_wait_fraction": round(self.clock.input_wait_fraction, 6),
            "split": split,
        }

    def _end(self, status: str) -> str:
        self._log()
        if self.config.checkpoint_every_fresh_examples:
            self._save()
        return status

    def _save(self) -> None:
        """Saves model, optimizer, input position, counters and clocks as of one moment."""
        self._log()
        at = self.counters
        evaluated = at.evaluated_step == at.step
        if self._saved == (at.step, evaluated):
            return
        jax.block_until_ready(self.state)
        with self._paused():
            value = {
                "input": streams.merged(distributed.gather(self.iterator.get_state())),
                "counters": dataclasses.asdict(at),
                "clock": self.clock.readings(),
                "bytes_sent": self.parts.input.bytes_sent,
                "records": self._extents(),
            }
            self.checkpoints.save(at.step, self.state, value, at.best_step)
        self._saved = (at.step, evaluated)

    def _save_alone(self) -> None:
        """Saves after an error. Several processes must save together, and the others know nothing
        of it."""
        if jax.process_count() == 1:
            self._save()

    def _extents(self) -> dict[str, dict[str, Any]]:
        """How far the files go that this moment needs, forced to disk."""
        extents = {records.METRICS: self.recorder.sync()}
        if self.decisions:
            extents[records.DECISIONS] = self.decisions.sync()
        return {name: dataclasses.asdict(extent) for name, extent in extents.items()}

    def _restore(self, workdir: pathlib.Path) -> int:
        """Returns to the newest usable checkpoint, if any; the length of metrics.jsonl then."""
        say = self.progress.say
        usable = resuming.newest_usable(workdir, self.checkpoints, self.state, say)
        if usable is None:
            return 0
        step, self.state, value = usable
        self.iterator.set_state(value["input"])
        self.counters, self.clock = Counters(**value["counters"]), Clock(**value["clock"])
        self.parts.input.bytes_sent = value["bytes_sent"]
        self._saved = (step, self.counters.evaluated_step == step)
        return value["records"][records.METRICS]["bytes"]

    def _resume_decisions(self, path: pathlib.Path) -> None:
        """Has decisions that were recorded after the checkpoint repeated, before new ones."""
        taken, length = distributed.decided_by_first(lambda: records.read_decisions(path))
        step = self.counters.step
        self.parts.earlier.update(enumerate(taken[step:], start=step))
        self._decided = len(taken)
        if self.first:
            self.decisions = records.LinesWriter(path, length)
            for fresh in taken[:step]:
                self.parts.copies.decided(fresh)

    def _status(self) -> Status:
        at, target, seconds = self.counters, self.parts.target, self.clock.train
        done = self._share(self.parts.total_steps, self.config.budget.fresh_examples)
        return Status(
            fresh_examples=at.fresh_examples,
            budget=self.config.budget.fresh_examples,
            metric=target.metric,
            value=at.value,
            goal=f"{'>=' if target.mode == 'above' else '<='} {target.value:g}",
            examples_per_second=at.step * self.config.batch_size / seconds if seconds else 0.0,
            input_wait_fraction=self.clock.input_wait_fraction,
            seconds_left=self.clock.wall / done * (1 - done) if done else None,
        )


def main(argv: Sequence[str]) -> int:
    parser = cli.Parser(__doc__, base.FIELDS)
    parser.add_argument("--config", help="FILE[:VARIANT], such as configs/cifar10.py")
    parser.add_argument("--workdir", help="the run's directory; start it again to resume")
    parser.add_argument(
        "--evaluate",
        metavar="WORKDIR",
        help="instead of training: evaluate a finished run's best checkpoint on its validation "
        "split, and on its test split if it has one; writes WORKDIR/evaluation.json, and "
        "WORKDIR/parameters.npz, which numpy.load reads (params/stem/conv/kernel, ...)",
    )
    arguments, overrides = cli.parse(parser, argv)
    if arguments.evaluate:
        return _evaluate(parser, arguments, overrides)
    missing = [f"--{name}" for name in ("config", "workdir") if not getattr(arguments, name)]
    if missing:
        parser.error(f"the following arguments are required: {', '.join(missing)}")
    config, _ = cli.load_config(arguments.config, overrides, base.FIELDS, ROOT)
    distributed.initialize()
    progress = Progress(quiet=not distributed.is_first())
    before = None
    with contextlib.suppress(records.Damaged):  # `train` sets it aside, and says so
        before = records.read_json(pathlib.Path(arguments.workdir) / records.RESULT)
    result = train(config, arguments.workdir, progress)
    if result["status"] == "failed" and not distributed.is_first():
        terminal.write(f"process {jax.process_index()}: {result['error']}", sys.stderr)
    already = "already finished: " if result == before else ""
    progress.say(already + _summary(result, arguments.workdir))
    return cli.EXIT_CODES[result["status"]]


def _evaluate(parser: cli.Parser, arguments: Any, overrides: Sequence[str]) -> int:
    if arguments.config or arguments.workdir:
        parser.error("--evaluate takes the run's own configuration; leave out --config, --workdir")
    distributed.initialize()
    found = best_checkpoint.evaluate(pathlib.Path(arguments.evaluate), overrides)
    if distributed.is_first():
        terminal.write(f"step {found['step']:,}, {found['fresh_examples']:,} fresh examples")
        for split, values in found["splits"].items():
            shown = ", ".join(f"{name} {x:.4g}" for name, x in values.items())
            terminal.write(f"{split}: {shown}")
    return cli.OK


def _summary(result: dict[str, Any], workdir: str) -> str:
    best = result["best"]
    value = "none" if best["value"] is None else f"{best['value']:.4g}"
    line = (
        f"{result['status']}: {result['fresh_examples']:,} fresh examples, "
        f"{result['step']:,} steps, {duration(result['train_seconds'])} of training; "
        f"best {best['metric']} {value}; see {workdir}"
    )
    return f"{line}\nerror: {result['error']}" if "error" in result else line


if __name__ == "__main__":
    sys.exit(cli.guarded(main))
