"""From records on disk to scores: values computed by hand, other targets, what is set aside."""

import math
import shutil

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis import bounds, caveats, costs, figures, load, report, scores, tables, uncertainty
from runs import records
from runs.cli import InputError
from tests.helpers.written_studies import (
    BASELINE,
    BEFORE,
    SMALL,
    TARGET,
    analyzed,
    change,
    config,
    setting,
    study_of,
    write_study,
)

ENDS = ["fresh_examples_low", "fresh_examples_high"]
INF = math.inf


@pytest.fixture(scope="module")
def small_files(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("whole") / "small", [BASELINE, BEFORE], SMALL)


def test_one_row_per_trial(small):
    trials = load.read(small).trials
    assert len(trials) == len(SMALL)
    head = ["condition", "label", "insertion", "factor", "shuffle_buffer", "batch_size"]
    assert list(trials)[:9] == [*head, "search", "trial", "optimizer.learning_rate"]
    row = trials[(trials["condition"] == "before_e2") & (trials["trial"] == 2)].iloc[0]
    assert row["optimizer.learning_rate"] == pytest.approx(0.03)
    assert row["status"] == "reached"
    assert (row["factor"], row["shuffle_buffer"]) == (2.0, 50)
    for end in ("_to_target", ""):
        assert (row[f"fresh_examples{end}"], row[f"steps{end}"]) == (500, 100)
    assert (row["seconds_to_target"], row["train_seconds"]) == (10.0, 10.0)
    assert (row["best_value"], row["best_fresh_examples"]) == (0.9, 500)
    assert row["path"].endswith("small/before_e2/0/2")
    # The first two that neither diverge nor fail count.
    counted = trials.set_index(["condition", "search", "trial"])["counted"]
    assert counted["baseline", 0].tolist() == [False, True, True, False]
    assert counted["before_e2", 0].tolist() == [True, False, True]


def test_scores_by_hand(small):
    loaded, searches, table = analyzed(small)
    assert searches[ENDS].to_numpy().tolist() == [[600] * 2, [1000] * 2, [400] * 2, [1000, INF]]
    assert searches["resolution"].tolist()[:3] == [1 / 6, 1 / 10, 1 / 4]
    assert loaded.trials.loc[searches["leader"][:3], "trial"].tolist() == [2, 0, 0]
    base, before = table.itertuples()
    assert (base.searches, base.searches_reached) == (2, 2)
    assert (base.fresh_examples_low, base.fresh_examples_high) == (800, 800)
    assert (base.fresh_examples_min, base.fresh_examples_max) == (600, 1000)
    assert (base.ratio_low, base.ratio_high) == (1, 1)
    assert base.share_diverged == pytest.approx(1 / 6)
    assert base.share_reached == pytest.approx(3 / 4)
    assert (before.searches, before.searches_reached) == (2, 1)
    assert (before.trials_counted, before.trials_censored, before.trials_diverged) == (4, 2, 0)
    # Search 1 ended at 1,000 without reaching, where the baseline needed 1,000: at least 1.
    assert (before.fresh_examples_low, before.fresh_examples_high) == (700, INF)
    assert (before.fresh_examples_min, before.fresh_examples_max_low) == (400, 1000)
    assert (before.ratio_low, before.ratio_high) == (pytest.approx((400 / 600 + 1) / 2), INF)
    assert (before.ratio_min, before.ratio_max_low) == pytest.approx((400 / 600, 1))
    assert (before.ideal_ratio, before.ideal_fresh_examples) == (0.5, 400)
    assert (before.steps_min, before.seconds_min) == (80, 8.0)
    assert (before.steps_max_low, before.seconds_max_low) == (200, 20.0)


