"""Pilots: short runs of one configuration at a few echo factors, extended until the forecast from
all of them is clear.

A pilot is an ordinary run in a directory of its own. It is stopped after an evaluation, and resumed
when the forecast requires more of it. Pilots can therefore be continued after any interruption.
"""

import bisect
import contextlib
import copy
import dataclasses
import itertools
import math
import pathlib
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

import train
from configs import base, catalog
from data.sources import RecordError
from data.splits import open_splits
from echo.advice.alternatives import COLUMNS
from echo.advice.forecast import FACTORS, Forecast, Run, forecast
from pipeline import accounting
from runs import cli, origins, records, signals, trial_records, workdirs
from runs.progress import SEPARATOR, Progress, duration
from runs.study import nested
from runs.tooling import Tools
from training import check
from training.experiment import make_experiment

# The pilots that everything starts with, and their numbers of evaluations
# (results/forecast_protocol.md).
FIRST: dict[float, int] = {4: 3, 16: 2}

_EVALUATIONS = 64  # at least so many in the budget of a run without echoing
_GROWTH = 0.15  # by which a pilot is extended at a time, at least by one evaluation
_MIN_STEPS = 10  # of a pilot that times a step
_INPUT_TIMES = (0.5, 2.0)  # of a faster and a slower input, relative to the present one

# Fields that may differ between the sessions of a pilot, and with them the seconds of a step.
_PACE = tuple(sorted({*base.MAY_CHANGE_ON_RESUME} - {*base.MAY_CHANGE_IN_STUDY}))

# Batches that the shuffle buffer holds if the configuration has none: without one, all copies of an
# example are in the same batch.
DEFAULT_BUFFER_BATCHES = 4

# A factor of 1 with a shuffle buffer would still fill the buffer, and only auto may replay.
WITHOUT_ECHOING = catalog.BASELINE["baseline"] | {"echo.policy": "fixed", "echo.replay": ""}


@dataclasses.dataclass(frozen=True)
class Answer:
    """What follows from the pilots.

    Attributes:
        forecast: the forecast from all pilots.
        step_seconds: seconds per step by factor: the predictions, corrected by the steps that
            pilots took at the present pace.
        spent, limit: seconds of training in all pilots, and those beyond which none is extended.
        otherwise: the best factor by how many times as long as now the input takes.
    """

    forecast: Forecast
    step_seconds: Mapping[float, float]
    spent: float
    limit: float
    otherwise: Mapping[float, float]

    def __str__(self) -> str:
        changes = ", ".join(
            f"e = {factor:g} if the input took {times:g} times as long"
            for times, factor in self.otherwise.items()
        )
        spent = f"{duration(self.spent)} of at most {duration(self.limit)}"
        if self.spent > self.limit:  # by the first pilots, or while the input was slower
            spent = f"{duration(self.spent)}, longer than the limit of {duration(self.limit)}"
        text = f"The best guess would be {changes}. The pilots trained for {spent}."
        if self.forecast.next_factor is not None:
            text += " For longer pilots, run the same command with a higher --pilot-limit."
        return f"{self.forecast}\n\n{textwrap.fill(text, COLUMNS)}"


def check_directory(directory: pathlib.Path) -> None:
    """Raises InputError if pilots cannot be written to a directory; changes nothing."""
    if any((directory / name).exists() for name in (records.CONFIG, records.STUDY)):
        raise cli.InputError(
            f"{directory} contains a run or a study; give a new directory, or one of pilots"
        )
    if directory.is_file():
        raise cli.InputError(f"--pilot is {directory}, a file; give a directory")
    with cli.writing_to(directory):
        places = (directory, *directory.absolute().parents)
        tempfile.TemporaryFile(dir=next(place for place in places if place.exists())).close()


