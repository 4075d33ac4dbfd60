"""Studies: the points of a search, what counts, and that a stopped study goes on."""

import dataclasses
import os
import signal

import numpy as np
import pytest
from conftest import mini, run_command
from scipy.stats import qmc

import sweep
import train
from configs import cifar10, coco, common_crawl, imagenet, lm1b
from runs import command, records
from runs.progress import Progress

QUIET = Progress(quiet=True)
SPACE = cifar10.get_search_space("mini")[:3]
BOTH = ("baseline", "before_augmentation_e2")


def study(trials=2, searches=1, conditions=BOTH, **more):
    plan = cifar10.get_studies("mini")["demo"]
    config = mini(budget__fresh_examples=320, checkpoint_every_fresh_examples=0, **more)
    return sweep.Study(
        name="demo",
        config=config,
        config_flag="configs/cifar10.py:mini",
        conditions=tuple(
            {"name": name, "label": sweep.label(plan["conditions"][name])}
            | {"overrides": plan["conditions"][name]}
            for name in conditions
        ),
        space=SPACE,
        trials=trials,
        searches=searches,
        baseline="baseline",
    )


def test_points_are_scipys_scrambled_halton_sequence_and_do_not_depend_on_how_many():
    wanted = qmc.Halton(d=len(SPACE), scramble=True, rng=3).random(20)
    for trial in (19, 0, 7):
        values = sweep.point(SPACE, search=3, trial=trial)
        units = [_unit(axis, values[axis["field"]]) for axis in SPACE]
        np.testing.assert_allclose(units, wanted[trial], atol=1e-12)
    assert sweep.point(SPACE, 0, 0) != sweep.point(SPACE, 1, 0)


def _unit(axis, value):
    value = 1 - value if axis["scale"] == "log_one_minus" else value
    return np.log(value / axis["min"]) / np.log(axis["max"] / axis["min"])


@pytest.mark.parametrize(
    ("axis", "ends"),
    [
        ({"scale": "linear", "min": 2.0, "max": 4.0}, (2.0, 4.0)),
        ({"scale": "log", "min": 0.01, "max": 1.0}, (0.01, 1.0)),
        ({"scale": "log_one_minus", "min": 0.01, "max": 0.1}, (0.99, 0.9)),
    ],
)
def test_scales_run_from_end_to_end(axis, ends):
    assert sweep.scaled(axis, 0.0) == pytest.approx(ends[0])
    assert sweep.scaled(axis, 1.0) == pytest.approx(ends[1])


@pytest.mark.parametrize("budget", [12_000, 48_000])
def test_the_horizon_is_searched_on_the_budget_of_the_study_and_is_a_whole_number(budget):
    flag, flags = "configs/cifar10.py:mini", [f"--config.budget.fresh_examples={budget}"]
    loaded = sweep.load_study(cifar10.get_config("mini"), cifar10, flag, "demo", 0, 0, flags)
    (axis,) = [axis for axis in loaded.space if "horizon" in axis["field"]]
    assert axis == {
        "field": "optimizer.schedule.horizon_fresh_examples",
        "scale": "log",
        "min": budget / 32,
        "max": 2 * budget,
    }
    drawn = [sweep.point(loaded.space, 0, trial)[axis["field"]] for trial in range(64)]
    assert all(type(value) is int for value in drawn)
    assert min(drawn) < budget / 24
    assert max(drawn) > 1.5 * budget


def test_every_schedule_that_decays_has_its_horizon_searched_and_no_other():
    for module in (cifar10, imagenet, coco, lm1b, common_crawl):
        for variant in ("", "mini"):
            for name, each in module.get_studies(variant).items():
                axes = each.get("space") or module.get_search_space(variant)
                schedule = each["overrides"].get(
                    "optimizer.schedule.name", module.get_config(variant).optimizer.schedule.name
                )
                fields = {axis["field"] for axis in axes} - set(each.get("not_searched", ()))
                searched = "optimizer.schedule.horizon_fresh_examples" in fields
                assert searched == (schedule != "constant" and name != "controls"), (module, name)