def test_another_target_is_scored_from_the_curves(small):
    easy = load.read(small, 0.85).trials.set_index(["condition", "search", "trial"])
    assert easy.loc[("before_e2", 0, 0), "fresh_examples_to_target"] == 300
    assert easy.loc[("before_e2", 0, 0), "steps_to_target"] == 60
    assert easy.loc[("before_e2", 0, 0), "seconds_to_target"] == 6.0
    hard, searches, _ = analyzed(small, 0.94)
    assert hard.trials["fresh_examples_to_target"].dropna().tolist() == [600]
    assert any("ended on reaching" in caveat for caveat in caveats.find(hard))
    # Trials that stopped at the easier target are censored there, beside one that reached too:
    # trial 1 of baseline/0 ended at 800 and trial 2 reached at 600; in baseline/1 trial 0 ended at
    # 1,000 and so did its exhausted one.
    ends = searches[ENDS].to_numpy().tolist()
    assert ends == [[600, 600], [1000, INF], [400, INF], [1000, INF]]


def test_a_trial_that_diverged_after_an_easier_target_counts_there(tmp_path):
    trials = {
        ("baseline", 0, 0): ([0.1, 0.85, 0.1], "diverged"),
        ("baseline", 0, 1): [0.1] * 4 + [0.95],
        ("baseline", 0, 2): [0.1, 0.1, 0.95],
        ("before_e2", 0, 1): [0.1, 0.1, 0.85, 0.95],
        ("before_e2", 0, 2): [0.1, 0.1, 0.95],
        ("before_e2", 0, 0): [0.1, 0.1, 0.95],
    }
    root = write_study(tmp_path / "s", [BASELINE, BEFORE], trials)
    planned, searches, _ = analyzed(root)
    assert planned.trials["counted"].tolist()[:3] == [False, True, True]
    assert searches["diverged"].tolist() == [1, 0]
    easy, searches, _ = analyzed(root, 0.85)
    assert easy.trials["counted"].tolist()[:3] == [True, True, False]  # two trials are planned
    assert (searches["fresh_examples_low"][0], searches["diverged"][0]) == (200, 0)
    # A best value is of the whole budget, which that run did not survive.
    values = write_study(tmp_path / "v", [BASELINE, BEFORE], trials, score="best_value")
    assert load.read(values, 0.85).trials["counted"].tolist()[:3] == [False, True, True]


@pytest.mark.parametrize(("mode", "best"), [("above", [0.8, 0.9]), ("below", [0.3, 0.2])])
def test_study_of_final_quality_scores_best_values(tmp_path, mode, best):
    target = TARGET | {"mode": mode, "value": 2.0 if mode == "above" else -1.0}
    values = {("baseline", 0, 0): [0.5, 0.7, 0.6], ("baseline", 0, 1): [0.3, 0.8, 0.4]}
    values |= {("before_e2", 0, k): [0.4, 0.9, 0.2] for k in (0, 1)}
    changes = {"target": target, "score": "best_value", "searches": 1}
    loaded, _, table = analyzed(write_study(tmp_path / "s", [BASELINE, BEFORE], values, **changes))
    assert table["best_value_low"].tolist() == best
    assert table["difference_low"].tolist() == pytest.approx([0, best[1] - best[0]])
    assert scores.best_trials(loaded.trials, loaded.study)["trial"].tolist() == [1, 0]
    expected = "small: best validation accuracy within 1,000 fresh examples"
    assert tables.title(loaded.study) == expected
    assert "never reached" not in " ".join(caveats.find(loaded))


def test_study_of_seconds_scores_the_fastest_trial(tmp_path):
    values = {("baseline", 0, 0): [0.1, 0.9], ("baseline", 0, 1): [0.1, 0.1, 0.9]}
    root = write_study(tmp_path / "s", [BASELINE], values, score="seconds")
    change(root / "baseline" / "0" / "1" / "result.json", seconds_to_target=1.0)
    loaded, _, table = analyzed(root)
    (row,) = table.itertuples()
    assert (row.seconds_low, row.fresh_examples_low) == (1.0, 300)
    assert "1.0" in tables.conditions(table, loaded.study).iloc[0].tolist()


