"""Studies: the points of a search, the trials that count, and resuming a stopped study."""

import dataclasses
import json
import math
import multiprocessing
import os
import pathlib
import shutil
import signal
import threading

import numpy as np
import pytest
from scipy.stats import qmc

import sweep
import train
from analysis import load
from analysis.__main__ import main as analyze
from configs import cifar10, coco, common_crawl, imagenet, lm1b, vit
from runs import cli, environment, records
from runs.study import MAX_TRIALS_FACTOR, Axis, condition_label
from studies.definitions import load_study
from studies.directory import open_study
from studies.search import _labeled, check_values, point, trial_config
from tests.helpers import path_data
from tests.helpers.runs import HANGS, on_each_step
from tests.helpers.small_studies import QUIET, RecordedProgress, study
from training.experiment import make_experiment

SPACE = study().space


def test_points_are_scrambled_halton_points_for_any_number_of_trials():
    expected = qmc.Halton(d=len(SPACE), scramble=True, rng=3).random(20)
    for trial in (19, 0, 7):
        values = point(SPACE, search=3, trial=trial)
        positions = [axis.position(values[axis.field]) for axis in SPACE]
        np.testing.assert_allclose(positions, expected[trial], atol=1e-12)
    assert point(SPACE, 0, 0) != point(SPACE, 1, 0)


@pytest.mark.parametrize(
    ("axis", "ends"),
    [
        ({"scale": "linear", "min": 2.0, "max": 4.0}, (2.0, 4.0)),
        ({"scale": "log", "min": 0.01, "max": 1.0}, (0.01, 1.0)),
        ({"scale": "log_one_minus", "min": 0.01, "max": 0.1}, (0.99, 0.9)),
    ],
)
def test_scales_run_from_end_to_end(axis, ends):
    axis = Axis.from_record({"field": "f"} | axis)
    assert [axis.value_at(0.0), axis.value_at(1.0)] == pytest.approx(ends)
    assert axis.extremes() == pytest.approx(ends)


@pytest.mark.parametrize("budget", [12_000, 48_000])
def test_horizon_axis_follows_the_budget_and_gives_whole_numbers(budget):
    flag, flags = "configs/cifar10.py:mini", [f"--config.budget.fresh_examples={budget}"]
    loaded = load_study(cifar10.get_config("mini"), cifar10, flag, "factor", overrides=flags)
    (axis,) = [axis for axis in loaded.space if "horizon" in axis.field]
    assert axis.to_record() == {
        "field": "optimizer.schedule.horizon_fresh_examples",
        "scale": "log",
        "min": budget / 32,
        "max": 2 * budget,
    }
    drawn = [point(loaded.space, 0, trial)[axis.field] for trial in range(64)]
    places = qmc.Halton(d=len(loaded.space), scramble=True, rng=0).random(64)
    exact = [axis.value_at(place) for place in places[:, loaded.space.index(axis)]]
    np.testing.assert_allclose(drawn, exact, rtol=0, atol=0.5)
    assert all(type(value) is int for value in drawn)
    assert min(drawn) < budget / 24
    assert max(drawn) > 1.5 * budget


def test_horizon_is_searched_exactly_where_the_schedule_decays():
    for module in (cifar10, imagenet, coco, lm1b, common_crawl, vit):
        for variant in ("", "mini"):
            for name, each in module.get_studies(variant).items():
                axes = each.get("space") or module.get_search_space(variant)
                schedule = each["overrides"].get(
                    "optimizer.schedule.name", module.get_config(variant).optimizer.schedule.name
                )
                fields = {axis["field"] for axis in axes} - set(each.get("not_searched", ()))
                searched = "optimizer.schedule.horizon_fresh_examples" in fields
                fixed = ("controls", *(["demo"] if module is cifar10 and variant else []))
                assert searched == (schedule != "constant" and name not in fixed), (module, name)


def test_every_condition_is_evaluated_equally_often_per_step():
    copies = set()
    for name in ("factor", "controls"):
        loaded = load_study(cifar10.get_config("mini"), cifar10, "configs/cifar10.py:mini", name)
        every = loaded.config.evaluate_every_fresh_examples
        for condition in loaded.conditions:
            config = trial_config(loaded, condition, 0, 0)
            factors = (config.echo.factor, config.dataset.spaced_epochs)
            copies.add(factors)
            assert config.evaluate_every_fresh_examples == round(every / math.prod(factors))
    assert copies >= {(1, 1), (16, 1), (1, 2)}
    own = dataclasses.replace(condition, overrides={"evaluate_every_fresh_examples": 7})
    assert trial_config(loaded, own, 0, 0).evaluate_every_fresh_examples == 7