def test_every_condition_is_evaluated_equally_often_per_step():
    loaded = sweep.load_study(
        cifar10.get_config("mini"), cifar10, "configs/cifar10.py:mini", "factor", 0, 0
    )
    every = loaded.config.evaluate_every_fresh_examples
    for condition in loaded.conditions:
        config = sweep.trial_config(loaded, condition, 0, 0)
        assert config.evaluate_every_fresh_examples == round(every / config.echo.factor)
    own = {"name": "own", "label": "own", "overrides": {"evaluate_every_fresh_examples": 7}}
    assert sweep.trial_config(loaded, own, 0, 0).evaluate_every_fresh_examples == 7


def test_a_choice_takes_each_value_equally_often():
    axis = {"scale": "choice", "values": [0.0, 0.1, 0.2]}
    drawn = [sweep.scaled(axis, u) for u in np.linspace(0, 0.999, 300)]
    assert [drawn.count(v) for v in axis["values"]] == [100, 100, 100]


def test_a_study_is_written_as_the_layout_says_and_scored_by_the_analysis(tmp_path):
    plan = study(trials=2, searches=2, target__value=0.05)
    assert sweep.run(plan, tmp_path / "study", QUIET) == "finished"
    found = [
        (t.condition, t.search, t.trial) for t, _ in records.trials_on_disk(tmp_path / "study")
    ]
    names = ("baseline", "before_augmentation_e2")
    assert found == [(c, s, t) for c in names for s in (0, 1) for t in (0, 1)]
    for place, workdir in records.trials_on_disk(tmp_path / "study"):
        hparams = records.read_json(workdir / records.HPARAMS)
        assert hparams["hparams"] == sweep.point(SPACE, place.search, place.trial)
        config = records.read_json(workdir / records.CONFIG)["config"]
        assert config["seed"] == {
            "data": place.search,
            "model": 10_000 * place.search + place.trial,
        }
        assert config["optimizer"]["momentum"] == hparams["hparams"]["optimizer.momentum"]
    done = run_command("analysis", str(tmp_path / "study"))
    assert done.returncode == 0, done.stderr
    assert "no echoing" in done.stdout
    assert (tmp_path / "study" / "report" / "report.md").exists()


def test_finished_trials_are_kept_and_a_study_can_grow(tmp_path):
    outdir = tmp_path / "study"
    sweep.run(study(trials=1), outdir, QUIET)
    first = outdir / "baseline" / "0" / "0"
    before = {p: p.read_bytes() for p in first.rglob("*") if p.is_file()}
    sweep.run(study(trials=2), outdir, QUIET)
    assert {p: p.read_bytes() for p in first.rglob("*") if p.is_file()} == before
    assert (outdir / "baseline" / "0" / "1" / records.RESULT).exists()


