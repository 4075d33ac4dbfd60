"""From records on disk to scores: values computed by hand, other targets, damaged records."""

import dataclasses
import math
import shutil

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis import (
    caveats,
    figures,
    gradients,
    load,
    report,
    scores,
    tables,
    uncertainty,
)
from runs import records
from runs.cli import InputError
from tests.helpers.written_studies import (
    BASELINE,
    BEFORE,
    SMALL,
    TARGET,
    config,
    with_values,
    write_study,
    write_trial,
)

# What a trial resumed with, as in config.json.
ORIGIN = {"step": 40, "commit": "bbb", "packages": {}, "hardware": {"device_kind": "cpu"}}
ORIGIN |= {"fields": {}}


@pytest.fixture
def small(tmp_path):
    return write_study(tmp_path / "small", [BASELINE, BEFORE], SMALL)


def test_one_row_per_trial(small):
    trials = load.load(small)
    assert len(trials) == len(SMALL)
    assert list(trials.columns[:9]) == [
        *("condition", "label", "insertion", "factor", "shuffle_buffer", "batch_size"),
        *("search", "trial"),
        "optimizer.learning_rate",
    ]
    row = trials[(trials["condition"] == "before_e2") & (trials["trial"] == 2)].iloc[0]
    assert row["optimizer.learning_rate"] == pytest.approx(0.03)
    assert row["status"] == "reached"
    assert (row["factor"], row["shuffle_buffer"]) == (2.0, 50)
    assert row["fresh_examples_to_target"] == 500
    assert row["steps_to_target"] == 100
    assert row["seconds_to_target"] == 10.0
    assert (row["steps"], row["fresh_examples"], row["train_seconds"]) == (100, 500, 10.0)
    assert (row["best_value"], row["best_fresh_examples"]) == (0.9, 500)
    assert row["path"].endswith("small/before_e2/0/2")


def test_first_n_trials_that_neither_diverge_nor_fail_count(small):
    trials = load.load(small).set_index(["condition", "search", "trial"])["counted"]
    assert trials["baseline", 0].tolist() == [False, True, True, False]
    assert trials["before_e2", 0].tolist() == [True, False, True]


def test_scores_by_hand(small):
    loaded = load.read(small)
    searches = scores.search_scores(loaded.trials, loaded.study)
    ends = searches[["fresh_examples_low", "fresh_examples_high"]].to_numpy().tolist()
    assert ends == [[600, 600], [1000, 1000], [400, 400], [1000, math.inf]]
    assert searches["resolution"].tolist()[:3] == [1 / 6, 1 / 10, 1 / 4]
    assert searches["trial"].tolist()[:3] == [2, 0, 0]
    table = scores.condition_scores(loaded.trials, loaded.study).set_index("condition")
    base, before = table.loc["baseline"], table.loc["before_e2"]
    assert (base.searches, base.searches_reached) == (2, 2)
    assert (base.fresh_examples_low, base.fresh_examples_high) == (800, 800)
    assert (base.fresh_examples_min, base.fresh_examples_max) == (600, 1000)
    assert (base.ratio_low, base.ratio_high) == (1, 1)
    assert base.share_diverged == pytest.approx(1 / 6)
    assert base.share_reached == pytest.approx(3 / 4)
    assert (before.searches, before.searches_reached) == (2, 1)
    assert (before.trials_counted, before.trials_censored, before.trials_diverged) == (4, 2, 0)
    # Search 1 ended at 1,000 without reaching, where the baseline needed 1,000: at least 1.
    assert (before.fresh_examples_low, before.fresh_examples_high) == (700, math.inf)
    assert (before.fresh_examples_min, before.fresh_examples_max_low) == (400, 1000)
    assert before.ratio_low == pytest.approx((400 / 600 + 1) / 2)
    assert before.ratio_high == math.inf
    assert (before.ratio_min, before.ratio_max_low) == pytest.approx((400 / 600, 1))
    assert (before.ideal_ratio, before.ideal_fresh_examples) == (0.5, 400)
    assert (before.steps_min, before.seconds_min) == (80, 8.0)
    assert (before.steps_max_low, before.seconds_max_low) == (200, 20.0)