def recorded(directory: pathlib.Path) -> dict[tuple[float, int], dict[str, Any]]:
    """The configurations of the pilots in a directory, by (factor, seed); raises InputError if one
    is damaged."""
    configs = {}
    for factor in sorted({*FIRST, *FACTORS}):
        for workdir in sorted((directory / f"e{factor:g}").glob("[0-9]*")):
            with _damage_explained(workdir):
                config = trial_records.read_config(workdir).get("config")
                for name, kind in (("echo.insertion", str), ("echo.shuffle_buffer", int)):
                    if config and not isinstance(nested(config, name), kind):
                        raise records.Damaged(f"{records.CONFIG} has no {name}")
            if config and workdir.name.isdecimal():
                configs[factor, int(workdir.name)] = config
    return configs


def check_same(config: ConfigDict, directory: pathlib.Path, seeds: int) -> None:
    """Raises InputError if the pilots of the first `seeds` seeds in a directory are not those of
    `config`, a resolved configuration with an insertion point."""
    keys = [key for key in recorded(directory) if key[1] < seeds]
    if not keys:
        return
    check.check(config)
    try:
        *_, info = open_splits(config.dataset)
    except RecordError as error:
        raise cli.InputError(str(error)) from error
    for factor, seed in keys:
        pilot = _pilot_config(config, factor, seed)
        record = {"config": pilot.to_dict(), "dataset": info.to_record()}
        workdirs.checked(_workdir(directory, factor, seed), record, base.MAY_CHANGE_ON_RESUME)