def test_best_values_are_those_of_equally_many_evaluations():
    loaded = load_study(cifar10.get_config("mini"), cifar10, "configs/cifar10.py:mini", "quality")
    every = loaded.config.evaluate_every_fresh_examples
    found = {
        config.echo.factor: config.evaluate_every_fresh_examples
        for config in (trial_config(loaded, each, 0, 0) for each in loaded.conditions)
    }
    assert found == {1: every, 2: every, 4: every}


def test_choices_are_equally_frequent():
    axis = Axis("optimizer.momentum", "choice", values=(0.0, 0.1, 0.2))
    drawn = [axis.value_at(position) for position in np.linspace(0, 0.999, 300)]
    assert [drawn.count(value) for value in axis.values] == [100, 100, 100]


@pytest.mark.slow
def test_study_has_the_documented_layout_and_can_be_analyzed(tmp_path, capsys):
    plan = study(trials=2, searches=2, target__value=0.05)
    assert sweep.run(plan, tmp_path / "study", QUIET) == "finished"
    found = [
        (t.condition, t.search, t.trial) for t, _ in records.trials_on_disk(tmp_path / "study")
    ]
    names = ("baseline", "before_augmentation_e2")
    assert found == [(c, s, t) for c in names for s in (0, 1) for t in (0, 1)]
    for place, workdir in records.trials_on_disk(tmp_path / "study"):
        hparams = records.read_json(workdir / records.HPARAMS)
        assert hparams["hparams"] == point(SPACE, place.search, place.trial)
        config = records.read_json(workdir / records.CONFIG)["config"]
        assert config["seed"] == {
            "data": place.search,
            "model": 10_000 * place.search + place.trial,
        }
        assert config["optimizer"]["momentum"] == hparams["hparams"]["optimizer.momentum"]
    assert analyze([str(tmp_path / "study")]) == 0
    assert "no echoing" in capsys.readouterr().out
    assert (tmp_path / "study" / "report" / "report.md").exists()


def test_finished_trials_are_kept_and_a_study_can_grow(tmp_path):
    outdir = tmp_path / "study"
    sweep.run(study(trials=1), outdir, QUIET)
    first = outdir / "baseline" / "0" / "0"
    before = {p: p.read_bytes() for p in first.rglob("*") if p.is_file()}
    sweep.run(study(trials=2), outdir, QUIET)
    assert {p: p.read_bytes() for p in first.rglob("*") if p.is_file()} == before
    assert (outdir / "baseline" / "0" / "1" / records.RESULT).exists()


def test_a_study_never_shrinks(tmp_path):
    """Its results would change: the analysis counts as many trials and searches as study.json
    says."""
    said = [
        open_study(study(trials=trials, searches=searches), tmp_path)
        for trials, searches in ((2, 3), (2, 2), (1, 3), (4, 1))
    ]
    keeps = f"the study in {tmp_path} keeps its "
    assert said == [
        "",
        f"{keeps}3 searches per condition, of which this launch runs 2",
        f"{keeps}2 trials per search, of which this launch runs 1",
        f"{keeps}3 searches per condition, of which this launch runs 1",
    ]
    plan = records.read_json(tmp_path / records.STUDY)
    sizes = {"trials": 4, "max_trials": 4 * MAX_TRIALS_FACTOR, "searches": 3}
    assert sizes.items() <= plan.items()


def test_a_study_does_not_shrink_when_two_launches_extend_it_at_once(tmp_path, monkeypatch):
    open_study(study(trials=2), tmp_path)
    larger = threading.Thread(target=open_study, args=(study(trials=8, searches=2), tmp_path))

    def described():  # by the first launch, when it has read study.json and is about to write
        monkeypatch.undo()
        larger.start()
        larger.join(0.5)  # it has written, or waits
        return environment.describe()

    monkeypatch.setattr(environment, "describe", described)
    open_study(study(trials=4), tmp_path)
    larger.join()
    plan = records.read_json(tmp_path / records.STUDY)
    assert [plan["trials"], plan["max_trials"], plan["searches"]] == [8, 8 * MAX_TRIALS_FACTOR, 2]