def test_another_target_is_scored_from_the_curves(small):
    easy = load.load(small, target=0.85).set_index(["condition", "search", "trial"])
    assert easy.loc[("before_e2", 0, 0), "fresh_examples_to_target"] == 300
    assert easy.loc[("before_e2", 0, 0), "steps_to_target"] == 60
    assert easy.loc[("before_e2", 0, 0), "seconds_to_target"] == 6.0
    hard = load.read(small, target=0.94)
    reached = hard.trials[hard.trials["fresh_examples_to_target"].notna()]
    assert reached["fresh_examples_to_target"].tolist() == [600]
    assert any("ended on reaching" in caveat for caveat in caveats.find(hard))
    # Trials that stopped at the easier target are censored there, beside one that reached too:
    # trial 1 of baseline/0 ended at 800 and trial 2 reached at 600; in baseline/1 trial 0 ended at
    # 1,000 and so did its exhausted one.
    searches = scores.search_scores(hard.trials, hard.study)
    ends = searches[["fresh_examples_low", "fresh_examples_high"]].to_numpy().tolist()
    assert ends == [[600, 600], [1000, math.inf], [400, math.inf], [1000, math.inf]]


def test_a_trial_that_diverged_after_an_easier_target_counts_there(tmp_path):
    trials = {
        ("baseline", 0, 0): ([0.1, 0.85, 0.1], "diverged"),
        ("baseline", 0, 1): [0.1] * 4 + [0.95],
        ("baseline", 0, 2): [0.1, 0.1, 0.95],
    }
    root = write_study(tmp_path / "s", [BASELINE, BEFORE], trials)
    planned = load.read(root)
    assert planned.trials["counted"].tolist() == [False, True, True]
    assert scores.search_scores(planned.trials, planned.study)["diverged"].tolist() == [1]
    easy = load.read(root, target=0.85)
    assert easy.trials["counted"].tolist() == [True, True, False]  # two trials are planned
    searches = scores.search_scores(easy.trials, easy.study)
    assert searches["fresh_examples_low"][0] == 200
    assert searches["diverged"].tolist() == [0]
    judged = load.judged_at(planned, load.curves(planned.trials, "accuracy"), 0.85)
    pd.testing.assert_frame_equal(judged.trials, easy.trials)
    # A best value is of the whole budget, which that run did not survive.
    values = write_study(tmp_path / "v", [BASELINE, BEFORE], trials, score="best_value")
    assert load.read(values, target=0.85).trials["counted"].tolist() == [False, True, True]


def test_target_below_is_reached_from_above(tmp_path):
    target = {"metric": "loss", "value": 1.0, "mode": "below"}
    trials = {("baseline", 0, 0): [3.0, 1.5, 1.0], ("baseline", 0, 1): [2.0, 2.0, 0.5]}
    loaded = load.read(write_study(tmp_path / "s", [BASELINE], trials, target=target), target=0.5)
    assert scores.best_trials(loaded.trials, loaded.study)["trial"].tolist() == [1]
    assert loaded.trials["fresh_examples_to_target"].isna().tolist() == [True, False]


def test_unfinished_and_preempted_trials_do_not_count_yet(tmp_path):
    trials = {
        ("baseline", 0, 0): ([0.95], "unfinished"),
        ("baseline", 0, 1): ([0.2], "preempted"),
        ("baseline", 0, 2): [0.1, 0.95],
    }
    loaded = load.read(write_study(tmp_path / "s", [BASELINE, BEFORE], trials))
    assert loaded.trials["counted"].tolist() == [False, False, True]
    text = " ".join(caveats.find(loaded))
    assert "do not count yet: 2" in text
    assert "baseline/0 (1)" in text
    assert "before augmentation, e = 2 (0)" in text
    table = scores.condition_scores(loaded.trials, loaded.study)
    assert table["searches"].tolist() == [1, 0]


def test_a_search_in_which_no_trial_has_ended_has_no_score_yet(tmp_path):
    trials = {
        ("baseline", 0, 0): [0.9],
        ("baseline", 1, 0): ([0.1], "unfinished"),
        ("baseline", 1, 1): ([0.2], "preempted"),
    }
    loaded = load.read(write_study(tmp_path / "s", [BASELINE], trials))
    done, running = scores.search_scores(loaded.trials, loaded.study).to_dict("records")
    for measure in scores.MEASURES:
        assert not math.isnan(done[f"{measure}_low"])
        assert math.isnan(running[f"{measure}_low"])
        assert math.isnan(running[f"{measure}_high"])


