"""Studies: the points of a search, the trials that count, and resuming a stopped study."""

import dataclasses
import json
import os
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
from configs import cifar10, lm1b
from runs import cli, origins, records
from runs.progress import Progress
from runs.study import MAX_TRIALS_FACTOR, Axis, condition_label
from studies.plan import load_study, make_study, open_study, vary
from studies.search import check_values, point, trial_config
from tests.helpers.runs import (
    contents,
    echoing,
    flags,
    mini,
    on_each_step,
    records_of,
    refusal,
)
from tests.helpers.small_studies import AXES, QUIET, study
from tests.helpers.written_studies import change
from training.experiment import make_experiment
from training.sharding import Transfer

FLAG = "configs/cifar10.py:mini"
SPACE = study().space
ONE = {"trials": 1, "conditions": ("baseline",)}


def of_mini(name, **arguments):
    return load_study(cifar10.get_config("mini"), cifar10, FLAG, name, **arguments)


def test_points_are_scrambled_halton_points_for_any_number_of_trials():
    expected = qmc.Halton(d=len(SPACE), scramble=True, rng=3).random(20)
    for trial in (19, 0, 7):
        drawn = point(SPACE, search=3, trial=trial)
        positions = [axis.position(drawn[axis.field]) for axis in SPACE]
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
    loaded = of_mini("factor", overrides=[f"--config.budget.fresh_examples={budget}"])
    (axis,) = [axis for axis in loaded.space if "horizon" in axis.field]
    assert (axis.scale, axis.min, axis.max) == ("log", budget / 32, 2 * budget)
    drawn = [point(loaded.space, 0, trial)[axis.field] for trial in range(64)]
    places = qmc.Halton(d=len(loaded.space), scramble=True, rng=0).random(64)
    exact = [axis.value_at(place) for place in places[:, loaded.space.index(axis)]]
    np.testing.assert_allclose(drawn, exact, rtol=0, atol=0.5)
    assert all(type(value) is int for value in drawn)


def test_conditions_are_evaluated_equally_often_per_step_or_per_fresh_example():
    for name, per_step in (("factor", False), ("demo", True), ("quality", False)):
        loaded = of_mini(name)
        every, copies = loaded.config.evaluate_every_fresh_examples, set()
        for condition in loaded.conditions:
            config = trial_config(loaded, condition, 0, 0)
            copies.add(config.echo.factor * config.dataset.spaced_epochs)
            own = config.echo.factor * config.dataset.spaced_epochs if per_step else 1
            assert config.evaluate_every_fresh_examples == round(every / own)
        assert {1, 2} < copies
    own = dataclasses.replace(condition, overrides={"evaluate_every_fresh_examples": 7})
    assert trial_config(loaded, own, 0, 0).evaluate_every_fresh_examples == 7


def test_ends_of_an_axis_are_checked_with_a_point_of_the_other_axes():
    """A final factor of 0, the default, is not allowed with a short horizon; both are searched."""
    check_values(load_study(cifar10.get_config(), cifar10, "configs/cifar10.py", "demo"))


def test_study_has_the_documented_layout_and_can_be_analyzed(tmp_path, capsys):
    plan = study(trials=2, searches=2, target__value=0.05)
    assert sweep.run(plan, tmp_path / "study", QUIET) == "finished"
    found = list(records.trials_on_disk(tmp_path / "study"))
    names = ("baseline", "before_augmentation_e2")
    assert [(t.condition, t.search, t.trial) for t, _ in found] == [
        (c, s, t) for c in names for s in (0, 1) for t in (0, 1)
    ]
    for place, workdir in found:
        hparams = records.read_json(workdir / records.HPARAMS)
        assert hparams["hparams"] == point(SPACE, place.search, place.trial)
        config = records.read_json(workdir / records.CONFIG)["config"]
        seeds = {"data": place.search, "model": 10_000 * place.search + place.trial}
        assert config["seed"] == seeds
        assert config["optimizer"]["momentum"] == hparams["hparams"]["optimizer.momentum"]
    assert analyze([str(tmp_path / "study")]) == 0
    assert "no echoing" in capsys.readouterr().out
    assert (tmp_path / "study" / "report" / "report.md").exists()