def test_a_launch_of_fewer_trials_says_so_and_leaves_the_study_as_it_is(finished_study, tmp_path):
    directory, notes = shutil.copytree(finished_study, tmp_path / "study"), RecordedProgress()
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert sweep.run(study(trials=1, conditions=("baseline",)), directory, notes) == "finished"
    assert {path: path.read_bytes() for path in before} == before
    (line,) = notes.lines
    assert line.endswith("keeps its 2 trials per search, of which this launch runs 1")


def _with_config(workdir, change):
    record = records.read_json(workdir / records.CONFIG)
    change(record)
    records.write_json(workdir / records.CONFIG, record)


def _of_another_plan(record):
    record["config"]["loss"]["label_smoothing"] = 0.1


def _of_other_data(record):
    record["dataset"]["fingerprint"] = "other"


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_of_another_plan, "loss.label_smoothing"),
        (_of_other_data, "config.json is of other data (fingerprint 'other', and the study's is"),
    ],
)
def test_a_trial_that_is_not_of_its_study_is_named_and_starts_over(
    change, says, finished, finished_study, tmp_path
):
    """As when directories of machines are merged whose commands or data differed."""
    directory, notes = shutil.copytree(finished_study, tmp_path / "study"), RecordedProgress()
    first = directory / "baseline" / "0" / "0"
    before = _values(first)
    _with_config(first, change)
    if not finished:
        (first / records.RESULT).unlink()
    reasons = [reason for _, reason in load.read(directory).set_aside]
    assert says in reasons[0]
    assert len(reasons) == 1
    assert sweep.run(study(conditions=("baseline",)), directory, notes) == "finished"
    named = "baseline, search 0, trial 0: its records were damaged (config.json"
    (line,) = [line for line in notes.lines if line.startswith(named)]
    assert says in line
    assert not load.read(directory).set_aside
    assert _values(first) == before


def test_a_study_resumes_though_the_notes_on_its_data_differ(finished_study, tmp_path):
    directory = shutil.copytree(finished_study, tmp_path / "study")
    plan = records.read_json(directory / records.STUDY)
    plan["dataset"]["notes"] = ["something else"]  # than this version says of the same data
    records.write_json(directory / records.STUDY, plan)
    assert sweep.run(study(conditions=("baseline",)), directory, QUIET) == "finished"


def test_diverged_trials_are_replaced_up_to_the_limit(tmp_path, monkeypatch):
    started = []

    def ends_as(statuses):
        def fake(config, workdir, progress, locked, tools):
            started.append(workdir)
            clocks = ("train_seconds", "wall_seconds", "input_wait_fraction", "seconds_to_target")
            counts = ("step", "fresh_examples", "steps_to_target", "fresh_examples_to_target")
            result = {
                "status": statuses[len(started) - 1],
                "target": {"metric": "accuracy", "value": 0.5, "mode": "above"},
                "best": {"metric": "accuracy", "value": 0.5, "fresh_examples": 10},
                **dict.fromkeys((*clocks, *counts), 10),
            }
            records.write_json(workdir / records.RESULT, result)
            return result

        return fake

    plan = study(trials=2, conditions=("baseline",))
    statuses = ["diverged", "exhausted", "failed", "reached"]
    monkeypatch.setattr(train, "train", ends_as(statuses))
    sweep.run(plan, tmp_path / "one", QUIET)
    assert len(started) == 4

    started.clear()
    monkeypatch.setattr(train, "train", ends_as(["diverged"] * 9))
    sweep.run(plan, tmp_path / "two", QUIET)
    assert len(started) == MAX_TRIALS_FACTOR * 2


def test_failed_trial_is_recorded_and_the_study_continues(tmp_path):
    steps = []

    def fails_once(step):
        steps.append(step)
        if len(steps) == 5:
            raise OSError("a cable was pulled")

    outdir = tmp_path / "study"
    with on_each_step(fails_once):
        assert sweep.run(study(), outdir, QUIET) == "finished"
    results = [records.read_json(d / records.RESULT) for _, d in records.trials_on_disk(outdir)]
    failed = [result for result in results if result["status"] == "failed"]
    assert len(failed) == 1
    assert "a cable was pulled" in failed[0]["error"]
    assert sum(result["status"] == "exhausted" for result in results) == 4


