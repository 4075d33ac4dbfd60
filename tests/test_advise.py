"""The command advise.py: it measures the stages of the build, and reports."""

import itertools
import re

import numpy as np
import pytest

import advise
from echo.advice.model import StageTime, Timing
from echo.advice.recommend import conclude
from pipeline import accounting, build
from runs import cli
from tests.helpers.runs import echoing, flags, mini, placed, refusal
from training import check
from training.experiment import make_experiment


def test_the_command_prints_tables_and_a_recommendation(capsys):
    words = ["--config=configs/cifar10.py:mini", "--seconds=0.05"]
    assert cli.guarded(advise.main, [*words, *flags(mini())]) == 0
    printed, progress = capsys.readouterr()
    for name in ("read", "decode", "augment", "batch", "transfer", "step"):
        assert re.search(rf"^ *{name} .* (s|ms|µs|ns)", printed, re.MULTILINE)
    for place in ("before augment", "after augment", "after batching"):  # cut beside large rates
        assert re.search(rf"^ *{place}\w* +[\d.]+ ", printed, re.MULTILINE)
    assert "measuring decode\n" in progress


def test_a_slow_upstream_is_recognized():
    config = mini(upstream__examples_per_second=100)  # 0.3 s per batch; a step takes milliseconds
    advice = advise.advise(config, seconds=0.1)
    assert advice.insertion in ("before_augmentation", "after_augmentation")  # load decides which
    assert advice.ratio > 2


def test_the_advice_is_for_the_worker_processes_of_training(capsys):
    words = ["--config=configs/cifar10.py:mini", "--seconds=0.05", "--config.loader.workers=2"]
    assert cli.guarded(advise.main, [*words, *flags(mini())]) == 0
    assert "2 processes" in (printed := capsys.readouterr().out)
    assert "workers: 2)" in " ".join(printed.split())


@pytest.mark.parametrize(
    "condition",
    [
        placed("after_augmentation", 100),
        placed("after_batching", 4),
        placed("after_augmentation", 100, factor=1) | {"echo__policy": "auto"},
    ],
)
def test_the_measured_step_augments_where_training_augments_before_it(condition):
    config = mini(**condition)
    opened = make_experiment(advise.without_echoing(config))
    assert not make_experiment(config).program.task.augment_on_device
    assert opened.program.task.augment_on_device


@pytest.mark.parametrize("insertion", ["none", "before_augmentation", "after_batching"])
def test_the_measured_stages_make_the_batches_of_training(insertion):
    config = mini(**echoing(insertion, 0, factor=1), prefetch=0)
    opened = make_experiment(config)
    (_, read), *others, (_, join) = advise.host_stages(config, opened)
    batches = build.build(config, opened.source, opened.program.task.workload)
    for number, trained_on in zip(range(3), batches, strict=False):
        batch = read(number)
        for _, stage in others:
            batch = stage(batch)
        batch = join([batch])
        np.testing.assert_array_equal(batch.index, trained_on.index)
        for name, array in trained_on.data.items():
            np.testing.assert_array_equal(batch.data[name], array)


def allows(config, insertion):
    """Whether a run of the configuration may echo there."""
    config.echo.insertion = insertion
    try:
        check.check(config)
    except check.ConfigError:
        return False
    return True


PLACES = itertools.product(("host", "device"), ("host", "device"), (False, True))


# How many are allowed where they are stored, where augmented, and if decoding and cropping are one.
@pytest.mark.parametrize(
    ("place", "number"), [*zip(PLACES, (3, 2, 1, 0, 2, 2, 3, 2), strict=True)], ids=str
)
def test_insertion_points_are_those_that_training_allows(place, number):
    placement, augment_on, fused = place
    config = mini(echo__placement=placement, augment_on=augment_on, dataset__fused_decode=fused)
    allowed = [name for name in advise.STAGE_BEFORE if allows(config, name)]
    assert len(allowed) == number
    if allowed:
        assert list(advise.allowed_insertions(config)) == allowed


def advice_where(config, slow):
    """Advice for `config` with one slow stage."""
    names = ("read", "decode", "augment", "batch")
    times = [8e-3 if name == slow else 1e-6 for name in names] + [2e-3]
    costs = [StageTime(name, t, 0.0, t) for name, t in zip([*names, "step"], times, strict=True)]
    timing = Timing(tuple(costs), 4, config.batch_size, workers=1, cores=64)
    allowed = advise.allowed_insertions(config)
    return conclude(timing, {key: 1 + names.index(name) for key, name in allowed.items()})


CONDITIONS = [
    echoing("none", 0, factor=1),
    echoing("before_augmentation", 100),
    echoing("after_batching", 4),
    {
        **echoing("before_augmentation", 100, factor=1),
        "echo__policy": "auto",
        "echo__max_factor": 3,
        "echo__replay": "decisions.jsonl",  # allowed under auto only
    },
    {**echoing("after_batching", 4, factor=1), "echo__policy": "auto", "echo__max_factor": 16},
    {**echoing("none", 0, factor=1), "dataset__spaced_epochs": 2},
]


# Echoing before augmentation is not valid where decoding and cropping are one.
FUSED = [(own, True) for own in CONDITIONS if own["echo__insertion"] != "before_augmentation"]


@pytest.mark.parametrize("slow", ["decode", "augment", "batch"])
@pytest.mark.parametrize(("condition", "fused"), [*((own, False) for own in CONDITIONS), *FUSED])
def test_the_printed_flags_make_a_valid_configuration(condition, fused, slow):
    config = mini(**condition, dataset__fused_decode=fused)
    check.check(config)
    advice, had = advice_where(config, slow), advise.buffer_examples(config)
    recommended = advise.flags(config, advice)
    assert advice.factor == 4
    cli.override(config, recommended.split())
    check.check(config)
    assert config.echo.insertion == advice.insertion
    if config.echo.policy == "auto":
        assert config.echo.max_factor >= advice.factor
    else:
        assert config.echo.factor == advice.factor
    assert accounting.shuffle_buffer(config) > 0
    assert 0 <= had - advise.buffer_examples(config) < config.batch_size


def test_the_buffer_is_the_configured_one():
    assert advise.buffer_examples(mini()) == 4 * 32  # of the recommended one
    assert advise.buffer_examples(mini(**echoing("before_augmentation", 100))) == 100
    assert advise.buffer_examples(mini(**echoing("after_batching", 4))) == 4 * 32
    for insertion in ("before_augmentation", "after_batching"):  # auto stores eight batches
        config = mini(**echoing(insertion, 0, 1), echo__policy="auto")
        assert advise.buffer_examples(config) == 8 * 32


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--config"),
        (["--config=configs/cifar10.py:mini", "--seconds=0"], "--seconds is 0"),
        (["--config=configs/cifar10.py:mini", "--config.echo.factor=2"], "echo.factor"),
        (["--config=configs/cifar10.py:mini", "--second=1"], "--second"),
        (["--config=configs/cifar10.py:mini", "--config.dataset.fused_decode=true"], "fused"),
    ],
)
def test_wrong_input_is_one_sentence(arguments, named, capsys):
    assert named in refusal(advise.main, arguments, capsys)