@pytest.fixture(scope="module")
def finished_study(tmp_path_factory):
    """A study of two trials."""
    directory = tmp_path_factory.mktemp("finished") / "study"
    assert sweep.run(study(conditions=("baseline",)), directory, QUIET) == "finished"
    return directory


def test_finished_trials_are_kept_and_a_study_grows_but_never_shrinks(finished_study, tmp_path):
    """Its results would change: the analysis counts as many trials as study.json says."""
    directory, notes = shutil.copytree(finished_study, tmp_path / "study"), Progress(quiet=True)
    before = contents(directory)
    assert sweep.run(study(**ONE), directory, notes) == "finished"
    assert contents(directory) == before
    (line,) = notes.unsaid
    assert "2 trials" in line
    assert sweep.run(study(trials=3, conditions=("baseline",)), directory, QUIET) == "finished"
    after = contents(directory)
    assert {p: after[p] for p in before if p.name != records.STUDY} == {
        p: before[p] for p in before if p.name != records.STUDY
    }
    assert (directory / "baseline" / "0" / "2" / records.RESULT).exists()


def test_a_study_is_as_large_as_the_largest_of_its_launches_also_at_once(tmp_path, monkeypatch):
    larger = threading.Thread(target=open_study, args=(study(trials=8, searches=2), tmp_path))

    def described():  # by a launch that has read study.json, or found none, and is about to write
        monkeypatch.undo()
        larger.start()
        larger.join(0.5)  # it has written, or waits
        return origins.describe()

    for trials, searches, wanted in ((4, 1, (8, 2)), (2, 3, (8, 3))):
        open_study(study(trials=trials, searches=searches), tmp_path)
        if not larger.ident:
            monkeypatch.setattr(origins, "describe", described)
            open_study(study(trials=5), tmp_path)
            larger.join()
        plan = records.read_json(tmp_path / records.STUDY)
        assert (plan["trials"], plan["searches"]) == wanted
        assert plan["max_trials"] == MAX_TRIALS_FACTOR * plan["trials"]


def of_another_plan(trial):
    config = records.read_json(trial / records.CONFIG)["config"]
    change(trial / records.CONFIG, config=config | {"batch_size": 64})


def of_other_data(trial):
    dataset = records.read_json(trial / records.CONFIG)["dataset"]
    change(trial / records.CONFIG, dataset=dataset | {"fingerprint": "other"})


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (of_another_plan, "batch_size (64"),
        (of_other_data, "'other'"),
        (lambda trial: change(trial / records.HPARAMS, search=1), "search 1"),
        (lambda trial: (trial / records.CONFIG).unlink(), records.CONFIG),
        (lambda trial: (trial / records.HPARAMS).write_bytes(b"\xff"), records.HPARAMS),
        (lambda trial: (trial / records.RESULT).write_bytes(b""), records.RESULT),
    ],
)
def test_a_trial_that_is_damaged_or_of_another_study_is_named_and_starts_over(
    damage, named, finished, finished_study, tmp_path
):
    """As when directories of machines are merged whose commands or data differed."""
    directory, notes = shutil.copytree(finished_study, tmp_path / "study"), Progress(quiet=True)
    first, other = (directory / "baseline" / "0" / number for number in "01")
    untouched = contents(other)
    if not finished:
        (first / records.RESULT).unlink()
    damage(first)
    assert sweep.run(study(conditions=("baseline",)), directory, notes) == "finished"
    (line,) = [line for line in notes.unsaid if "damaged" in line]
    assert line.startswith("baseline, search 0, trial 0: ")
    assert named in line
    assert len([*(first / records.DAMAGED).iterdir()]) == 1
    assert contents(other) == untouched
    assert records_of(first) == records_of(finished_study / "baseline" / "0" / "0")
    loaded = load.read(directory)
    assert len(loaded.trials) == 2
    assert not loaded.set_aside