@pytest.mark.slow
def test_stopped_study_resumes_in_the_middle_of_the_trial(tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    sweep.run(study(), whole, QUIET)
    steps = []

    def stops(step):
        steps.append(step)
        if len(steps) == 14:  # a baseline's trial has 10 steps
            os.kill(os.getpid(), signal.SIGTERM)

    with on_each_step(stops):
        assert sweep.run(study(), stopped, QUIET) == "preempted"
    half_done = stopped / "baseline" / "0" / "1"
    assert records.read_json(half_done / records.RESULT)["status"] == "preempted"
    assert sweep.run(study(), stopped, QUIET) == "finished"
    for place, workdir in records.trials_on_disk(whole):
        assert _values(place.under(stopped)) == _values(workdir)


def _values(workdir):
    return [(r["step"], r["fresh_examples"], r["loss"]) for r in records.read_metrics(workdir)]


def test_one_compilation_serves_all_trials_and_conditions():
    plan = study()
    programs = {
        id(make_experiment(trial_config(plan, condition, 0, trial)).program)
        for condition in plan.conditions
        for trial in range(3)
    }
    assert len(programs) == 1


@pytest.mark.parametrize(
    ("field", "scale", "low", "high", "says"),
    [
        ("optimizer.learning_rate", "linear", -1.0, 1.0, "learning_rate is -1"),
        ("optimizer.learning_rat", "log", 0.1, 1.0, "did you mean"),
        ("echo.factor", "linear", 1.0, 4.0, "leave it out of one"),
        ("echo.max_factor", "linear", 1.0, 4.0, "searches echo.max_factor, by which its cond"),
    ],
)
def test_wrong_search_space_is_one_sentence_and_writes_nothing(
    field, scale, low, high, says, tmp_path
):
    axis = Axis(field, scale, low, high)
    with pytest.raises(cli.InputError, match=says):
        sweep.run(dataclasses.replace(study(), space=(axis,)), tmp_path / "study", QUIET)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"dataset__name": "folder:/nope"}, "there is no file or directory /nope"),
        ({"batch_size": 30, "echo__streams": 4}, "does not divide"),
    ],
)
def test_what_is_wrong_without_an_axis_is_not_blamed_on_it(fields, says, tmp_path):
    axis = Axis("augmentation.pad", "linear", 0, 2)
    with pytest.raises(cli.InputError, match=says) as refused:
        sweep.run(dataclasses.replace(study(**fields), space=(axis,)), tmp_path / "s", QUIET)
    assert "augmentation.pad" not in str(refused.value)
    assert not (tmp_path / "s").exists()


def test_what_an_axis_may_set_is_blamed_on_it(tmp_path):
    axis = Axis("batch_size", "choice", values=(31, 32))
    plan = dataclasses.replace(study(echo__streams=4), space=(axis,))
    with pytest.raises(cli.InputError, match=r"the search may set batch_size to 31: .* divide"):
        sweep.run(plan, tmp_path / "study", QUIET)
    plan = dataclasses.replace(study(batch_size=31, echo__streams=4), space=(axis,))
    with pytest.raises(cli.InputError, match="the search may set batch_size to 31: "):
        sweep.run(plan, tmp_path / "study", QUIET)


def test_a_whole_number_that_a_rule_refuses_is_found_before_the_first_trial(tmp_path):
    axis = Axis("batch_size", "log", 16, 50)
    plan = dataclasses.replace(study(trials=4, echo__streams=2), space=(axis,))
    sizes = [point(plan.space, 0, trial)["batch_size"] for trial in range(4)]
    odd = next(trial for trial, size in enumerate(sizes) if size % 2)
    assert odd > 0, "else the first trial alone would find it"
    says = rf"search 0, trial {odd} \(batch_size = {sizes[odd]}\): .* does not divide"
    with pytest.raises(cli.InputError, match=says):
        sweep.run(plan, tmp_path / "study", QUIET)
    assert not (tmp_path / "study").exists()


def test_labels_name_the_buffer_that_a_condition_inherits():
    config = cifar10.get_config("mini")
    config.echo.shuffle_buffer = 256
    echoed = {"echo.insertion": "before_augmentation", "echo.factor": 2}
    none = echoed | {"echo.shuffle_buffer": 0}
    conditions = _labeled({"inherits": echoed, "none": none}, config)
    assert [condition.label for condition in conditions] == [
        "before augmentation, e = 2, buffer 256",
        "before augmentation, e = 2, buffer 0",
    ]