def test_each_batch_size_has_its_own_baseline(tmp_path):
    conditions = [
        setting(f"e{e}_b{b}", "none" if e == 1 else "before_augmentation", e, batch_size=b)
        for b in (10, 40)
        for e in (1, 4)
    ]
    root = study_of(tmp_path / "s", conditions, lambda c: 16 if "b40" in c["name"] else 8)
    table = analyzed(root)[2].set_index("condition")
    assert table.loc["e4_b40", "baseline"] == "e1_b40"
    assert table["ratio_low"].tolist() == [1, 1, 1, 1]
    median = table.loc["e1_b40", "fresh_examples_low"]
    assert table.loc["e4_b40", "ideal_fresh_examples"] == median / 4


@pytest.mark.parametrize("hparams", [None, {"optimizer.momentum": None}])
def test_a_trial_without_hyperparameters_is_analyzed(hparams, tmp_path):
    axis = {"field": "optimizer.momentum", "scale": "log_one_minus", "min": 0.1, "max": 0.5}
    root = write_study(tmp_path / "s", [BASELINE], {}, search_space=[axis])
    (root / "baseline" / "0" / "0").mkdir(parents=True)
    if hparams:
        records.write_json(root / "baseline" / "0" / "0" / records.HPARAMS, {"hparams": hparams})
    loaded, _, table = analyzed(root)
    assert "no echoing" in tables.text(loaded, table)
    assert "not ended" in " ".join(caveats.find(loaded))


def test_unfinished_and_preempted_trials_do_not_count_yet(tmp_path):
    trials = {
        ("baseline", 0, 0): ([0.95], "unfinished"),
        ("baseline", 0, 1): ([0.2], "preempted"),
        ("baseline", 0, 2): [0.1, 0.95],
        ("baseline", 1, 0): ([0.1], "unfinished"),
    }
    loaded, searches, table = analyzed(write_study(tmp_path / "s", [BASELINE, BEFORE], trials))
    assert loaded.trials["counted"].tolist() == [False, False, True, False]
    text = " ".join(caveats.find(loaded))
    for said in ("do not count yet: 3", "baseline/0 (1)", "before augmentation, e = 2 (0)"):
        assert said in text
    assert table["searches"].tolist() == [1, 0]
    done, running = searches.to_dict("records")
    for measure in scores.MEASURES:  # a search in which no trial has ended has no score yet
        assert not math.isnan(done[f"{measure}_low"])
        assert math.isnan(running[f"{measure}_low"])
        assert math.isnan(running[f"{measure}_high"])


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
    whole = load.read(small_files).trials.drop(columns=["path", "counted"])
    loaded, _, table = analyzed(directory)
    assert "no echoing" in tables.text(loaded, table)
    rows = loaded.trials.drop(columns=["path", "counted"])
    if loaded.set_aside:
        assert [place for place, _ in loaded.set_aside] == [path.parent]
        assert str(path.parent) in (loaded.warning() or "")
        assert str(path.parent) in " ".join(caveats.find(loaded))
        own = (whole["condition"] == "baseline") & (whole["search"] == 0) & (whole["trial"] == 1)
        whole = whole[~own]
    pd.testing.assert_frame_equal(rows, whole.reset_index(drop=True))


def test_an_unfinished_trial_without_its_configuration_is_set_aside(tmp_path):
    root = write_study(tmp_path / "s", [BASELINE], {("baseline", 0, 0): ([], "unfinished")})
    trial = root / "baseline" / "0" / "0"
    assert (trial / records.METRICS).stat().st_size == 0  # as before the first record
    assert_set_aside(load.read(root), {})
    (trial / records.CONFIG).unlink()
    with pytest.raises(InputError, match=records.CONFIG):  # it has no other trial
        load.read(root)


def test_a_damaged_plan_is_refused(small):
    path = small / "study.json"
    content = path.read_bytes()
    for damaged in (content[:-20], content.replace(b"0.9", b"0.8"), b"[]", b""):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"study\.json"):
            load.read(small)


@pytest.mark.parametrize(
    ("place", "reason"),
    [("baseline/0/9", "trial 2"), ("baseline/9/2", "search 0"), ("before_e2/0/9", "'baseline'")],
)
def test_a_copy_of_a_trial_is_set_aside(small, place, reason):
    shutil.copytree(small / "baseline" / "0" / "2", small / place)
    loaded = load.read(small)
    assert_set_aside(loaded, {small / place: reason})
    assert len(loaded.trials) == len(SMALL)