@pytest.mark.parametrize(
    "statuses",
    [["diverged", "exhausted", "failed", "reached"], ["diverged"] * 2 * MAX_TRIALS_FACTOR],
)
def test_diverged_trials_are_replaced_up_to_the_limit(statuses, tmp_path, monkeypatch):
    def ends(config, workdir, progress, locked, tools):
        places = ("step", "fresh_examples", "train_seconds", "wall_seconds", "input_wait_fraction")
        target = records.Target("accuracy", 0.5, "above")
        status, position = statuses.pop(0), dict.fromkeys(places, 1)
        records.write_json(
            workdir / records.RESULT, records.run_result(status, target, position, None, None)
        )
        return records.read_json(workdir / records.RESULT)

    monkeypatch.setattr(train, "train", ends)
    assert sweep.run(study(conditions=("baseline",)), tmp_path, QUIET) == "finished"
    assert not statuses


def test_failed_trial_is_recorded_and_the_study_continues(tmp_path, monkeypatch):
    calls, put = [], Transfer.put

    def fails_once(transfer, batch):
        calls.append(batch)
        if len(calls) == 5:
            raise OSError("a cable was pulled")
        return put(transfer, batch)

    monkeypatch.setattr(Transfer, "put", fails_once)
    assert sweep.run(study(), tmp_path / "study", QUIET) == "finished"
    found = [d / records.RESULT for _, d in records.trials_on_disk(tmp_path / "study")]
    results = [records.read_json(path) for path in found]
    (failed,) = [result for result in results if result["status"] == "failed"]
    assert "a cable was pulled" in failed["error"]
    assert sum(result["status"] == "exhausted" for result in results) == 4


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
        assert records_of(place.under(stopped)) == records_of(workdir)


def test_one_compilation_serves_all_trials_and_conditions():
    plan = study()
    programs = {
        id(make_experiment(trial_config(plan, condition, 0, trial)).program)
        for condition in plan.conditions
        for trial in range(3)
    }
    assert len(programs) == 1


def test_what_may_differ_between_launches(finished_study, tmp_path):
    """Where the data are, notes on them, what is recorded, and fields that are newer."""
    directory = shutil.copytree(finished_study, tmp_path / "study")
    plan = records.read_json(directory / records.STUDY)
    trial = directory / "baseline" / "0" / "0" / records.CONFIG
    config = records.read_json(trial)["config"]
    for older in (plan["resolved_config"], config):
        del older["model"]["stem"]
    change(directory / records.STUDY, dataset=plan["dataset"] | {"notes": ["something else"]})
    change(directory / records.STUDY, resolved_config=plan["resolved_config"])
    change(trial, config=config)
    grown, notes = study(trials=3, conditions=("baseline",)), Progress(quiet=True)
    grown.config.dataset.data_dir, grown.config.log_every_steps = "/elsewhere", 2
    assert sweep.run(grown, directory, notes) == "finished"
    assert not any("damaged" in line for line in notes.unsaid)
    last = records.read_json(directory / records.STUDY)
    assert (last["trials"], last["resolved_config"]) == (3, plan["resolved_config"])
    metrics = records.read_metrics(directory / "baseline" / "0" / "2")
    assert any(r["split"] == "train" and r["step"] % 10 == 2 for r in metrics)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (study(), "conditions.before_augmentation_e2.echo.factor (None there, 2 here)"),
        (study(conditions=("baseline",), axes=AXES[::-1]), "search_space.0.field"),
        (study(conditions=("baseline",), batch_size=16), "config.batch_size (32 there, 16 here)"),
        (study(conditions=("baseline",), target__value=0.9), "target.value"),
    ],
)
def test_directory_of_another_plan_is_refused(other, named, finished_study):
    before = contents(finished_study)
    with pytest.raises(cli.InputError) as error:
        sweep.run(other, finished_study, QUIET)
    assert named in str(error.value)
    assert contents(finished_study) == before


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b"\xff"])
def test_damaged_study_is_one_sentence(finished_study, tmp_path, content):
    directory = shutil.copytree(finished_study, tmp_path / "study")
    (directory / records.STUDY).write_bytes(content)
    with pytest.raises(records.Damaged, match=r"study\.json"):
        sweep.run(study(conditions=("baseline",)), directory, QUIET)