def _tables(directory):
    loaded = load.read(directory)
    table = scores.condition_scores(loaded.trials, loaded.study)
    caveats.find(loaded)
    return tables.text(loaded, table), loaded


@settings(max_examples=25, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_damage_sets_a_trial_aside_or_changes_nothing(tmp_path_factory, small_files, data):
    directory = tmp_path_factory.mktemp("damaged") / "small"
    shutil.copytree(small_files, directory)
    names = ["result.json", "config.json", "hparams.json", "metrics.jsonl"]
    path = directory / "baseline" / "0" / "1" / data.draw(st.sampled_from(names))
    content = path.read_bytes()
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, min(len(content), start + 8)))
    path.write_bytes(content[:start] + data.draw(st.binary(max_size=8)) + content[stop:])
    whole = load.load(small_files).drop(columns=["path", "counted"])
    text, loaded = _tables(directory)
    assert "no echoing" in text
    rows = loaded.trials.drop(columns=["path", "counted"])
    if loaded.set_aside:
        assert [place for place, _ in loaded.set_aside] == [path.parent]
        assert str(path.parent) in loaded.warning()
        whole = whole[
            (whole["condition"] != "baseline") | (whole["search"] != 0) | (whole["trial"] != 1)
        ]
    pd.testing.assert_frame_equal(rows, whole.reset_index(drop=True))


def test_a_damaged_plan_is_refused(small):
    path = small / "study.json"
    content = path.read_bytes()
    for damaged in (content[:-20], content.replace(b"0.9", b"0.8"), b"[]", b""):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"study\.json"):
            load.read(small)


@pytest.fixture(scope="module")
def small_files(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("whole") / "small", [BASELINE, BEFORE], SMALL)


@pytest.mark.parametrize(
    ("copy", "says"),
    [
        ("baseline/0/9", "trial 2"),
        ("baseline/9/2", "search 0"),
        ("before_e2/0/9", "condition 'baseline'"),
    ],
)
def test_a_copy_of_a_trial_at_another_place_is_set_aside(small, copy, says):
    shutil.copytree(small / "baseline" / "0" / "2", small / copy)
    loaded = load.read(small)
    assert f"{copy} (hparams.json is of {says})" in loaded.warning()
    assert "more" not in loaded.warning()
    many = dataclasses.replace(loaded, set_aside=loaded.set_aside * 20)
    assert many.warning().endswith("; and 8 more.")
    assert len(loaded.trials) == len(SMALL)


_SETTINGS = {"batch_size": 10, "dataset": {"cache_dir": "/a"}, "seed": {"data": 0, "model": 0}}


def _with_values(trial, values):
    record = records.read_json(trial / records.CONFIG) | {"schema_version": records.SCHEMA_VERSION}
    record["config"] = with_values(record["config"], values)
    records.write_json(trial / records.CONFIG, record)


def test_hyperparameters_of_another_search_space_are_set_aside(small):
    plan = records.read_json(small / records.STUDY)
    plan["search_space"][0]["max"] = 0.03
    records.write_json(small / records.STUDY, plan)
    ((path, reason),) = load.read(small).set_aside
    assert path == small / "baseline" / "0" / "3"
    assert "optimizer.learning_rate is 0.04, which the search of the study does not" in reason


def test_curves_hold_the_validation_records(small):
    trials = load.load(small)
    one = trials[(trials["condition"] == "before_e2") & (trials["search"] == 0)].head(1)
    curve = load.curves(one, "accuracy")
    assert curve["value"].tolist() == [0.1, 0.3, 0.85, 0.93]
    assert curve["fresh_examples"].tolist() == [100, 200, 300, 400]
    assert curve["step"].tolist() == [20, 40, 60, 80]
    with pytest.raises(InputError, match=r"metric is 'acuracy', which no evaluation"):
        load.curves(trials, "acuracy")


def test_gradient_statistics_of_no_directory_are_refused(tmp_path):
    write_trial(tmp_path / "run", [0.9])
    assert gradients.gradient_statistics(tmp_path / "run").empty
    with pytest.raises(InputError, match="no such directory"):
        gradients.gradient_statistics(tmp_path / "rum")