class Pilots:
    """The pilots of a configuration.

    Args:
        config: a resolved configuration with an insertion point.
        step_seconds: predicted seconds per step by factor. Its keys, which include 1, are the
            factors to forecast.
        ratio: R, the input's seconds for a batch of fresh examples divided by the step's.
        directory: holds a directory eFACTOR/SEED for each pilot.
        seeds: the number of pilots of each factor.
        limit: the time beyond which no pilot is extended, in runs without echoing. The first
            pilots always run.
        progress: displays the progress.

    Raises:
        InputError: the target does not correspond to a loss above 0, or the directory cannot be
            used.
    """

    def __init__(
        self,
        config: ConfigDict,
        step_seconds: Mapping[float, float],
        ratio: float,
        directory: pathlib.Path,
        seeds: int,
        limit: float,
        progress: Progress,
    ):
        self._config, self._predicted, self._ratio = config, dict(step_seconds), ratio
        self._directory, self._progress = directory, progress
        self._seeds, self._limit = seeds, limit
        self._target = target_loss(config)
        check_directory(directory)
        self._runs: dict[tuple[float, int], Run] = {}
        self._results: dict[tuple[float, int], dict[str, Any]] = {}
        self._times: dict[tuple[float, int], tuple[int, float]] = {}  # steps, and their seconds

    def run(self) -> Answer:
        """Starts and continues pilots until the answer is clear, or the time is used up.

        Raises:
            InputError: a pilot cannot be run, or has failed.
            train.Preempted: the process was asked to stop; the pilots can be continued.
        """
        with signals.stop_requested() as stop:
            for factor in sorted({*FIRST, *FACTORS, *self._predicted}):
                for seed in range(self._seeds):
                    if factor in FIRST or self._workdir(factor, seed).exists():
                        self._continue(factor, seed, self._begin_with(factor, seed), stop)
            while (grown := self._following()) is not None:
                self._continue(*grown, stop)
        return self.answer()

    def answer(self) -> Answer:
        """The forecast from what the pilots have recorded so far.

        Raises:
            ValueError: they have recorded too little.
        """
        step_seconds = self._step_seconds()
        of_batch = step_seconds[1] * min(1.0, self._ratio)  # of the input
        predicted = self._forecast(step_seconds, of_batch)
        # The step alone; no factor shows it where the input is slower even with the largest.
        floor = min(*step_seconds.values(), step_seconds[1] / max(1.0, self._ratio))
        otherwise = {}
        for times in _INPUT_TIMES:
            other = {e: max(floor, times * of_batch / e) for e in step_seconds}
            otherwise[times] = self._forecast(other, times * of_batch).factor
        baseline = self._budget_seconds()
        if 1 in predicted.cells:
            # The median of a wide interval would end pilots that have hardly begun.
            baseline = min(baseline, predicted.cells[1].seconds_high)
        return Answer(predicted, step_seconds, self._spent(), self._limit * baseline, otherwise)

    def _forecast(self, step_seconds: Mapping[float, float], of_batch: float) -> Forecast:
        """`of_batch`: seconds of the input for a batch of fresh examples."""
        runs, batch_size = list(self._runs.values()), self._config.batch_size
        return forecast(
            runs,
            self._target,
            batch_size=batch_size,
            step_seconds=step_seconds,
            input_seconds=of_batch / batch_size,
        )

    def _budget_seconds(self) -> float:
        """Seconds that a run without echoing needs for the whole budget."""
        steps = self._config.budget.fresh_examples / self._config.batch_size
        return steps * self._step_seconds()[1]

    def _spent(self) -> float:
        return sum(result["train_seconds"] for result in self._results.values())

    def _following(self) -> tuple[float, int, int] | None:
        """The pilot to continue next, as (factor, seed, evaluations to reach); None at the end."""
        try:
            answer = self.answer()
        except ValueError as error:
            return self._shortest(f"the pilots in {self._directory} are not enough: {error}")
        if (factor := answer.forecast.next_factor) is None:
            return None
        unfinished = [seed for seed in range(self._seeds) if not self._finished(factor, seed)]
        if not unfinished:
            return None
        seed = min(unfinished, key=lambda seed: self._length(factor, seed))
        length = self._length(factor, seed)
        evaluations = _extended(length)
        config = self._pilot_config(factor, seed)
        fresh = (evaluations - length) * config.evaluate_every_fresh_examples
        cost = fresh * factor / config.batch_size * answer.step_seconds[factor]
        return (factor, seed, evaluations) if answer.spent + cost <= answer.limit else None

    def _shortest(self, otherwise: str) -> tuple[float, int, int]:
        """The shortest pilot, as `_following` returns it, while there is no forecast yet; raises
        InputError(`otherwise`) if longer pilots are not possible."""
        unfinished = [key for key in self._results if not self._finished(*key)]
        if not unfinished or self._spent() > self._limit * self._budget_seconds():
            raise cli.InputError(otherwise)
        key = min(unfinished, key=lambda key: self._length(*key))
        return (*key, self._length(*key) + 2)

    def _begin_with(self, factor: float, seed: int) -> int:
        """The evaluations of a pilot that everything starts with. One that failed is extended to
        beyond where it did: if it were stopped before that, its failure would be forgotten."""
        least, workdir = FIRST.get(factor, 0), self._workdir(factor, seed)
        if _failure(workdir) is None:
            return least
        return max(least, _extended(len(self._validation(workdir))))

    def _length(self, factor: float, seed: int) -> int:
        """The evaluations of a pilot so far."""
        run = self._runs.get((factor, seed))
        return 0 if run is None else len(run.loss)

    def _finished(self, factor: float, seed: int) -> bool:
        result = self._results.get((factor, seed))
        return result is not None and result["status"] in records.FINISHED

    def _continue(
        self, factor: float, seed: int, evaluations: int, stop: Callable[[], bool]
    ) -> None:
        """Trains a pilot until that many evaluations have followed the filling of its shuffle
        buffer, or to its end."""
        config, workdir = self._pilot_config(factor, seed), self._workdir(factor, seed)
        failure = _failure(workdir)
        end = _steps_until(config, evaluations)
        asked = False

        def interrupted() -> bool:
            nonlocal asked
            asked = stop()
            return asked

        def stops(step: int) -> bool:
            return interrupted() or step >= end

        quiet, tools = Progress(quiet=True), Tools(trackers=())
        steps = train.step_by_step(
            make_experiment(config), workdir, quiet, stops, interrupt=interrupted, tools=tools
        )
        status = self._status(f"pilot e = {factor:g}, seed {seed + 1} of {self._seeds}")
        while (result := next(steps)) is None:
            self._progress.update(status)
        if asked:
            if failure and result["step"] <= failure["step"]:  # it has not been tried again
                records.write_json(workdir / records.RESULT, failure)
            raise train.Preempted
        if result["status"] == "failed":
            raise cli.InputError(f"the pilot in {workdir} has failed: {result['error']}")
        self._results[factor, seed] = result
        validation = self._validation(workdir)
        self._times[factor, seed] = _timed(validation, _paces(workdir), _pace(config.to_dict()))
        if (run := loss_curve(config, factor, validation, result)) is not None:
            self._runs[factor, seed] = run

    def _validation(self, workdir: pathlib.Path) -> list[dict[str, Any]]:
        with _damage_explained(workdir):
            return trial_records.read(workdir).validation

    def _step_seconds(self) -> dict[float, float]:
        """Seconds per step by factor: measured where there are pilots at the present pace;
        elsewhere the predictions, corrected by their mean log error where there are."""
        measured: dict[float, list[float]] = {}
        for (factor, _), (steps, seconds) in self._times.items():
            if factor in self._predicted and steps >= _MIN_STEPS:
                measured.setdefault(factor, []).append(seconds / steps)
        known = {factor: float(np.median(seconds)) for factor, seconds in measured.items()}
        errors = [math.log(seconds / self._predicted[e]) for e, seconds in known.items()]
        correction = math.exp(np.mean(errors)) if errors else 1.0
        return {e: known.get(e, correction * s) for e, s in self._predicted.items()}

    def _status(self, pilot: str) -> str:
        """What the display shows while a pilot trains."""
        try:
            answer = self.answer()
        except ValueError:
            return pilot
        return SEPARATOR.join(
            (
                pilot,
                f"at most {duration(max(0.0, answer.limit - answer.spent))} of training left",
                f"guess e = {answer.forecast.factor:g}",
            )
        )

    def _pilot_config(self, factor: float, seed: int) -> ConfigDict:
        return _pilot_config(self._config, factor, seed)

    def _workdir(self, factor: float, seed: int) -> pathlib.Path:
        return _workdir(self._directory, factor, seed)