def test_directory_of_another_plan_is_refused(tmp_path):
    sweep.run(study(trials=1, conditions=("baseline",)), tmp_path / "study", QUIET)
    with pytest.raises(cli.InputError, match="another plan, which differs in conditions; give"):
        sweep.run(study(trials=1), tmp_path / "study", QUIET)
    smaller = study(trials=1, conditions=("baseline",), batch_size=16)
    with pytest.raises(cli.InputError, match=r"in config.batch_size \(32 there, 16 here\); give"):
        sweep.run(smaller, tmp_path / "study", QUIET)
    other = study(trials=1, conditions=("baseline",), target__value=0.9)
    other.config.budget.fresh_examples = 100
    other = dataclasses.replace(other, budget=100)  # study.json has budget and target twice
    with pytest.raises(cli.InputError) as error:
        sweep.run(other, tmp_path / "study", QUIET)
    assert str(error.value).count("target.value") == 1
    assert str(error.value).count(" there, 100 here") == 1


def test_a_launch_may_find_the_data_elsewhere_and_record_more(tmp_path):
    one = {"trials": 1, "conditions": ("baseline",)}
    sweep.run(study(**one), tmp_path / "study", QUIET)
    first = records.read_json(tmp_path / "study" / records.STUDY)
    moved = study(**one | {"trials": 2})
    moved.config.dataset.data_dir, moved.config.gradient_statistics_every_steps = "/elsewhere", 2
    assert sweep.run(moved, tmp_path / "study", QUIET) == "finished"
    last = records.read_json(tmp_path / "study" / records.STUDY)
    assert last["trials"] == 2
    assert last["resolved_config"] == first["resolved_config"]
    metrics = records.read_metrics(tmp_path / "study" / "baseline" / "0" / "1")
    assert any(record["split"] == records.GRADIENTS for record in metrics)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--study=dmo"], "--study is 'dmo'; allowed with configs/cifar10.py:mini: demo"),
        (["--study=demo", "--trials=-1"], "'-1' is not allowed; give 1, 2, 3"),
        (["--study=demo", "--config.dataset.name=none"], "is not prepared in"),
        (
            ["--study=demo", "--config.echo.factor=4"],
            "--config.echo.factor has no effect on study 'demo', which sets it in every condition",
        ),
        (
            ["--study=demo", "--config.optimizer.learning_rate=1"],
            "no effect on study 'demo', which searches it; leave it out",
        ),
        (
            ["--study=controls", "--config.budget.fresh_examples=6000"],
            "since baseline_steps_of_e2, before_augmentation_e2_steps_of_baseline set their own;",
        ),
    ],
)
def test_wrong_input_to_the_command(words, says, tmp_path, capsys):
    words = ["--config=configs/cifar10.py:mini", f"--outdir={tmp_path / 'study'}", *words]
    assert cli.guarded(sweep.main, words) == cli.WRONG_INPUT
    assert says in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


def test_a_damaged_test_split_is_found_before_the_first_trial(tmp_path, capsys):
    images = path_data.pixels(range(20))
    labels = np.arange(20) % 2
    arrays = {"train_x": images, "train_y": labels, "test_x": images[:, :6], "test_y": labels}
    own = path_data.write_npz(tmp_path / "own.npz", **arrays)
    data = [f"--config.dataset.name=npz:{own}", "--config.dataset.test_split=test"]
    splits = [f"--config.dataset.{s}_split=train" for s in ("train", "validation")]
    words = ["--config=configs/cifar10.py:mini", "--study=demo", "--dry-run", *data, *splits]
    assert cli.guarded(sweep.main, [*words, "--config.model.depth=0"]) == cli.WRONG_INPUT
    error = capsys.readouterr().err
    assert error.startswith("error: config.dataset.test_split is 'test' (allowed: '', for none): ")
    assert "cannot be decoded: an image of (6, 8, 1); those of the data set have (8, 8, 1)" in error


