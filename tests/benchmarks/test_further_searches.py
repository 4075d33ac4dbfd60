"""The further searches are those of the packed studies, and only whole new ones are kept."""

import pytest

from analysis import load
from benchmarks import further_searches
from studies.search import trial_config
from tests.helpers.written_studies import BASELINE, BEFORE, write_study


@pytest.mark.long
@pytest.mark.parametrize("name", further_searches.CONDITIONS)
def test_trials_have_the_settings_of_the_study_with_five_searches(name, tmp_path):
    packed = load.read(f"results/grid/{name}_logistic.tar.xz").trials
    study = further_searches.study(name, tmp_path)
    own = packed[(packed["search"] == 4) & (packed["trial"] == 7)].set_index("condition")
    for condition in study.conditions:
        config = trial_config(study, condition, 4, 7)
        row = own.loc[condition.name]
        assert config.seed.model == row["model_seed"]
        for axis in study.space:
            value = config
            for part in axis.field.split("."):
                value = value[part]
            assert value == pytest.approx(row[axis.field])


def test_a_new_search_is_kept_once_all_conditions_have_finished_it(tmp_path, monkeypatch):
    monkeypatch.setattr(further_searches, "CONDITIONS", {"controls": ("baseline", "before_e2")})
    monkeypatch.setattr(further_searches, "KNOWN", 1)
    outcomes = {
        (name, search, trial): [0.1, 0.9]
        for name in ("baseline", "before_e2")
        for search in range(3)
        for trial in range(2)
        if (name, search, trial) != ("before_e2", 2, 1)
    }
    plan = {"trials": 2, "searches": 3}
    write_study(tmp_path / "controls", [BASELINE, BEFORE], outcomes, **plan)
    kept = further_searches.finished(tmp_path)
    assert set(kept["search"]) == {1}
    assert kept.groupby("condition").size().tolist() == [2, 2]
    assert set(kept["study"]) == {"controls"}