def test_labels_of_conditions():
    controls = cifar10.get_studies("mini")["controls"]["conditions"].values()
    assert [condition_label(own) for own in controls][1:] == [
        "before augmentation, e = 2",
        "no echoing, 2 copies an epoch apart",
        "no echoing, budget 24,000",
        "before augmentation, e = 2, budget 6,000",
        "no echoing, decay over 6,000",
    ]
    auto = {"echo.policy": "auto", "echo.insertion": "after_augmentation", "echo.max_factor": 0}
    assert condition_label(auto, {"batch_size": 32}) == "after augmentation, e ≤ 8"
    assert condition_label({"optimizer.momentum": 0.5}) == "no echoing, momentum = 0.5"
    config = mini(echo__shuffle_buffer=256)
    echoed = {"echo.insertion": "before_augmentation", "echo.factor": 2}
    sizes = {"inherits": echoed, "none": echoed | {"echo.shuffle_buffer": 0}}
    plan = make_study("s", config, conditions=sizes, trials=1, searches=1, baseline=None)
    assert [c.label.rpartition(", ")[2] for c in plan.conditions] == ["buffer 256", "buffer 0"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "--vary"),
        (["--study=dmo"], "demo"),
        (["--study=demo", "--vary=batch_size=1"], "--vary"),
        (["--study=demo", "--trials=-1"], "--trials"),
        (["--study=demo", "--trials=6000"], "trials"),
        (["--study=demo", "--config.dataset.name=none"], "none"),
        (["--study=demo", "--config.echo.factor=4"], "--config.echo.factor"),
        (["--study=demo", "--config.optimizer.learning_rate=1"], "optimizer.learning_rate"),
        (["--study=controls", "--config.budget.fresh_examples=6000"], "baseline_steps_of_e2"),
        (["--study=demo", "--shard=3/2"], "--shard"),
        (["--study=demo", "--shard=0/99"], "--shard"),
        (["--study=wall_time", "--lanes=2"], "--lanes"),
        (["--study=demo", "--cpus-per-trial=1"], "--cpus-per-trial"),
        (["--study=demo", "--gpus-per-trial=x"], "'x' is not allowed"),
        (["--study=demo", "--workers=2", "--executor=ray"], "--workers"),
        (["--vary=echo.factor"], "FIELD=VALUE"),
        (["--vary=echo.factr=1,2"], "echo.factor"),
        (["--vary=seed.data=1,2"], "seed.data"),
        (["--vary=batch_size=32,31", "--config.echo.streams=4"], "config.echo.streams"),
        (["--vary=echo.factor=1,1"], "echo.factor"),
        (["--vary=echo.shuffle_buffer=1,024"], "'024'"),
        (["--vary=echo.factor=2", "--vary=echo.insertion=none"], "echo.factor"),
        (["--vary=dataset.name=digits,Digits"], "Digits"),
        (["--vary=batch_size=16,32", "--config.batch_size=64"], "--config.batch_size"),
        (["--study=demo", "--config.dataset.test_split=tset"], "tset"),
    ],
)
def test_wrong_input_to_the_command(words, named, tmp_path, capsys):
    words = [f"--config={FLAG}", f"--outdir={tmp_path / 'study'}", *words]
    assert named in refusal(sweep.main, words, capsys)
    assert not (tmp_path / "study").exists()