def test_single_runs_group_by_echo_settings_and_data_seed(tmp_path):
    echo = {"insertion": "after_batching", "factor": 4.0, "shuffle_buffer": 0}
    write_trial(tmp_path / "a", [0.1, 0.2, 0.3, 0.9])
    write_trial(tmp_path / "b", [0.1, 0.9], settings=config(echo=echo))
    write_trial(tmp_path / "c", [0.9], settings=config(echo=echo, seed={"data": 1, "model": 0}))
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "config.json").write_text("{}")
    loaded = load.read([tmp_path / "a", tmp_path / "b", tmp_path / "c", tmp_path / "d"])
    table = scores.condition_scores(loaded.trials, loaded.study)
    assert table["label"].tolist() == ["no echoing, batch 10", "batch echoing, e = 4, batch 10"]
    assert table["searches"].tolist() == [1, 2]
    assert table["ratio_low"].tolist() == [1.0, 0.5]  # search 0 alone has both
    assert table["ratio_count"].tolist() == [1, 1]
    assert [path.name for path, _ in loaded.set_aside] == ["d"]
    assert len(load.read(tmp_path).trials) == 3  # found below one directory just the same


def test_copies_an_epoch_apart_are_another_condition_than_the_baseline(tmp_path):
    for name, times in (("plain", 1), ("spaced", 2)):
        write_trial(tmp_path / name, [0.9], settings=config(dataset={"spaced_epochs": times}))
    write_trial(tmp_path / "earlier", [0.9])  # before there was such a field
    study = load.read(tmp_path).study
    plain, spaced = (condition.label for condition in study.conditions)
    assert (plain, study.baseline) == ("no echoing, batch 10",) * 2
    assert spaced == "no echoing, batch 10, 2 copies an epoch apart"


def test_unlike_runs_are_a_caveat_and_form_no_pairs(tmp_path):
    echo = {"insertion": "before_augmentation", "factor": 2.0, "shuffle_buffer": 50}
    small = {"model": {"depth": 0}, "augmentation": {"pad": 1}, "dataset": {"cache_dir": "/a"}}
    other = {"dataset": {"cache_dir": "/b", "spaced_epochs": 1}, "budget": {"fresh_examples": 9}}
    for name, changes in (
        ("base", small),
        ("same", small | other | {"echo": echo}),
        ("unlike", small | {"echo": echo, "model": {"depth": 8}}),
        ("unlike_base", small | {"dataset": {"validation_split": "train[90%:]"}}),
        ("noisy", small | {"echo": echo, "log_every_steps": 7}),
        ("on_device", small | {"echo": echo, "augment_on": "device"}),
        ("on_host", small | {"augment_on": "host"}),
        ("tested", small | {"echo": echo, "dataset": {"test_split": "test"}}),
        ("untested", small | {"dataset": {"test_split": ""}}),
        ("streams", small | {"echo": echo | {"streams": 1}}),
        ("more_streams", small | {"echo": echo | {"streams": 4, "placement": "device"}}),
    ):
        write_trial(tmp_path / name, [0.1, 0.9], settings=config(**changes))
    says = "Runs differ in more than echoing, batch size, optimizer, and seeds"
    for names, fields, number in (
        (["base", "same"], None, 1),
        (["base", "noisy"], None, 1),
        (["on_host", "on_device"], None, 1),
        (["untested", "tested"], None, 1),
        (["base", "unlike"], "(model.depth)", 0),
        (["base", "unlike", "same"], "(model.depth)", 1),
        (["streams", "more_streams"], "(echo.streams)", 0),
        (["base", "streams"], None, 1),
        (["unlike_base", "same"], None, 1),  # a record without the field is older than it
    ):
        loaded = load.read([tmp_path / name for name in names])
        notes = [note for note in caveats.find(loaded) if note.startswith("Runs differ")]
        assert [says + f" {fields}, so" in note for note in notes] == ([True] if fields else [])
        assert len(uncertainty.pairs(loaded.trials, loaded.study)) == number, names