RATE = {"learning_rate": 0.03}  # of baseline/0/2


@pytest.mark.parametrize(
    ("file", "fields", "reason"),
    [
        ("config.json", {"dataset": {"fingerprint": "34cd"}}, "fingerprint"),
        ("config.json", {"schema_version": 8}, "version 8"),
        ("config.json", {"config": config(batch_size=20, optimizer=RATE)}, "batch_size (20"),
        ("hparams.json", {"hparams": {"optimizer.learning_rate": 4.0}}, "learning_rate (0.03"),
    ],
)
def test_a_trial_that_is_not_of_its_study_is_set_aside(small, file, fields, reason):
    change(small / records.STUDY, dataset={"fingerprint": "12ab"})
    trial = small / "baseline" / "0" / "2"
    change(trial / file, **fields)
    assert_set_aside(load.read(small), {trial: reason})


def test_trials_of_a_condition_that_is_not_planned_are_set_aside(small):
    (small / "before_e2").rename(small / "before")
    loaded = load.read(small)
    assert len(loaded.set_aside) == 5
    assert all("study.json" in why for _, why in loaded.set_aside)


def assert_set_aside(loaded, reasons):
    assert [path for path, _ in loaded.set_aside] == list(reasons)
    for path, why in loaded.set_aside:
        assert reasons[path] in why
        assert f"{path} (" in (loaded.warning() or "")


def test_curves_hold_the_validation_records(small):
    trials = load.read(small).trials
    one = trials[(trials["condition"] == "before_e2") & (trials["search"] == 0)].head(1)
    curve = load.curves(one, "accuracy")
    assert curve["value"].tolist() == [0.1, 0.3, 0.85, 0.93]
    assert curve["fresh_examples"].tolist() == [100, 200, 300, 400]
    assert curve["step"].tolist() == [20, 40, 60, 80]
    with pytest.raises(InputError, match="acuracy"):
        load.curves(trials, "acuracy")


def test_a_value_that_is_not_finite_neither_reaches_nor_is_best(tmp_path):
    values = {("baseline", 0, 0): [0.5, math.nan, 0.4], ("baseline", 0, 1): [math.nan]}
    loaded, _, table = analyzed(write_study(tmp_path / "s", [BASELINE], values))
    assert loaded.trials["fresh_examples_to_target"].isna().all()
    assert table["best_value_low"].tolist() == [0.5]
    missing = load.curves(loaded.trials, "accuracy")["value"].isna()
    assert missing.tolist() == [False, True, False, True]


def test_a_trial_that_ended_earlier_might_have_reached_before_the_best_one(tmp_path):
    values = {("baseline", 0, 0): [0.1, 0.1], ("baseline", 0, 1): [0.1, 0.1, 0.1, 0.9]}
    root = write_study(tmp_path / "s", [BASELINE], values)
    loaded, searches, table = analyzed(root)
    ends = [f"{measure}_{end}" for measure in scores.MEASURES[:3] for end in ("low", "high")]
    assert searches[ends].to_numpy().tolist() == [[200, 400, 20, 40, 8.0, 8.0]]
    assert "200 to 400" in tables.conditions(table, loaded.study).iloc[0].tolist()
    # Of larger batches and the same budget, it bounds no steps.
    change(root / "baseline" / "0" / "0" / records.RESULT, fresh_examples=1000, step=25)
    (row,) = analyzed(root)[2].itertuples()
    assert (row.fresh_examples_low, row.steps_low, row.steps_high) == (400, 40, 40)


def test_trials_with_the_same_seeds_in_one_condition_form_no_pairs(small):
    loaded = load.read(small)
    alike = {"model_seed": 0, "optimizer.learning_rate": 0.1, "counted": True}
    trials = loaded.trials.assign(**alike)
    assert uncertainty.pairs(trials, loaded.study).empty
    assert len(uncertainty.pairs(trials[trials["trial"] == 0], loaded.study)) == 2