def test_values_of_a_field_are_compared_without_a_python_file(tmp_path):
    words = [f"--config={FLAG}", "--vary=echo.factor=1,2", "--vary=echo.shuffle_buffer=0,64"]
    words += ["--searches=1", f"--outdir={tmp_path / 'study'}", "--tracker=none"]
    words += flags(mini(budget__fresh_examples=320, evaluate_every_fresh_examples=160))
    assert sweep.main(words) == cli.OK
    loaded = load.read(tmp_path / "study")
    assert [(c.name, c.insertion, c.factor) for c in loaded.study.conditions] == [
        ("factor=1.0", "none", 1.0),
        ("factor=2.0_shuffle_buffer=0", "before_augmentation", 2.0),
        ("factor=2.0_shuffle_buffer=64", "before_augmentation", 2.0),
    ]
    assert loaded.trials["status"].tolist() == ["exhausted"] * 3


@pytest.mark.parametrize(
    ("flags", "conditions"),
    [
        (["echo.insertion=none,after_batching"], [("none", 1.0), ("after_batching", 2.5)]),
        (["echo.factor=1,2"], [("none", 1.0), ("after_batching", 2.0)]),
        (
            ["echo.insertion=before_augmentation,none", "echo.shuffle_buffer=0,64"],
            [("before_augmentation", 2.5), ("before_augmentation", 2.5), ("none", 1.0)],
        ),
        (["echo.factor=1", "echo.streams=1,2"], [("none", 1.0), ("none", 1.0)]),
    ],
)
def test_no_echoing_is_one_condition_whatever_else_of_echoing_is_varied(flags, conditions):
    plan = vary(mini(**echoing("after_batching", 0)), FLAG, flags)
    assert [(c.insertion, c.factor) for c in plan.conditions] == conditions
    check_values(plan)


FILE = """import numpy as np
from configs import catalog, cifar10
def get_config():
    return cifar10.get_config("mini")
def get_search_space(variant):
    return [{axis}]
def get_studies(variant):
    return {{"mine": {{
        "conditions": {{"baseline": catalog.echo("none", 1, 0), {more}}},
        "baseline": "baseline", "trials": 1, "searches": 1, {plan}}}}}
"""
RATE = "{'field': 'optimizer.learning_rate', 'scale': 'log', 'min': 0.01, 'max': 1.0}"


def of_axis(**changes):
    axis = {"field": "optimizer.learning_rate", "scale": "linear", "min": 0.01, "max": 1.0}
    return {"axis": repr({k: v for k, v in (axis | changes).items() if v is not None})}


def of_choice(field, values):
    return of_axis(field=field, scale="choice", min=None, max=None, values=values)


def of_condition(name, overrides="{}"):
    return {"more": f"{name!r}: {overrides}"}


WRONG = [
    (of_axis(min=-0.5), "learning_rate to -0.5"),
    (of_axis(field="optimizer.momentum", max=1.5), "optimizer.momentum"),
    (of_axis(field="optimizer.lerning_rate"), "optimizer.learning_rate"),
    (of_axis(field="seed.data", min=0, max=9), "seed.data"),
    (of_axis(field="optimizer.name"), "optimizer.name"),
    (of_axis(field="echo.max_factor", min=1, max=4), "echo.max_factor"),
    (of_axis(field=None), "field"),
    (of_axis(scale="lgo"), "linear, log"),
    (of_axis(min="low"), "learning_rate"),
    (of_axis(max=10**400), "learning_rate"),
    (of_axis(min=2.0), "max"),
    (of_axis(scale="log", min=0.0), "min"),
    (of_axis(times="optimizer.schedule.horizon_fresh_examples"), "horizon_fresh_examples"),
    (of_choice("optimizer.learning_rate", [0.1, -1]), "learning_rate is -1"),
    (of_choice("optimizer.name", {"adamw", "nesterov"}), "values"),
    (of_choice("model.depth", [8, 9]), "config.model.depth is 9"),
    (of_choice("batch_size", [31, 32]), "batch_size 31"),
    (of_axis(field="batch_size", scale="log", min=16, max=50), "batch_size 27"),
    ({"axis": f"{RATE}, {RATE}"}, "optimizer.learning_rate"),
    ({"axis": "'lr'"}, "mine.py"),
    ({"axis": "1 / 0"}, "line 6: ZeroDivisionError"),
    *((of_condition(name), "condition") for name in ("../evil", "a\n", "study.json", 3)),
    (of_condition("x", "{'seed.model': 3}"), "seed.model"),
    (of_condition("x", "{'echo.factr': 3}"), "echo.factor"),
    (of_condition("x", "{'echo.insertion': 'before'}"), "config.echo.insertion"),
    ({"plan": "'trials': 0"}, "trials"),
    ({"plan": "'overrides': {'optimizer.learning_rate': 1}"}, "optimizer.learning_rate"),
    ({"plan": "'not_searched': ['optimizer.lerning_rate']"}, "optimizer.learning_rate"),
    ({"plan": "'overide': {}"}, "'overide'"),
    ({"plan": "'score': 'speed'"}, "'speed'"),
    ({"plan": "'baseline': 'other'"}, "'other'"),
    (
        {"more": "'e2': {'echo.insertion': 'before_augmentation'}", "plan": "'baseline': 'e2'"},
        "'e2'",
    ),
    ({"plan": "'overrides': {'dataset.test_split': 'tset'}"}, "'tset'"),
    ({"plan": "'overrides': {'dataset.name': 'folder:/nope'}"}, "/nope"),
    ({"plan": "}, 'list': {"}, "'list'"),
]