def test_single_runs_of_different_metrics_are_refused(tmp_path):
    other = {"metric": "loss", "value": 1.0, "mode": "below"}
    write_trial(tmp_path / "a", [0.1])
    write_trial(tmp_path / "b", [2.0], target=other, settings=config(target=other))
    for target in (None, 0.5):
        with pytest.raises(InputError, match=r"different targets .* one metric at a time"):
            load.read(tmp_path, target)


def test_a_run_that_is_given_by_several_paths_counts_once(tmp_path, monkeypatch):
    write_trial(tmp_path / "out" / "a", [0.1])
    (tmp_path / "link").symlink_to(tmp_path / "out" / "a")
    monkeypatch.chdir(tmp_path)
    for paths in (["out", "out/a"], ["out", tmp_path / "link"], ["out/a", tmp_path / "out" / "a"]):
        assert len(load.read(paths).trials) == 1


def test_single_runs_of_different_data_are_refused(tmp_path):
    for name, hashed in (("a", "12ab"), ("b", "12ab"), ("c", None), ("d", "34cd")):
        dataset = {"name": "digits"} | ({"fingerprint": hashed} if hashed else {})
        write_trial(tmp_path / name, [0.1], dataset=dataset)
    assert len(load.read([tmp_path / name for name in "abc"]).trials) == 3
    says = r"data sets \(digits, fingerprint 12ab; digits, fingerprint 34cd\); analyze .* at a time"
    with pytest.raises(InputError, match=says):
        load.read(tmp_path)


def test_runs_of_different_targets_are_compared_at_a_given_one(tmp_path):
    harder = TARGET | {"value": 0.95}
    echo = {"insertion": "before_augmentation", "factor": 2.0, "shuffle_buffer": 0}
    write_trial(tmp_path / "a", [0.1, 0.7, 0.9])
    settings = config(target=harder, echo=echo)
    write_trial(tmp_path / "b", [0.8, 0.9, 0.96], target=harder, settings=settings)
    with pytest.raises(InputError, match=r"different targets .* give --target=X"):
        load.read(tmp_path)
    for target, ratio in ((0.7, 0.5), (0.9, 2 / 3)):
        loaded = load.read([tmp_path / "a", tmp_path / "b"], target)
        table = scores.condition_scores(loaded.trials, loaded.study)
        assert table["ratio_low"].tolist() == pytest.approx([1, ratio])
    # the run that stopped at 0.9 says nothing about 0.95
    loaded = load.read([tmp_path / "a", tmp_path / "b"], 0.95)
    assert "1 counted trial ended on reaching an easier target" in " ".join(caveats.find(loaded))
    assert tables.title(loaded.study).startswith("a, b: fresh examples to reach 95%")


def test_a_run_of_a_smaller_budget_might_have_reached_before_the_best_one(tmp_path):
    for name, values, fresh in (("a", [0.1, 0.1], 200), ("b", [0.1, 0.1, 0.1, 0.9], 400)):
        write_trial(tmp_path / name, values, settings=config(budget={"fresh_examples": fresh}))
    loaded = load.read(tmp_path)
    ends = [f"{measure}_{end}" for measure in scores.MEASURES[:3] for end in ("low", "high")]
    (row,) = scores.search_scores(loaded.trials, loaded.study)[ends].to_numpy().tolist()
    assert row == [200, 400, 20, 40, 8.0, 8.0]
    table = scores.condition_scores(loaded.trials, loaded.study)
    assert tables.condition_rows(table, loaded.study)[0][3] == "200 to 400"


def test_a_run_of_larger_batches_and_the_same_budget_bounds_no_steps(tmp_path):
    write_trial(tmp_path / "a", [0.1] * 3 + [0.9])
    write_trial(tmp_path / "b", [0.1] * 10, factor=0.25)  # batches of 40
    loaded = load.read(tmp_path)
    (row,) = scores.search_scores(loaded.trials, loaded.study).itertuples()
    assert (row.fresh_examples_low, row.steps_low, row.steps_high) == (400, 40, 40)


