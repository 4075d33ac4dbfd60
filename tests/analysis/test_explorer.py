"""The interactive part of report.html: its numbers are those of the tables at each target."""

import pathlib

import pandas.testing
import pytest

from analysis import explorer, load, report, scores, tables, uncertainty
from runs import records
from tests.helpers.written_studies import (
    BASELINE,
    BEFORE,
    SMALL,
    TARGET,
    config,
    setting,
    write_study,
    write_trial,
)

AFTER = setting("after_e2", "after_augmentation", 2.0)


@pytest.fixture(params=["above", "below"])
def study(request, tmp_path):
    sign = 1 if request.param == "above" else -1
    trials = {
        key: ([sign * x for x in outcome[0]], outcome[1])
        if isinstance(outcome, tuple)
        else [sign * x for x in outcome]
        for key, outcome in SMALL.items()
    }
    target = TARGET | {"value": sign * 0.9, "mode": request.param}
    return write_study(tmp_path / "s", [BASELINE, BEFORE, AFTER], trials, target=target)


def tables_at(directory, target, measures):
    """The tables, by measure, that the command would print the numbers of."""
    loaded = load.read(directory, target)
    conditions = scores.condition_scores(loaded.trials, loaded.study)
    effects = uncertainty.paired_effects(
        uncertainty.pairs(loaded.trials, loaded.study), loaded.study
    )
    return [tables.at_target(conditions, effects, loaded.study, m["name"]) for m in measures]


def test_judging_again_gives_what_reading_at_the_target_gives(study):
    loaded = load.read(study)
    evaluations = load.curves(loaded.trials, "accuracy")
    sign = 1 if loaded.study.target.mode == "above" else -1
    for value in (0.05, 0.1, 0.5, 0.85, 0.9, 0.93, 2.0):
        judged = load.judged_at(loaded, evaluations, sign * value)
        read = load.read(study, sign * value)
        pandas.testing.assert_frame_equal(judged.trials, read.trials)
        assert judged.study == read.study


@pytest.mark.long
def test_tables_are_those_of_reading_at_each_target(study):
    data = explorer.data(load.read(study))
    assert data is not None
    values = [target["value"] for target in data["targets"]]
    sign = 1 if data["above"] else -1
    assert values == sorted(values, reverse=not data["above"])
    assert len(values) > 5
    assert values[data["start"]] == sign * 0.9
    for target in data["targets"]:
        shown = [measure["table"] for measure in target["measures"]]
        assert shown == tables_at(study, target["value"], data["measures"])


@pytest.mark.long
def test_curves_decide_where_each_trial_reaches_each_target(study):
    data = explorer.data(load.read(study))
    for target in data["targets"]:
        trials = load.load(study, target["value"])
        for row, trial in zip(trials.to_dict("records"), data["trials"], strict=True):
            hits = [
                evaluation
                for evaluation in trial["curve"]
                if (evaluation[3] - target["value"]) * (1 if data["above"] else -1) >= 0
            ]
            expected = row["fresh_examples_to_target"]
            assert [hit[0] for hit in hits[:1]] == ([] if pandas.isna(expected) else [expected])


@pytest.mark.long
def test_trials_that_do_not_count_are_named_at_each_target(study):
    data = explorer.data(load.read(study))
    assert data is not None
    for target in data["targets"][::4]:
        trials = load.load(study, target["value"])
        counted = [index not in target["uncounted"] for index in range(len(trials))]
        assert counted == trials["counted"].tolist()


def test_scores_of_which_nothing_is_known_have_no_position(tmp_path):
    trials = {("baseline", 0, 0): [0.1, 0.9], ("before_e2", 0, 0): ([0.1, 0.2], "diverged")}
    data = explorer.data(load.read(write_study(tmp_path / "s", [BASELINE, BEFORE], trials)))
    assert data is not None
    scored = data["targets"][data["start"]]["measures"][0]
    assert scored["table"][2][2] == "not known"
    assert scored["conditions"][1][:2] == [None, None]
    assert [search[2] for search in scored["searches"]] == [200, None]


@pytest.mark.slow
def test_many_trials_are_not_explored(study, monkeypatch):
    loaded = load.read(study)
    monkeypatch.setattr(explorer, "MAX_TRIALS", len(loaded.trials))
    assert explorer.data(loaded) is not None
    monkeypatch.setattr(explorer, "MAX_TRIALS", len(loaded.trials) - 1)
    assert explorer.data(loaded) is None


def test_page_without_an_evaluation_has_no_interactive_part(tmp_path):
    root = write_study(tmp_path / "s", [BASELINE], {("baseline", 0, 0): ([], "failed")})
    assert explorer.data(load.read(root)) is None
    page = report.html("title", "# title\n\n## part", {}, None)
    assert "script-src 'none'" in page
    assert "<script" not in page
    assert "<h2>part</h2>" in page


