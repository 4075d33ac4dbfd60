"""The figures of a study, one function each: DataFrames in, a matplotlib Figure out.

The figures use no pyplot state, so they work without a display. In a notebook, `%matplotlib inline`
shows a Figure that a cell returns.
"""

from matplotlib.figure import Figure

from analysis import load, scores
from analysis.figures.conditions import by_condition
from analysis.figures.curves import AGAINST, best_trial_curves
from analysis.figures.settings import by_setting, varied_setting
from analysis.load import LoadedStudy
from runs.study import SECONDS


def of_study(loaded: LoadedStudy) -> dict[str, Figure]:
    """Every figure that suits the study's conditions and records, by name, the result first."""
    study, trials = loaded.study, loaded.trials
    drawn = results(loaded)
    best = scores.best_trials(trials, study)
    curves = load.curves(best, study.target.metric)
    for against in AGAINST:
        if curves[against].isna().all():
            continue  # not published, or there is no evaluation yet
        if against == "train_seconds" and scores.is_shared(best).any():
            continue  # these seconds depend on other trials
        name = "best_trial_curves" + ("" if against == "fresh_examples" else f"_by_{against}")
        drawn[name] = best_trial_curves(curves, study, against)
    return drawn


def results(loaded: LoadedStudy) -> dict[str, Figure]:
    """The main figure by name; a study of seconds has a second one, of fresh examples.

    A study that varies a setting (echo factor, batch size, shuffle buffer) is plotted against it;
    any other study has one row per condition.
    """
    study = loaded.study
    table = scores.condition_scores(loaded.trials, study)
    searches = scores.search_scores(loaded.trials, study)
    setting = varied_setting(study)
    measures = [study.score, *(["fresh_examples"] if study.score == SECONDS else [])]
    if setting is not None:
        return {f"{m}_by_{setting.name}": by_setting(table, setting, study, m) for m in measures}
    if study.scores_values:
        return {"best_values": by_condition(table, searches, study)}
    return {f"{m}_to_target": by_condition(table, searches, study, m) for m in measures}