def test_seconds_of_trials_that_shared_the_machine_are_marked_and_not_compared(tmp_path):
    for sharing in ({"lanes": 8}, {"workers": 2}):
        root = write_study(tmp_path / str(sharing), [BASELINE, BEFORE], SMALL)
        alone = scores.condition_scores(*_trials_and_study(root))
        assert tables.columns(alone, load.read(root).study)[-1] == "train seconds"
        assert "*" not in tables.text(load.read(root), alone)
        assert alone["seconds_ratio_count"].tolist() == [2, 2]
        for path in root.glob("before_e2/*/*/hparams.json"):
            records.write_json(path, records.read_json(path) | sharing)
        loaded = load.read(root)
        table = scores.condition_scores(loaded.trials, loaded.study)
        base, before = tables.condition_rows(table, loaded.study)
        assert (base[-1], before[-1]) == ("16.0", ">14.0*")
        assert table["seconds_ratio_count"].tolist() == [2, 0]
        assert table["ratio_count"].tolist() == [2, 2]
        assert "marked *" in " ".join(caveats.find(loaded))
        assert "best_trial_curves_by_train_seconds" not in figures.of_study(loaded)


def test_seconds_are_not_compared_with_those_of_a_baseline_that_shared(tmp_path):
    root = write_study(tmp_path / "s", [BASELINE, BEFORE], SMALL)

    def seconds_of(search, trial):
        path = root / "baseline" / search / trial / records.HPARAMS
        records.write_json(path, records.read_json(path) | {"workers": 2})
        table = scores.condition_scores(*_trials_and_study(root))
        assert table["ratio_count"].tolist() == [2, 2]
        return table["seconds_ratio_count"].tolist()

    assert seconds_of("0", "3") == [2, 2]  # it does not count
    assert seconds_of("1", "1") == [0, 0]


def _trials_and_study(root):
    loaded = load.read(root)
    return loaded.trials, loaded.study


def test_effect_without_retuning_keeps_the_hyperparameters_of_the_best_baseline(tmp_path):
    values = {
        ("baseline", 0, 0): [0.1] * 5 + [0.9],  # 600: the best
        ("baseline", 0, 1): [0.1] * 7 + [0.9],
        ("before_e2", 0, 0): [0.1] * 4 + [0.9],  # 500 at the baseline's best point
        ("before_e2", 0, 1): [0.9],  # 100 if tuned
        ("baseline", 1, 0): [0.1] * 9 + [0.9],
        ("baseline", 1, 1): [0.1] * 3 + [0.9],  # 400: the best
        ("before_e2", 1, 0): [0.1] * 3 + [0.9],
        ("before_e2", 1, 1): ([0.1], "diverged"),  # more than the budget of 1,000
    }
    loaded = load.read(write_study(tmp_path / "s", [BASELINE, BEFORE], values))
    base, before = scores.condition_scores(loaded.trials, loaded.study).to_dict("records")
    assert tables.effect_text(base, scores.UNTUNED) == "1.00"
    assert (before["untuned_min"], before["untuned_max_low"]) == (500 / 600, 1000 / 400)
    assert (before["untuned_low"], before["untuned_high"]) == ((500 / 600 + 2.5) / 2, math.inf)
    assert tables.effect_text(before, "ratio") == "0.58 [0.17, 1.00]"
    assert tables.effect_text(before, scores.UNTUNED) == "≥1.67 [0.83, >2.50]"


def test_effect_without_retuning_is_bounded_by_what_its_trial_had_used(tmp_path):
    values = {
        ("baseline", 0, 0): [0.1] * 3 + [0.97],
        ("before_e2", 0, 0): [0.1, 0.92],  # it stopped at the easier target
        ("baseline", 1, 0): [0.97],
        ("before_e2", 1, 0): ([0.1], "failed"),  # which says nothing of its setting
    }
    root = write_study(tmp_path / "s", [BASELINE, BEFORE], values)
    loaded = load.read(root, target=0.95)
    _, before = scores.condition_scores(loaded.trials, loaded.study).to_dict("records")
    assert before["untuned_count"] == 1
    assert (before["untuned_low"], before["untuned_high"]) == (200 / 400, math.inf)


def test_effect_without_retuning_has_a_trial_that_failed_after_an_easier_target(tmp_path):
    values = {
        ("baseline", 0, 0): [0.1, 0.7, 0.9],
        ("before_e2", 0, 0): ([0.7, 0.8], "failed"),
    }
    root = write_study(tmp_path / "s", [BASELINE, BEFORE], values)
    for target, effects in ((0.7, (1, 0.5, 0.5)), (0.85, (0,))):
        loaded = load.read(root, target)
        _, before = scores.condition_scores(loaded.trials, loaded.study).to_dict("records")
        names = ["untuned_count", "untuned_low", "untuned_high"]
        assert tuple(before[name] for name in names)[: len(effects)] == effects