# --- Seconds and caveats


@pytest.mark.parametrize("sharing", [{"lanes": 8}, {"workers": 2}])
def test_seconds_of_trials_that_shared_the_machine_are_marked_and_not_compared(small, sharing):
    loaded, _, alone = analyzed(small)
    assert "*" not in tables.text(loaded, alone)
    assert {"MB read", "seconds", "core seconds"} <= set(costs.table(loaded))
    assert alone["seconds_ratio_count"].tolist() == [2, 2]
    for path in small.glob("before_e2/*/*/hparams.json"):
        change(path, **sharing)
    loaded, _, table = analyzed(small)
    seconds = tables.conditions(table, loaded.study)["train seconds"]
    assert seconds.tolist() == ["16.0", ">14.0*"]
    assert table["seconds_ratio_count"].tolist() == [2, 0]
    assert table["ratio_count"].tolist() == [2, 2]
    (note,) = [caveat for caveat in caveats.find(loaded) if "marked *" in caveat]
    assert {name for name in ("lanes", "workers") if f"({name})" in note} == {*sharing}
    assert "best_trial_curves_by_train_seconds" not in figures.of_study(loaded)
    assert list(costs.table(loaded)) == ["condition", "MB read", "MB read: ratio"]


@pytest.mark.parametrize(("place", "counts"), [("0/3", [2, 2]), ("1/1", [0, 0])])
def test_seconds_are_not_compared_with_those_of_a_baseline_that_shared(small, place, counts):
    change(small / "baseline" / place / records.HPARAMS, workers=2)  # the first does not count
    table = analyzed(small)[2]
    assert table["ratio_count"].tolist() == [2, 2]
    assert table["seconds_ratio_count"].tolist() == counts


def test_optimum_at_the_boundary_is_a_caveat(tmp_path):
    space = [{"field": "optimizer.learning_rate", "scale": "log", "min": 5e-6, "max": 0.0305}]
    loaded = load.read(write_study(tmp_path / "s", [BASELINE, BEFORE], SMALL, search_space=space))
    (note,) = [caveat for caveat in caveats.find(loaded) if caveat.startswith("Optimum")]
    # Best: 0.03 and 0.01 (baseline), 0.01 and 0.02 (before_e2); only the largest lie near the end.
    assert "max (0.0305) of optimizer.learning_rate" in note
    assert "baseline/0 (0.03), before_e2/1 (0.02)." in note


def test_caveats_of_a_small_study(small):
    text = " ".join(caveats.find(load.read(small)))
    for said in ("before augmentation, e = 2 (1 of 2)", "Small study", "no interval"):
        assert said in text
    assert "in 2 of 2 conditions, most in before augmentation, e = 2 (25%)" in text
    assert "hardware" not in text
    assert "Searches are missing" not in text


def test_ratios_to_a_baseline_that_never_reached_the_target_are_bounds(tmp_path):
    values = {("baseline", 0, 0): [0.1] * 4, ("before_e2", 0, 0): [0.1, 0.9]}
    root = write_study(tmp_path / "one", [BASELINE, BEFORE], values, searches=1)
    loaded, _, table = analyzed(root)
    assert tables.effect_text(table.to_dict("records")[1], "ratio").startswith("≤0.50")
    assert "no echoing (0 of 1)" in " ".join(caveats.find(loaded))


CPU = {"device_kind": "cpu", "devices": 1, "cpu_count": 2, "cpu": "Xeon"}
RESUMED = {"step": 40, "commit": "bbb", "packages": {}, "hardware": CPU, "fields": {}}