def test_labels_of_conditions():
    conditions = cifar10.get_studies("mini")["demo"]["conditions"]
    assert [condition_label(overrides) for overrides in conditions.values()] == [
        "no echoing",
        "before augmentation, e = 2",
        "after augmentation, e = 2",
        "batch echoing, e = 2",
        "before augmentation, e = 4",
    ]
    controls = cifar10.get_studies("mini")["controls"]["conditions"]
    assert [condition_label(overrides) for overrides in controls.values()][2:] == [
        "no echoing, 2 copies an epoch apart",
        "no echoing, budget 24,000",
        "before augmentation, e = 2, budget 6,000",
        "no echoing, decay over 6,000",
    ]
    assert condition_label({"batch_size": 64}) == "no echoing, batch 64"
    auto = {"echo.policy": "auto", "echo.insertion": "after_augmentation", "echo.max_factor": 0}
    label = "after augmentation, e ≤ 8"
    assert condition_label(auto, {"batch_size": 32}) == label
    assert condition_label(auto, {"batch_size": 64}) != label
    assert condition_label({}, {"echo": {"insertion": "after_batching", "factor": 3}}) == (
        "batch echoing, e = 3"
    )
    assert condition_label({"optimizer.momentum": 0.5}) == "no echoing, momentum = 0.5"
    assert condition_label({"evaluate_every_fresh_examples": 187}) == (
        "no echoing, evaluated every 187"
    )


def test_study_of_version_1_is_left_unchanged_and_never_continued(tmp_path):
    plan = study(trials=1, conditions=("baseline",))
    assert sweep.run(plan, tmp_path / "study", QUIET) == "finished"
    path = tmp_path / "study" / records.STUDY
    record = records.read_json(path) | {"schema_version": 1, "commit": "abc1234"}
    record["resolved_config"]["of_version_1"] = 1
    records.write_json(path, record)

    def files():
        return {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    before = files()
    assert sweep.run(plan, tmp_path / "study", QUIET) == "finished"
    says = (
        r"contains a study of schema version 1, which code of version \d .* abc1234, or .*--outdir"
    )
    grown = dataclasses.replace(plan, trials=2, searches=2)
    for other in (grown, study(trials=1, conditions=("baseline",), batch_size=64)):
        with pytest.raises(cli.InputError, match=says):
            sweep.run(other, tmp_path / "study", QUIET)
    assert files() == before


def _opens(outdir, barrier, trials):
    """A first launch in its own container, where every launch has the same process id."""
    real = os.getpid
    launched = study(trials=trials)
    for number in range(len(os.listdir(outdir))):
        barrier.wait(HANGS)
        os.getpid = lambda: 1
        try:
            open_study(launched, pathlib.Path(outdir, str(number), "study"))
        finally:
            os.getpid = real


@pytest.mark.long
@pytest.mark.multiprocess
def test_concurrent_first_launches_create_one_study(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sweep", "pytest", "hypothesis", "analysis.__main__"])
    for number in range(4):
        (tmp_path / str(number)).mkdir()
    barrier = context.Barrier(8)
    launches = [
        context.Process(target=_opens, args=(str(tmp_path), barrier, 1 + number % 2))
        for number in range(8)
    ]
    for launch in launches:
        launch.start()
    for launch in launches:
        launch.join(HANGS)
    assert [launch.exitcode for launch in launches] == [0] * 8
    for directory in tmp_path.iterdir():
        left = {path.name for path in (directory / "study").iterdir()}
        assert left - {".lock"} == {records.STUDY}  # the lock of launches of 2 trials
        assert records.read_json(directory / "study" / records.STUDY)["trials"] == 2


def _replaced(path, content):
    path.unlink()
    path.mkdir() if content is None else path.write_bytes(content)


@pytest.fixture(scope="module")
def finished_study(tmp_path_factory):
    """A study of two trials."""
    directory = tmp_path_factory.mktemp("finished") / "study"
    assert sweep.run(study(conditions=("baseline",)), directory, QUIET) == "finished"
    return directory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", b""),
        ("result.json", b'{"status": "exhausted", "best": {}, "step": 1e30}'),
        ("result.json", None),
        ("config.json", b"[" * 100_000),
        ("config.json", b'{"config": 3}'),
        ("hparams.json", b"\xff"),
        ("metrics.jsonl", b""),
        ("metrics.jsonl", b"\0" * 64 + b"\n"),
    ],
)
def test_damaged_trial_is_set_aside_and_trained_again(finished_study, tmp_path, name, content):
    directory = tmp_path / "study"
    shutil.copytree(finished_study, directory)
    trial, other = directory / "baseline" / "0" / "0", directory / "baseline" / "0" / "1"
    _replaced(trial / name, content)
    untouched = {path: path.read_bytes() for path in other.rglob("*") if path.is_file()}
    notes = RecordedProgress()
    assert sweep.run(study(conditions=("baseline",)), directory, notes) == "finished"
    (said,) = [line for line in notes.lines if "damaged" in line]
    assert f"baseline, search 0, trial 0: its records were damaged ({name}" in said
    assert "\n" not in said
    assert (trial / records.DAMAGED / "run_1" / name).exists()
    assert _values(trial) == _values(finished_study / "baseline" / "0" / "0")
    assert {p: p.read_bytes() for p in other.rglob("*") if p.is_file()} == untouched
    assert len(load.read(directory).trials) == 2
    notes = RecordedProgress()
    sweep.run(study(conditions=("baseline",)), directory, notes)
    assert not any("damaged" in line for line in notes.lines)