@pytest.fixture
def browser():
    pytest.importorskip("selenium")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for argument in ("--headless", "--no-sandbox", "--window-size=1000,1400"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = "/usr/bin/chromium"
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


def opened(browser, directory, path: pathlib.Path):
    loaded = load.read(directory)
    page = report.html("a study", "# a study\n\n## part", {}, explorer.data(loaded))
    path.write_text(page)
    browser.get(path.as_uri())


def cells(browser):
    """The table that the page shows."""
    return browser.execute_script(
        "return [...document.querySelectorAll('#scores-table tr')]"
        ".map(row => [...row.cells].map(cell => cell.textContent))"
    )


def slide_to(browser, index):
    browser.execute_script(
        "const slider = document.getElementById('target'); slider.value = arguments[0];"
        "slider.dispatchEvent(new Event('input'))",
        index,
    )


@pytest.mark.extras
def test_browser_shows_the_numbers_of_the_tables(study, browser, tmp_path):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    opened(browser, study, tmp_path / "report.html")
    data = explorer.data(load.read(study))
    for index, target in enumerate(data["targets"]):
        slide_to(browser, index)
        assert browser.find_element(By.ID, "target-text").text == target["text"]
        for number, table in enumerate(tables_at(study, target["value"], data["measures"])):
            Select(browser.find_element(By.ID, "measure")).select_by_index(number)
            assert cells(browser) == [list(row) for row in table]
    assert browser.get_log("browser") == []


def colors_in(browser, figure):
    """The colors of the marks in a figure of the page."""
    return set(
        browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map(mark => mark.style.stroke"
            " || mark.getAttribute('stroke'))",
            f"#{figure} [stroke^='#']",
        )
    )


@pytest.mark.extras
def test_figures_follow_the_axis_and_the_conditions(study, browser, tmp_path):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    opened(browser, study, tmp_path / "report.html")
    data = explorer.data(load.read(study))
    figures = ("curves", "scores", "trials")
    for number, measure in enumerate(data["measures"]):
        Select(browser.find_element(By.ID, "measure")).select_by_index(number)
        for figure in figures:
            assert measure["label"] in browser.find_element(By.ID, figure).text
    colors = [condition["color"] for condition in data["conditions"]]
    shown = {figure: colors_in(browser, figure) & set(colors) for figure in figures}
    assert shown["curves"] == set(colors[:2])  # the third has no trial
    browser.find_elements(By.CSS_SELECTOR, "#conditions input")[1].click()
    for figure in figures:
        assert colors_in(browser, figure) & set(colors) == shown[figure] - {colors[1]}
    browser.find_elements(By.CSS_SELECTOR, "#conditions input")[1].click()
    assert {figure: colors_in(browser, figure) & set(colors) for figure in figures} == shown


@pytest.mark.extras
def test_uncounted_trials_and_bounds_look_different(study, browser, tmp_path):
    opened(browser, study, tmp_path / "report.html")
    loaded = load.read(study)
    trials = loaded.trials
    reached = trials["fresh_examples_to_target"].notna()

    def number_of(selector):
        return len(browser.find_elements("css selector", selector))

    assert number_of("#trials circle") == (trials["counted"] & reached).sum()
    assert number_of("#trials path[stroke-opacity='0.3']") == (~trials["counted"]).sum()
    table = scores.condition_scores(trials, loaded.study)
    low, high = table["fresh_examples_low"], table["fresh_examples_high"]
    (bounded,) = table.index[low.notna() & (low != high)]
    assert high[bounded] == float("inf")
    (bound,) = browser.find_elements("css selector", "#scores g[stroke-dasharray] line")
    title = bound.find_element("css selector", "title").get_property("textContent")
    assert title.startswith(f"{tables.unbroken(table['label'][bounded])}\nmedian: >")
    assert "Dashed: a bound" in browser.find_element("id", "scores").text
    assert browser.get_log("browser") == []


@pytest.mark.extras
def test_page_prints_and_reads_without_scripts(study, browser, tmp_path):
    from selenium.webdriver.common.by import By

    report.write(load.read(study), tmp_path / "report")
    page = (tmp_path / "report/report.html").as_uri()
    browser.get(page)
    interactive = browser.find_element(By.ID, "explorer")
    assert interactive.is_displayed()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not interactive.is_displayed()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    browser.get(page)
    assert not browser.find_element(By.ID, "explorer").is_displayed()
    assert len([row for row in browser.find_elements(By.TAG_NAME, "tr") if row.is_displayed()]) > 6
    widths = [
        image.get_property("naturalWidth") for image in browser.find_elements(By.TAG_NAME, "img")
    ]
    assert len(widths) > 3
    assert min(widths) > 500  # pixels: each is decoded


@pytest.mark.extras
def test_dragging_the_line_moves_the_target_and_hovering_names_a_trial(study, browser, tmp_path):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    opened(browser, study, tmp_path / "report.html")
    before = browser.find_element(By.ID, "target-text").text, cells(browser)
    handle = browser.find_element(By.ID, "handle")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", handle)
    easier = 150 if load.read(study).study.target.mode == "above" else -150  # pixels downward
    ActionChains(browser).drag_and_drop_by_offset(handle, 0, easier).perform()
    after = browser.find_element(By.ID, "target-text").text, cells(browser)
    assert before[0] != after[0]
    assert before[1] != after[1]
    dot = browser.find_element(By.CSS_SELECTOR, "#trials circle")
    ActionChains(browser).move_to_element(dot).perform()
    assert "learning rate 0.0" in browser.find_element(By.ID, "trials").text
    box = browser.find_elements(By.CSS_SELECTOR, "#conditions input")[1]
    box.click()
    assert [row[0] for row in cells(browser)[1:]] == [before[1][1][0], before[1][3][0]]
    assert browser.get_log("browser") == []


@pytest.mark.extras
def test_injected_scripts_do_not_run(browser, tmp_path):
    evil = "</script><script>document.title = 'evil'</script><img src=x onerror=\"alert(1)\">"
    conditions = [BASELINE, BEFORE | {"label": f"{evil} e"}]
    root = write_study(tmp_path / "s", conditions, SMALL)
    opened(browser, root, tmp_path / "report.html")
    assert browser.title == "a study"
    assert any("onerror" in row[0] for row in cells(browser))
    assert browser.execute_script("return document.images.length") == 0
    assert browser.get_log("browser") == []
    browser.execute_script(
        "const script = document.createElement('script');"
        "script.textContent = \"document.title = 'evil'\"; document.body.append(script)"
    )
    assert browser.title == "a study"


def test_best_values_that_are_all_equal_and_not_round_are_one_target(tmp_path):
    values = {("baseline", 0, k): [0.3137] * 4 for k in (0, 1)}
    root = write_study(tmp_path / "s", [BASELINE], values, score="best_value", searches=1)
    data = explorer.data(load.read(root))
    assert data is not None
    assert [target["value"] for target in data["targets"]] == [0.3137]
    assert data["start"] == 0


def test_best_values_count_the_same_trials_at_every_target(tmp_path):
    """A trial that reached a target and diverged later reached it, also at the first one shown."""
    never = {"metric": "accuracy", "value": 2.0, "mode": "above"}
    values = {("baseline", 0, 0): ([0.2, 0.55, 0.6, 0.1], "diverged")}
    values |= {("baseline", 0, k): [0.1] * 7 + [0.55] * 3 for k in (1, 2)}
    values |= {("before_e2", 0, k): [0.1, 0.2, 0.3] + [0.6] * 7 for k in (0, 1)}
    root = write_study(
        tmp_path / "s", [BASELINE, BEFORE], values, score="best_value", target=never, searches=1
    )
    at = explorer.data(load.read(root, 0.5))
    assert at is not None
    (shown,) = [target for target in at["targets"] if target["value"] == 0.5]
    assert at["targets"][at["start"]] is shown
    assert [row[2] for row in shown["measures"][0]["table"][1:]] == ["200", "400"]


def test_texts_of_single_runs_are_choices(tmp_path):
    for name in ("sgd", "adamw", "nesterov"):
        optimizer = {"name": name, "learning_rate": 0.1}
        write_trial(tmp_path / name, [0.5, 0.9], settings=config(optimizer=optimizer))
    data = explorer.data(load.read(tmp_path))
    assert data is not None
    (axis,) = data["hyperparameters"]
    assert axis == {"label": "name", "log": False, "choices": ["adamw", "nesterov", "sgd"]}
    assert [trial["hyperparameters"] for trial in data["trials"]] == [[0.0], [1.0], [2.0]]


def test_a_searched_batch_size_is_a_hyperparameter(tmp_path):
    space = [{"field": "batch_size", "scale": "linear", "min": 10, "max": 20}]
    values = {("baseline", 0, trial): [0.5, 0.9] for trial in range(2)}
    root = write_study(tmp_path / "s", [BASELINE], values, search_space=space)
    for trial in range(2):
        path = root / "baseline" / "0" / str(trial)
        hparams, run = (records.read_json(path / name) for name in ("hparams.json", "config.json"))
        hparams["hparams"] = {"batch_size": 10 + 10 * trial}
        run["config"] |= hparams["hparams"]
        records.write_json(path / "hparams.json", hparams)
        records.write_json(path / "config.json", run)
    data = explorer.data(load.read(root))
    assert data is not None
    assert [axis["label"] for axis in data["hyperparameters"]] == ["batch size"]
    assert [trial["hyperparameters"] for trial in data["trials"]] == [[10.0], [20.0]]
    assert [trial["values"] for trial in data["trials"]] == [["batch size 10"], ["batch size 20"]]