@pytest.mark.parametrize(
    ("trials", "said"),
    [
        ([{"resumed": [RESUMED | {"commit": "aaa"}]}], None),
        ([{"resumed": [RESUMED | {"commit": "aaa"}, RESUMED | {"step": 60}]}], "aaa, bbb"),
        ([{"resumed": [RESUMED | {"step": 0}]}], None),  # before its first checkpoint
        ([{}, {"hardware": CPU | {"cpu": "EPYC"}}], "2 cores of EPYC), 1 x cpu (2 cores of Xeon"),
    ],
)
def test_mixed_commits_and_machines_are_caveats(tmp_path, trials, said):
    values = {("baseline", 0, number): [0.1, 0.9] for number in range(len(trials))}
    root = write_study(tmp_path / "s", [BASELINE], values)
    for number, origin in enumerate(trials):
        origin = {"commit": "aaa", "hardware": CPU} | origin
        change(root / "baseline" / "0" / str(number) / records.CONFIG, **origin)
    notes = [note for note in caveats.find(load.read(root)) if "different" in note]
    assert [said in note for note in notes] == ([True] if said else [])


def test_caveats_list_a_dozen_searches_and_count_the_others(tmp_path):
    values = {("baseline", search, 0): [0.9] for search in range(13)}
    root = write_study(tmp_path / "s", [BASELINE], values, searches=13)
    (note,) = [note for note in caveats.find(load.read(root)) if "have fewer" in note]
    assert "baseline/11 (1), and 1 more" in note


# --- The report


def test_costs_are_those_of_the_best_trial_up_to_the_target(small):
    rows = costs.table(load.read(small)).set_index("condition")
    loaded = load.read(small)
    searches = scores.search_scores(loaded.trials, loaded.study).set_index(["label", "search"])
    table = scores.condition_scores(loaded.trials, loaded.study).set_index("label")
    for label, row in rows.iterrows():
        low, high = (table.loc[label, f"fresh_examples_{end}"] / 1000 for end in ("low", "high"))
        assert row["MB read"] == bounds.text(low, high, lambda value: f"{value:,.3g}")
        assert label == "no echoing" or row["MB read: ratio"].startswith(
            tables.effect_text(table.loc[label], "ratio").partition(" ")[0]
        )
    assert len(searches) == 2 * len(rows)


def test_costs_of_a_condition_without_trials_are_not_known(tmp_path):
    root = write_study(tmp_path / "s", [BASELINE, BEFORE], {("baseline", 0, 0): [0.95]})
    known, unknown = costs.table(load.read(root)).to_numpy().tolist()
    assert known[1:3] == ["0.1", "1.00"]
    assert set(unknown[1:]) == {"-"}


def test_published_records_and_those_without_bytes_have_no_costs(small):
    for result in small.glob("*/*/*/result.json"):
        change(result, bytes_read=None)
    assert costs.table(load.read(small)).empty


@pytest.mark.usefixtures("coarse_figures")
def test_report_has_the_protocol_and_every_number(small, tmp_path):
    loaded, out = load.read(small, target=0.85), tmp_path / "out"
    drawn = report.write(loaded, out, small)
    text = (out / "report.md").read_text().replace("\N{NO-BREAK SPACE}", " ")
    facts = ("| before augmentation, e = 2 | 50 | 1/2 |", "configs/cifar10.py:mini", "abc1234")
    facts += ("jax 0.10.2", "1,000 fresh examples per trial", "90% validation accuracy")
    for fact in (*facts, *(f"({name}.png)" for name in drawn)):
        assert fact in text
    assert str(tmp_path) not in text
    written = {"report.md", "scores.csv", "paired.csv", "trials.csv"}
    assert {path.name for path in out.iterdir()} == written | {f"{name}.png" for name in drawn}
    table = scores.condition_scores(loaded.trials, loaded.study)
    pd.testing.assert_frame_equal(pd.read_csv(out / "scores.csv"), table, check_dtype=False)
    trials = pd.read_csv(out / "trials.csv")
    assert trials["path"].tolist()[0] == "baseline/0/0"
    columns = ["fresh_examples_to_target", "best_value", "counted", "optimizer.learning_rate"]
    pd.testing.assert_frame_equal(trials[columns], loaded.trials[columns], check_dtype=False)


@pytest.mark.long
def test_same_records_give_the_same_files(small, tmp_path):
    for name in ("one", "other"):
        report.write(load.read(small), tmp_path / name, small)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes(), path.name