def test_optimum_at_the_boundary_is_a_caveat(tmp_path):
    space = [{"field": "optimizer.learning_rate", "scale": "log", "min": 5e-6, "max": 0.0305}]
    loaded = load.read(write_study(tmp_path / "s", [BASELINE, BEFORE], SMALL, search_space=space))
    (note,) = [each for each in caveats.find(loaded) if each.startswith("Optimum")]
    # Best: 0.03 and 0.01 (baseline), 0.01 and 0.02 (before_e2); only the largest lie near the end.
    assert "max (0.0305) of optimizer.learning_rate" in note
    assert "baseline/0 (0.03), before_e2/1 (0.02)." in note


def test_caveats_of_a_small_study(small):
    text = " ".join(caveats.find(load.read(small)))
    assert "before augmentation, e = 2 (1 of 2)" in text
    assert "Small study" in text
    assert "in 2 of 2 conditions, most in before augmentation, e = 2 (25%)" in text
    assert "range but no interval" in text
    assert "hardware" not in text


def test_pairs_that_a_diverged_trial_leaves_out_are_a_caveat(tmp_path):
    lost = {("baseline", 0, 0), ("before_e2", 0, 0), ("before_e2", 0, 1), ("before_e2", 1, 1)}
    places = [(name, s, k) for name in ("baseline", "before_e2") for s in (0, 1) for k in (0, 1)]
    trials = {place: ([0.1], "diverged") if place in lost else [0.1, 0.9] for place in places}
    loaded = load.read(write_study(tmp_path / "s", [BASELINE, BEFORE], trials))
    (said,) = (text for text in caveats.find(loaded) if "forms no pair" in text)
    assert said.endswith("diverged: before augmentation, e = 2 (2, its baseline 0).")
    without = {place: [0.1, 0.9] for place in places}
    loaded = load.read(write_study(tmp_path / "t", [BASELINE, BEFORE], without))
    assert not [text for text in caveats.find(loaded) if "forms no pair" in text]


def test_a_trial_that_diverged_after_an_easier_target_forms_its_pair(tmp_path):
    trials = {("baseline", 0, k): [0.1, 0.1, 0.85, 0.95] for k in range(3)}
    trials |= {("before_e2", 0, k): ([0.1, 0.85, 0.1], "diverged") for k in range(3)}
    root = write_study(tmp_path / "s", [BASELINE, BEFORE], trials)
    assert "forms no pair" in " ".join(caveats.find(load.read(root)))
    easy = load.read(root, target=0.85)
    assert "forms no pair" not in " ".join(caveats.find(easy))
    assert easy.trials["counted"].sum() == 4  # two of each are planned


def test_ratios_to_a_baseline_that_never_reached_the_target_are_bounds(tmp_path):
    values = {("baseline", 0, 0): [0.1] * 4, ("before_e2", 0, 0): [0.1, 0.9]}
    loaded = load.read(write_study(tmp_path / "one", [BASELINE, BEFORE], values, searches=1))
    table = scores.condition_scores(loaded.trials, loaded.study)
    assert tables.effect_text(table.to_dict("records")[1], "ratio").startswith("≤0.50")
    assert "no echoing (0 of 1)" in " ".join(caveats.find(loaded))


def resumed_trial(directory, *resumed, hardware=ORIGIN["hardware"]):
    """The caveats on the origin of a trial that began at commit aaa."""
    write_trial(directory, [0.1, 0.9], commit="aaa", hardware=hardware, resumed=list(resumed))
    return caveats._machines(load.load(directory))


def test_a_trial_that_resumed_at_another_commit_has_mixed_commits(tmp_path):
    same, other = ORIGIN | {"commit": "aaa", "fields": {"log_every_steps": 3}}, ORIGIN
    assert not [*resumed_trial(tmp_path / "same", same)]
    says = "Trials ran at different commits: aaa, bbb."
    assert [*resumed_trial(tmp_path / "other", same, other | {"step": 60})] == [says]
    # it started over at the other commit, before its first checkpoint
    assert not [*resumed_trial(tmp_path / "again", other | {"step": 0})]