def _pilot_config(config: ConfigDict, factor: float, seed: int) -> ConfigDict:
    config = copy.deepcopy(config)
    config.echo.policy, config.echo.factor, config.echo.replay = "fixed", float(factor), ""
    config.evaluate_every_fresh_examples = cadence(config, factor)
    if factor == 1:
        config.update_from_flattened_dict(WITHOUT_ECHOING)
    config.seed.data += seed
    config.seed.model += seed
    return config


def cadence(config: ConfigDict, factor: float) -> int:
    """The fresh examples between two evaluations of a pilot, at which its counts hold: e times as
    many evaluations with a factor e, but at most one per step, so that each takes further steps."""
    every, budget = config.evaluate_every_fresh_examples, config.budget.fresh_examples
    every = min(every or budget, budget // _EVALUATIONS) / factor
    if config.echo.insertion == "after_batching":  # a whole batch is admitted at once
        one_step = config.batch_size
    else:  # every stream may admit an example in the same step
        streams = config.echo.streams
        one_step = streams * math.ceil(config.batch_size / streams / factor)
    return max(one_step, int(every))


def _workdir(directory: pathlib.Path, factor: float, seed: int) -> pathlib.Path:
    return directory / f"e{factor:g}" / str(seed)


def _extended(evaluations: int) -> int:
    """The evaluations to which a pilot that has so many is extended."""
    return max(2, math.ceil(evaluations * (1 + _GROWTH)))


def _failure(workdir: pathlib.Path) -> dict[str, Any] | None:
    """The result of a pilot that failed; None if it did not, or if its result is damaged: training
    sets that aside."""
    result = trial_records.intact_result(workdir)
    return result if result.get("status") == "failed" else None


def _damage_explained(workdir: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    return cli.damage_explained(str(workdir), "move it away")


def _pace(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a configuration that may change the seconds of a step; None where missing."""
    return {name: nested(config, name) for name in _PACE}


def _paces(workdir: pathlib.Path) -> list[tuple[int, dict[str, Any]]]:
    """The steps after which a pilot continued at each pace, and the paces; raises InputError."""
    if (workdir / "paces.json").exists():
        raise cli.InputError(
            f"the pilot in {workdir} was continued at another pace by an earlier version; remove "
            "its directory, or give another --pilot"
        )
    with _damage_explained(workdir):
        record = trial_records.read_config(workdir)
    first = _pace(record.get("config") or {})
    return [
        (origin["step"], {name: origin["fields"].get(name, value) for name, value in first.items()})
        for origin in origins.of_run(record)
    ]


def _timed(
    validation: Sequence[Mapping[str, Any]],
    paces: Sequence[tuple[int, Mapping[str, Any]]],
    pace: Mapping[str, Any],
) -> tuple[int, float]:
    """The steps between evaluations that were all taken at a pace, and their seconds. Those before
    the first evaluation also filled the shuffle buffer, and do not count."""
    ends = [*(begun for begun, _ in paces[1:]), math.inf]
    others = [
        (begun, end)
        for (begun, fields), end in zip(paces, ends, strict=True)
        if fields != pace and begun < end
    ]
    steps, seconds = 0, 0.0
    for before, after in itertools.pairwise(validation):
        if all(after["step"] <= begun or before["step"] >= end for begun, end in others):
            steps += after["step"] - before["step"]
            seconds += after["train_seconds"] - before["train_seconds"]
    return steps, seconds


def _steps_until(config: ConfigDict, evaluations: int) -> int:
    """The step of the last of `evaluations` evaluations after the shuffle buffer was filled. One
    more than the run has if the budget ends before that, so that the run is not stopped."""
    counts = accounting.Counts.of_all(config)

    def admitted(steps: int) -> int:
        return sum(count.admitted(steps) for count in counts)

    if not evaluations:
        return 0
    fresh_examples = admitted(1) + evaluations * config.evaluate_every_fresh_examples
    steps = range(accounting.total_steps(config) + 1)
    return bisect.bisect_left(steps, fresh_examples, key=admitted)


def target_loss(config: ConfigDict) -> float:
    """The loss at the target of a configuration; raises InputError if it is not above 0."""
    loss = _loss(config, config.target.value)
    if loss <= 0:
        raise cli.InputError(
            f"config.target.value is {config.target.value:g}; allowed for a forecast: a loss above "
            "0, or an accuracy below 1"
        )
    return loss


def loss_curve(
    config: ConfigDict,
    factor: float,
    validation: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any],
) -> Run | None:
    """The curve of a run, for `forecast`; None if the run was never evaluated. The last loss of a
    run that diverged is NaN.

    Args:
        config: the run's configuration.
        factor: its echo factor.
        validation: the records of its evaluations.
        result: the content of its result.json.
    """
    points = [
        (p["fresh_examples"], p["step"], _loss(config, p[config.target.metric])) for p in validation
    ]
    if result["status"] == "diverged":
        points.append((result["fresh_examples"], result["step"], math.nan))
    if not points:
        return None
    fresh, steps, loss = np.array(points, float).T
    # a loss must be above 0, and what happens below the target does not matter
    return Run(factor, fresh, steps, np.maximum(loss, target_loss(config) / 2))


def _loss(config: ConfigDict, value: float | None) -> float:
    """A value of the target's metric as a number that falls: itself, or 1 - value; NaN for None,
    the record of a value that is not finite."""
    if value is None:
        return math.nan
    return value if config.target.mode == "below" else 1 - value