def test_numbers_of_numpy_are_those_of_python_in_records(tmp_path):
    """NumPy's integers and short floats are not JSON."""
    file = tmp_path / "mine.py"
    width = "{'field': 'model.width', 'scale': 'choice', 'values': list(np.arange(1, 3))}"
    plan = "'overrides': {'optimizer.beta2': np.float32(0.5)}"
    file.write_text(FILE.format(axis=width, more="'x': {'prefetch': np.int64(1)}", plan=plan))
    config, module = cli.load_config(str(file))
    record = load_study(config, module, str(file), "mine").to_record({})
    assert json.loads(json.dumps(record["search_space"]))[0]["values"] == [1, 2]
    assert json.loads(json.dumps(record["conditions"]))[1]["overrides"] == {"prefetch": 1}
    assert record["resolved_config"]["optimizer"]["beta2"] == 0.5


@pytest.mark.parametrize(("wrong", "named"), WRONG)
def test_wrong_study_is_one_sentence_and_writes_nothing(wrong, named, tmp_path, capsys):
    parts = {"axis": RATE, "more": "", "plan": ""} | wrong
    (tmp_path / "mine.py").write_text(FILE.format(**parts))
    words = [f"--config={tmp_path / 'mine.py'}", "--study=mine", f"--outdir={tmp_path / 'a' / 'b'}"]
    streams = ["--config.echo.streams=2", "--trials=2"] if "batch_size" in parts["axis"] else []
    assert named in refusal(sweep.main, [*words, *streams], capsys)
    assert {path.name for path in tmp_path.iterdir()} <= {"mine.py", "__pycache__"}


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path, capsys):
    words = [f"--config={FLAG}", "--study=insertion", "--dry-run", f"--outdir={tmp_path / 'study'}"]
    assert sweep.main([*words, "--trials=2", "--searches=1"]) == cli.OK
    said = capsys.readouterr().out
    for part in ("no echoing", "echo.factor = 2", "learning_rate: 0.01 to 1", "8 trials"):
        assert part in said
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("name", ["cifar10:mini", "lm1b"])
def test_every_study_is_listed_with_its_cost(name, capsys):
    file, _, variant = name.partition(":")
    words = [f"--config=configs/{file}.py{':' * bool(variant)}{variant}", "--study=list"]
    assert sweep.main(words) == cli.OK
    said = capsys.readouterr().out.splitlines()
    studies = (cifar10 if variant else lm1b).get_studies(variant)
    assert [line for line in said if line and line[0] != " "] == [*studies]
    assert " ".join(said).count(" attempts.") == len(studies)