def test_trials_of_two_studies_form_no_pairs_with_other_optimizers(tmp_path):
    for name in ("sgd", "again", "adamw"):
        optimizer = {"name": "adamw" if name == "adamw" else "sgd"}
        condition = BASELINE if name == "sgd" else BEFORE
        outcomes = {(condition["name"], 0, trial): [0.9] for trial in range(2)}
        settings = {"batch_size": 10, "optimizer": optimizer}
        write_study(tmp_path / name, [condition], outcomes, resolved_config=settings)
    for other, number in (("again", 2), ("adamw", 0)):
        loaded = load.read([tmp_path / "sgd" / "baseline", tmp_path / other / "before_e2"])
        assert len(uncertainty.pairs(loaded.trials, loaded.study)) == number


def test_trials_on_different_processors_are_a_caveat(tmp_path):
    cpu = {"device_kind": "cpu", "devices": 1, "cpu_count": 2, "cpu": "Xeon"}
    for name, hardware in (("a", cpu), ("b", cpu | {"cpu": "EPYC"}), ("c", cpu)):
        write_trial(tmp_path / name, [0.1, 0.9], hardware=hardware)
    (said,) = caveats._machines(load.load(tmp_path))
    assert "1 x cpu (2 cores of Xeon), 1 x cpu (2 cores of EPYC)" in said


def test_caveats_list_a_dozen_searches_and_count_the_others(tmp_path):
    space = [{"field": "optimizer.learning_rate", "scale": "log", "min": 0.01, "max": 1.0}]
    for number in (12, 13):
        values = {("baseline", search, 0): [0.9] for search in range(number)}
        root = tmp_path / str(number)
        write_study(root, [BASELINE], values, search_space=space, searches=number)
        fewer, boundary = (
            next(caveat for caveat in caveats.find(load.read(root)) if caveat.startswith(start))
            for start in ("Some searches have fewer", "Optimum at the boundary")
        )
        assert "baseline/11 (1)" in fewer
        assert "baseline/11 (0.01)" in boundary
        for caveat in (fewer, boundary):
            assert ("and 1 more" in caveat) == (number == 13)
            assert "baseline/12" not in caveat


@pytest.fixture(scope="module")
def reported(small_files, tmp_path_factory):
    """The small study at an easier target, the directory of its report, and the figures there."""
    loaded = load.read(small_files, target=0.85)
    out = tmp_path_factory.mktemp("report")
    return loaded, out, report.write(loaded, out, small_files)


@pytest.mark.long
def test_csv_tables_read_back_as_they_were(reported):
    loaded, out, _ = reported
    back = pd.read_csv(out / "scores.csv")
    table = scores.condition_scores(loaded.trials, loaded.study)
    pd.testing.assert_frame_equal(back, table, check_dtype=False)
    trials = pd.read_csv(out / "trials.csv")
    assert trials["path"].tolist()[0] == "baseline/0/0"
    columns = ["fresh_examples_to_target", "best_value", "counted", "optimizer.learning_rate"]
    pd.testing.assert_frame_equal(trials[columns], loaded.trials[columns], check_dtype=False)


def test_report_states_the_protocol(reported):
    _, out, drawn = reported
    text = (out / "report.md").read_text()
    assert "| before augmentation, e = 2 | 50 | 1/2 |" in text.replace("\N{NO-BREAK SPACE}", " ")
    for fact in (
        "configs/cifar10.py:mini",
        "abc1234",
        "jax 0.10.2",
        "1,000 fresh examples per trial",
    ):
        assert fact in text
    assert "trained for: 90% validation accuracy" in text
    assert "(fresh_examples_to_target.png)" in text
    assert str(out.parent) not in text
    names = {path.name for path in out.iterdir()}
    assert {"report.md", "report.html", "scores.csv", "paired.csv", "trials.csv"} <= names
    assert {f"{name}.pdf" for name in drawn} | {f"{name}.png" for name in drawn} <= names
    assert len(names) == 5 + 2 * len(drawn)
    assert "notes" not in text


@pytest.mark.long
def test_same_records_give_the_same_files(reported, small_files, tmp_path):
    report.write(load.read(small_files, target=0.85), tmp_path, small_files)
    for path in reported[1].iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name