def test_diverged_trials_do_not_count_up_to_the_cap(tmp_path, monkeypatch):
    started = []

    def ends_as(statuses):
        def fake(config, workdir, progress):
            started.append(workdir)
            result = {
                "status": statuses[len(started) - 1],
                "best": {"value": 0.5},
                "fresh_examples_to_target": 10,
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
    assert len(started) == sweep.MAX_TRIALS_FACTOR * 2


def test_a_failed_trial_is_recorded_and_does_not_stop_the_rest(tmp_path, monkeypatch):
    train_on, steps = train._Run._train_on, []

    def fails_once(run, batch):
        steps.append(1)
        if len(steps) == 5:
            raise OSError("a cable was pulled")
        train_on(run, batch)

    monkeypatch.setattr(train._Run, "_train_on", fails_once)
    outdir = tmp_path / "study"
    assert sweep.run(study(), outdir, QUIET) == "finished"
    results = [records.read_json(d / records.RESULT) for _, d in records.trials_on_disk(outdir)]
    failed = [result for result in results if result["status"] == "failed"]
    assert len(failed) == 1
    assert "a cable was pulled" in failed[0]["error"]
    assert sum(result["status"] == "exhausted" for result in results) == 4


def test_a_study_that_was_told_to_stop_goes_on_in_the_middle_of_the_trial(tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    sweep.run(study(), whole, QUIET)
    train_on, steps = train._Run._train_on, []

    def stops(run, batch):
        train_on(run, batch)
        steps.append(1)
        if len(steps) == 14:  # a baseline's trial has 10 steps
            os.kill(os.getpid(), signal.SIGTERM)

    train._Run._train_on = stops
    try:
        assert sweep.run(study(), stopped, QUIET) == "preempted"
        half_done = stopped / "baseline" / "0" / "1"
        assert records.read_json(half_done / records.RESULT)["status"] == "preempted"
        assert sweep.run(study(), stopped, QUIET) == "finished"
    finally:
        train._Run._train_on = train_on
    for place, workdir in records.trials_on_disk(whole):
        assert _values(place.under(stopped)) == _values(workdir)


def _values(workdir):
    return [(r["step"], r["fresh_examples"], r["loss"]) for r in records.read_metrics(workdir)]


def test_one_compilation_serves_all_trials_and_conditions(tmp_path):
    plan = study()
    programs = {
        id(train.prepare(sweep.trial_config(plan, condition, 0, trial)).program)
        for condition in plan.conditions
        for trial in range(3)
    }
    assert len(programs) == 1


@pytest.mark.parametrize(
    ("field", "scale", "low", "high", "says"),
    [
        ("optimizer.learning_rate", "log", 0.0, 1.0, "above 0"),
        ("optimizer.learning_rate", "log", 2.0, 1.0, "min <= max"),
        ("optimizer.learning_rate", "lgo", 0.1, 1.0, "linear, log"),
        ("optimizer.learning_rat", "log", 0.1, 1.0, "did you mean"),
        ("echo.factor", "linear", 1.0, 4.0, "leave it out of one"),
    ],
)
def test_a_wrong_search_space_is_one_sentence_and_writes_nothing(
    field, scale, low, high, says, tmp_path
):
    axis = {"field": field, "scale": scale, "min": low, "max": high}
    plan = dataclasses.replace(study(), space=(axis,))
    with pytest.raises(command.InputError, match=says):
        sweep.run(plan, tmp_path / "study", QUIET)
    assert not (tmp_path / "study").exists()


def test_a_directory_of_another_plan_is_refused(tmp_path):
    sweep.run(study(trials=1, conditions=("baseline",)), tmp_path / "study", QUIET)
    with pytest.raises(command.InputError, match="another plan, which differs in conditions"):
        sweep.run(study(trials=1), tmp_path / "study", QUIET)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--study=dmo"], "--study is 'dmo'; allowed with configs/cifar10.py:mini: demo"),
        (["--study=demo", "--trials=-1"], "'-1' is not allowed; give 0, 1, 2"),
        (["--study=demo", "--config.dataset.name=none"], "is not prepared in"),
    ],
)
def test_wrong_input_to_the_command(words, says, tmp_path):
    words = ["--config=configs/cifar10.py:mini", f"--outdir={tmp_path / 'study'}", *words]
    done = run_command("sweep.py", *words)
    assert done.returncode == command.WRONG_INPUT
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "study").exists()


def test_conditions_are_named_as_the_study_names_them():
    conditions = cifar10.get_studies("mini")["demo"]["conditions"]
    assert [sweep.label(overrides) for overrides in conditions.values()] == [
        "no echoing",
        "before augmentation, e = 2",
        "after augmentation, e = 2",
        "batch echoing, e = 2",
        "before augmentation, e = 4",
    ]
    assert sweep.label({"batch_size": 64}) == "no echoing, batch_size = 64"


def test_a_study_of_version_1_is_left_as_it_is_and_never_continued(tmp_path):
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
    says = r"holds a study of schema version 1, which code of version 2 .* abc1234, or .*--outdir"
    grown = dataclasses.replace(plan, trials=2, searches=2)
    for other in (grown, study(trials=1, conditions=("baseline",), batch_size=64)):
        with pytest.raises(command.InputError, match=says):
            sweep.run(other, tmp_path / "study", QUIET)
    assert files() == before
