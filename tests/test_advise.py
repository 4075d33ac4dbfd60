"""The command advise.py: it measures the stages of the build, and reports."""

import copy
import dataclasses
import logging
import queue
import re
import sys

import numpy as np
import pytest

import advise
import echo
from echo.advice.cost_model import StageTime, Timing
from echo.advice.recommend import conclude
from pipeline import accounting, build
from runs import cli
from tests.helpers.runs import HANGS, SMALL_TEXT, echoing, flags, mini, placed
from training import check
from training.experiment import make_experiment


def test_the_command_prints_tables_a_recommendation_and_a_plot(tmp_path, capsys):
    plot = tmp_path / "advice.png"
    words = ["--config=configs/cifar10.py:mini", "--seconds=0.05", f"--plot={plot}"]
    assert cli.guarded(advise.main, [*words, *flags(mini())]) == 0
    printed = capsys.readouterr().out
    for name in ("read", "decode", "augment", "batch", "transfer", "step"):
        assert re.search(rf"^ *{name} .* (s|ms|µs|ns)", printed, re.MULTILINE)
    for place in ("before augmentation", "after augmentation", "after batching"):
        assert re.search(rf"^ *{place} +[\d.]+ ", printed, re.MULTILINE)
    recommendation = printed.rpartition("after batching")[2]  # depends on the machine
    assert re.search(r"echo|bottleneck", recommendation)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_command_warns_of_timings_that_vary_too_much(monkeypatch, capsys):
    steady = advice_where(mini(), "decode").measured
    step = dataclasses.replace(steady.step, low=1e-4, high=8e-3)
    timing = dataclasses.replace(steady, step=step)
    unstable = conclude(
        timing, advise.STAGE_BEFORE, dict.fromkeys(("decode", "augment", "batch"), 9)
    )
    monkeypatch.setattr(echo, "advise", lambda *_, **__: unstable)
    assert cli.guarded(advise.main, ["--config=configs/cifar10.py:mini"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Unstable timings, so the advice may be wrong: step took 100 µs to 8 ms" in printed


def test_the_command_displays_what_it_measures(monkeypatch, capsys):
    log, displayed, advice = (
        logging.getLogger("echo.advice"),
        queue.Queue(),
        advice_where(mini(), ""),
    )

    def measures(*_):
        log.info("measuring read")
        while displayed.get(timeout=HANGS) != "measuring read":
            pass
        return advice

    monkeypatch.setattr(advise.Progress, "update", lambda _, status: displayed.put(status))
    monkeypatch.setattr(advise, "advise", measures)
    assert cli.guarded(advise.main, ["--config=configs/cifar10.py:mini"]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == str(advice)
    assert printed.err == ""
    assert (log.level, log.propagate, log.handlers) == (logging.NOTSET, True, [])


@pytest.mark.long
def test_a_slow_upstream_is_recognized():
    config = mini(upstream__examples_per_second=20)  # 1.6 s per batch; a step takes milliseconds
    advice = advise.advise(config, seconds=0.1)
    assert advice.insertion in ("before_augmentation", "after_augmentation")  # load decides which
    assert advice.points[0].ratio > 2
    assert advice.points[0].item_bytes == 8 * 8 + 4


@pytest.mark.parametrize(
    "condition",
    [
        placed("after_augmentation", 100),
        placed("after_batching", 4),
        placed("after_augmentation", 100, factor=1) | {"echo__policy": "auto"},
    ],
)
def test_the_measured_step_augments_where_training_augments_before_it(condition, monkeypatch):
    config = mini(**condition)
    monkeypatch.setattr(advise, "measured", lambda given, opened, *_: (given, opened))
    given, opened = advise.advise(config)
    assert not make_experiment(config).program.task.augment_on_device
    assert opened.program.task.augment_on_device
    assert given == config  # whose buffer and insertion points are reported


def test_echo_settings_that_cannot_be_run_are_refused():
    with pytest.raises(cli.InputError, match=r"echo\.factor is 2"):
        advise.advise(mini(echo__factor=2))


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


BEFORE, AFTER = ["before_augmentation"], ["after_augmentation", "after_batching"]


@pytest.mark.parametrize(
    ("placement", "augment_on", "fused", "allowed"),
    [
        ("host", "host", False, BEFORE + AFTER),
        ("host", "host", True, AFTER),
        ("host", "device", False, BEFORE),
        ("device", "host", False, AFTER),
        ("device", "host", True, AFTER),
        ("device", "device", False, BEFORE + AFTER),
        ("device", "device", True, AFTER),
    ],
)
def test_insertion_points_are_those_that_training_allows(placement, augment_on, fused, allowed):
    config = mini(echo__placement=placement, augment_on=augment_on, dataset__fused_decode=fused)
    assert list(advise.allowed_insertions(config)) == allowed
    for name in advise.STAGE_BEFORE:
        config.echo.insertion = name
        try:
            check.check(config)
            assert name in allowed
        except check.ConfigError:
            assert name not in allowed


def advice_where(config, slow):
    """Advice for `config` with one slow stage."""
    names = ("read", "decode", "augment", "batch")
    costs = [StageTime(name, 8e-3 if name == slow else 1e-6, 0.0, 1e-6) for name in names]
    costs = [dataclasses.replace(cost, limit=cost.seconds) for cost in costs]
    step = StageTime("step", 2e-3, 0.0, 2e-3)
    timing = Timing(tuple(costs), (), step, config.batch_size, workers=1, cores=64)
    return conclude(timing, advise.allowed_insertions(config), dict.fromkeys(names, 100))


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


@pytest.mark.parametrize("slow", ["decode", "augment", "batch"])
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("fused", [False, True])
def test_the_printed_flags_make_a_valid_configuration(condition, slow, fused):
    if fused and condition["echo__insertion"] == "before_augmentation":
        pytest.skip("not a valid configuration")
    config = mini(**condition, dataset__fused_decode=fused)
    check.check(config)
    advice, had = advice_where(config, slow), advise.buffer_examples(config)
    recommended, *others = advise.settings(config, advice)
    assert advice.factor == 4
    for line in others:
        other = copy.deepcopy(config)
        cli.override(other, re.findall(r"--config[^\s,]+", line))
        check.check(other)
    cli.override(config, re.findall(r"--config\S+", recommended))
    check.check(config)
    assert config.echo.insertion == advice.insertion
    if config.echo.policy == "auto":
        assert config.echo.max_factor >= advice.factor
    else:
        assert config.echo.factor == advice.factor
    assert accounting.shuffle_buffer(config) > 0
    assert 0 <= had - advise.buffer_examples(config) < config.batch_size


def test_for_slow_augmentation_both_alternatives_are_offered():
    echoing, moved = advise.settings(mini(), advice_where(mini(), "augment"))
    assert echoing.endswith(
        "--config.echo.insertion=after_augmentation --config.echo.factor=4 "
        "--config.echo.shuffle_buffer=128"
    )
    assert moved.endswith(": --config.augment_on=device")


def test_whole_factors_of_flags_have_no_decimal_point():
    config = mini(**echoing("before_augmentation", 100))
    for factor, written in ((4.0, "4"), (1.5, "1.5"), (1.0, "1"), (100.0, "100")):
        assert advise._flags(config, {"echo.factor": factor}) == f"--config.echo.factor={written}"


def test_the_field_that_allows_echoing_earlier_is_named():
    config = mini(dataset__fused_decode=True)
    echoing, earlier = advise.settings(config, advice_where(config, "decode"))
    assert "after_augmentation" in echoing
    assert earlier.startswith("With --config.dataset.fused_decode=False, echoing before")


def test_without_a_recommendation_there_are_no_flags():
    assert advise.settings(mini(), advice_where(mini(), None)) == []


def test_a_configuration_that_may_echo_nowhere_is_wrong_input():
    with pytest.raises(cli.InputError, match="where nothing may be echoed"):
        advise.allowed_insertions(mini(dataset__fused_decode=True, augment_on="device"))


def test_memory_is_that_of_the_configured_buffer():
    assert advise.buffer_examples(mini()) == 4 * 32  # of the recommended one
    assert advise.buffer_examples(mini(**echoing("before_augmentation", 100))) == 100
    assert advise.buffer_examples(mini(**echoing("after_batching", 4))) == 4 * 32
    for insertion in ("before_augmentation", "after_batching"):  # auto stores eight batches
        config = mini(**echoing(insertion, 0, 1), echo__policy="auto")
        assert advise.buffer_examples(config) == 8 * 32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: --config"),
        (["--config=configs/cifar10.py:mini", "--seconds=0"], "--seconds is 0; allowed"),
        (["--config=configs/cifar10.py:mini", "--seconds=1e308"], "--seconds is 1e+308; allowed"),
        (
            ["--config=configs/cifar10.py:mini", "--plot=no/a.png"],
            "in a directory that does not exist",
        ),
        (["--config=configs/cifar10.py:mini", "--plot=a.doc"], "allowed: a file that ends in"),
        (["--config=configs/cifar10.py:mini", "--config.batch_size=0"], "batch_size is 0; allowed"),
        (["--config=configs/cifar10.py:mini", "--polt=x"], "did you mean --plot?"),
    ],
)
def test_wrong_input_is_one_sentence(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(advise, "advise", None)  # nothing is measured
    assert cli.guarded(advise.main, arguments) == cli.WRONG_INPUT
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
@pytest.mark.parametrize("flag", ["--plot=/proc/a.png"])
def test_a_directory_in_which_nothing_can_be_written_is_refused_at_once(flag, capsys, monkeypatch):
    monkeypatch.setattr(advise, "advise", None)  # nothing is measured
    assert cli.guarded(advise.main, ["--config=configs/cifar10.py:mini", flag]) == cli.WRONG_INPUT
    assert re.search(r"/proc/a.* \(No such file or dir.* writ", capsys.readouterr().err)


def test_a_plot_that_cannot_be_written_is_refused_and_one_that_can_is_not_touched(tmp_path):
    config, plot, folder = "--config=configs/cifar10.py", tmp_path / "a.png", tmp_path / "b.png"
    folder.mkdir()
    with pytest.raises(cli.InputError, match=r"b\.png \(Is a directory\); give a file"):
        advise.parse([config, f"--plot={folder}"])
    advise.parse([config, f"--plot={plot}"])
    assert list(tmp_path.iterdir()) == [folder]
    plot.write_bytes(b"earlier")
    advise.parse([config, f"--plot={plot}"])
    assert plot.read_bytes() == b"earlier"


def test_what_is_written_for_text_is_named(tmp_path, monkeypatch, capsys):
    pages, advice = tmp_path / "pages", advice_where(mini(), "")
    pages.mkdir()
    for name in ("train", "validation"):
        (pages / f"{name}.txt").write_text("one line of text\nanother line\n" * 40)
    monkeypatch.setattr(advise, "measured", lambda *_: advice)
    fields = {name: value for name, value in SMALL_TEXT.items() if name != "target.value"}
    fields |= {"dataset.name": f"files:{pages}", "dataset.vocabulary_size": 16}
    words = [f"--config.{name}={value}" for name, value in fields.items()]
    assert cli.guarded(advise.main, ["--config=configs/lm1b.py:mini", *words]) == cli.OK
    assert list((pages / "text").glob("*"))
    with pytest.raises(SystemExit):
        advise.parse(["--help"])
    for text in (capsys.readouterr().out, (cli.ROOT / "docs" / "advice.md").read_text()):
        assert "nothing but the plot" not in " ".join(text.split())
        assert "dataset.cache_dir" in text