def test_interrupted_trial_with_damaged_records_starts_over(finished_study, tmp_path):
    directory = tmp_path / "study"
    for number, damage in enumerate(
        (
            lambda trial: (trial / "config.json").unlink(),
            lambda trial: _changed(trial / "config.json", "batch_size", 64),
            lambda trial: _replaced(trial / "config.json", b"{}"),
            lambda trial: (shutil.rmtree(trial), trial.write_text("a file")),
        )
    ):
        copy = directory / str(number)
        shutil.copytree(finished_study, copy)
        trial = copy / "baseline" / "0" / "1"
        (trial / "result.json").unlink()
        damage(trial)
        notes = RecordedProgress()
        assert sweep.run(study(conditions=("baseline",)), copy, notes) == "finished"
        (said,) = [line for line in notes.lines if "damaged" in line]
        assert said.startswith("baseline, search 0, trial 1: ")
        assert _values(trial) == _values(finished_study / "baseline" / "0" / "1")


def _changed(path, field, value):
    record = json.loads(path.read_text())
    record["config"][field] = value
    path.write_text(json.dumps(record))


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b"[" * 100_000, b"\xff", None])
def test_damaged_study_is_one_sentence(finished_study, tmp_path, content):
    directory = tmp_path / "study"
    shutil.copytree(finished_study, directory)
    _replaced(directory / records.STUDY, content)
    with pytest.raises(cli.InputError, match=r"damaged \(study.json.*give another --outdir"):
        sweep.run(study(conditions=("baseline",)), directory, QUIET)


_FILE = """from configs import catalog, cifar10
def get_config():
    return cifar10.get_config("mini")
def get_search_space(variant):
    return [{axis}]
def get_studies(variant):
    return {{"mine": {{
        "conditions": {{"baseline": catalog.echo("none", 1, 0), {more}}},
        "baseline": "baseline", "trials": 1, "searches": 1, {plan}}}}}
"""
_RATE = "{'field': 'optimizer.learning_rate', 'scale': 'log', 'min': 0.01, 'max': 1.0}"


def _axis(**changes):
    axis = {"field": "optimizer.learning_rate", "scale": "linear", "min": 0.01, "max": 1.0}
    return {"axis": repr({k: v for k, v in (axis | changes).items() if v is not None})}


def _condition(name, overrides="{}"):
    return {"more": f"{name!r}: {overrides}"}


def _wrong_studies():
    yield from (
        (_axis(min=-0.5), "config.optimizer.learning_rate is -0.5"),
        (_axis(field="optimizer.momentum", max=1.5), "config.optimizer.momentum is 1.5"),
        (_axis(field="batch_size", min=0, max=32), "config.batch_size is 0"),
        (_axis(field="optimizer.lerning_rate"), "did you mean optimizer.learning_rate"),
        (_axis(field="seed.data", min=0, max=9), "seed.data is varied"),
        (_axis(field="target.value"), "one target judges all trials"),
        (_axis(field="optimizer.name"), "allowed: the scale choice"),
        (_axis(field=None), "has field None"),
        (_axis(scale=None), "has scale None"),
        (_axis(scale=["log"]), "has scale"),
        (_axis(min="0.1"), "min is '0.1'"),
        (_axis(min=True), "min is True"),
        (_axis(max=10**400), "allowed: a finite number"),
        (_axis(times=[1]), "times is [1]"),
        (_axis(times="optimizer.schedule.horizon_fresh_examples"), "which is 0; allowed: a field"),
        (_axis(scale="log", min=0.0), "above 0"),
        (_axis(min=2.0), "min <= max"),
        (_axis(scale="lgo"), "linear, log"),
        (_axis(scale="choice", values=[0.1, -1]), "config.optimizer.learning_rate is -1"),
        (_axis(scale="choice", values="abc"), "values is 'abc'"),
        (_axis(field="model.depth", scale="choice", values=[8, 9]), "config.model.depth is 9"),
        ({"axis": _axis(min=float("nan"))["axis"].replace("nan", "float('nan')")}, "min is nan"),
        ({"axis": f"{_RATE}, {_RATE}"}, "on 2 axes"),
        ({"axis": "'lr'"}, "allowed: a dict"),
    )
    for name in ("../evil", "a/b", "", ".", "a\x1b[2J", "a\n", "a" * 300, "study.json", 3):
        yield _condition(name), "a condition is named"
    yield from (
        (_condition("x", "[]"), "allowed: a dict of values by field"),
        (_condition("x", "{'seed.model': 3}"), "seed.model is varied"),
        (_condition("x", "{'target.metric': 'loss'}"), "one target judges all trials"),
        (_condition("Baseline"), "'baseline' and 'Baseline' differ only in case"),
        (_condition("x", "{'echo.factr': 3}"), "did you mean echo.factor"),
        (_condition("x", "{'batch_size': float('inf')}"), "batch_size to inf"),
        (
            _condition("x", "{'budget.fresh_examples': '24'}"),
            "to '24'; allowed: a number, not text",
        ),
        (_condition("x", "{'echo.factor': 0}"), "config.echo.factor is 0"),
        (_condition("x", "{'echo.insertion': 'before'}"), "config.echo.insertion is 'before'"),
        ({"plan": "'trials': 0"}, "trials 0; allowed: a whole number from 1"),
        ({"plan": "'trials': -3"}, "trials -3"),
        ({"plan": "'trials': 10**9"}, "trials 1000000000"),
        ({"plan": "'searches': True"}, "searches is True"),
        ({"plan": "'conditions': ['baseline']"}, "allowed: a dict"),
        ({"plan": "'space': 5"}, "space is 5"),
        ({"plan": "'overrides': [1]"}, "overrides is [1]"),
        ({"plan": "'overrides': {'optimizer.learning_rate': 1}"}, "which its search space varies"),
        ({"plan": "'not_searched': ['optimizer.lerning_rate']"}, "did you mean optimizer.learning"),
        ({"plan": "'not_searched': [3]"}, "not_searched contains 3; allowed: names of fields"),
        ({"plan": "'overides': {}"}, "is not a key of a study"),
        ({"plan": "'score': 'speed'"}, "score is 'speed'"),
        ({"plan": "'baseline': 'other'"}, "allowed: one of its conditions, baseline"),
        (
            {"more": "'e2': {'echo.insertion': 'before_augmentation'}", "plan": "'baseline': 'e2'"},
            "give 'baseline'",
        ),
        ({"plan": "'overrides': {'dataset.test_split': 'tset'}"}, "has no split 'tset'"),
        ({"plan": "}, 3: {"}, "names a study 3; allowed: text"),
        ({"plan": "}, 'list': {"}, "names a study 'list'"),
        ({"plan": "**{}['key']"}, "line 9: KeyError: 'key'"),
        ({"axis": "1 / 0"}, "line 5: ZeroDivisionError: division by zero"),
    )


@pytest.mark.parametrize(("wrong", "says"), list(_wrong_studies()))
def test_wrong_study_is_one_sentence_and_writes_nothing(wrong, says, tmp_path, capsys):
    parts = {"axis": _RATE, "more": "", "plan": ""} | wrong
    (tmp_path / "mine.py").write_text(_FILE.format(**parts))
    words = [f"--config={tmp_path / 'mine.py'}", "--study=mine", f"--outdir={tmp_path / 'a' / 'b'}"]
    assert cli.guarded(sweep.main, words) == cli.WRONG_INPUT
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"mine.py", "__pycache__"}


def test_ends_of_an_axis_are_checked_with_a_point_of_the_other_axes():
    """The full-size study searches the final factor and the horizon. The default final factor of 0
    is not allowed with a short horizon, but the two are never combined."""
    flag = "configs/cifar10.py"
    check_values(load_study(cifar10.get_config(), cifar10, flag, "demo"))


@pytest.mark.parametrize("words", ["--trials=0", "--searches=0", "--trials=²", "--trials=6000"])
def test_numbers_of_trials_and_searches_are_checked(words, tmp_path, capsys):
    words = [
        "--config=configs/cifar10.py:mini",
        "--study=demo",
        f"--outdir={tmp_path / 'a'}",
        words,
    ]
    assert cli.guarded(sweep.main, words) == cli.WRONG_INPUT
    assert "allowed" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
