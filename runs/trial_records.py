"""Reads the records of one trial, and checks that they are those of its place in a study.

`records` finds a file that is not what was written, and raises `records.Damaged`. Here the files of
a trial are compared with one another and with the plan of their study.
"""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from configs import base
from echo.spec import abbreviated
from runs import records
from runs.records import Damaged, flat, nested
from runs.study import Study


@dataclasses.dataclass(frozen=True)
class TrialRecords:
    """The records in a trial's directory.

    Attributes:
        config: the content of config.json; empty before the run has started.
        search: the content of hparams.json: the hyperparameters that a search drew, and how many
            trials shared the machine.
        result: the content of result.json; empty until the trial has ended.
        metrics: the records of metrics.jsonl.
    """

    config: dict[str, Any]
    search: dict[str, Any]
    result: dict[str, Any]
    metrics: list[dict[str, Any]]

    @property
    def validation(self) -> list[dict[str, Any]]:
        return [record for record in self.metrics if record.get("split") == "validation"]


# In each record of metrics.jsonl. Those of a run that has not ended have no checksum.
_PLACE_IN_RUN = ("step", "fresh_examples", "train_seconds")


def read(
    workdir: str | os.PathLike,
    place: records.TrialPath | None = None,
    study: Study | None = None,
) -> TrialRecords:
    """All records of the trial in `workdir`, which is at `place` in `study` if that is given.

    Raises:
        Damaged: a record is not what was written; they are of another place: copied there, they
            would count twice; or they are of another plan or other data than the study's, as on a
            machine whose command or files differed.
    """
    workdir = pathlib.Path(workdir)
    trial = TrialRecords(
        records.read_json(workdir / records.CONFIG),
        records.read_json(workdir / records.HPARAMS),
        records.read_json(workdir / records.RESULT),
        records.read_metrics(workdir),
    )
    for line, record in enumerate(trial.metrics, start=1):
        if lacking := [name for name in _PLACE_IN_RUN if name not in record]:
            raise Damaged(f"{records.METRICS}, line {line}, has no {lacking[0]}")
    began = (workdir / records.METRICS).exists()  # opened after config.json is written
    if (began or trial.result) and not trial.config:
        raise Damaged(f"{records.CONFIG} is missing")
    if place and trial.result and not trial.search:
        raise Damaged(f"{records.HPARAMS} is missing, but {records.RESULT} exists")
    if place and study:
        check_place(trial.config, trial.search, place, study)
    return trial


def check_place(
    config: Mapping[str, Any], search: Mapping[str, Any], place: records.TrialPath, study: Study
) -> None:
    """Checks that a trial's config.json and hparams.json are what its study plans there; raises
    Damaged. A field that only one of the records has is newer than the other."""
    for name, own in dataclasses.asdict(place).items():
        if search.get(name, own) != own:
            raise Damaged(f"{records.HPARAMS} is of {name} {abbreviated(search[name])}")
    if not config:
        return
    condition, values = study.condition(place.condition), flat(config["config"])
    hparams = search.get("hparams") or {}
    planned = study.settings | study.trial_settings(condition, place.search, place.trial, hparams)
    changed = records.differences(values, values | planned, base.MAY_CHANGE_IN_STUDY)
    if changed:
        raise Damaged(f"{records.CONFIG} is of another plan than the study: {'; '.join(changed)}")
    varied = {*condition.overrides, *hparams} - {"dataset.spaced_epochs"}
    if any(name.startswith("dataset.") for name in varied):
        return  # the study says nothing about data that a condition or search chooses
    own, planned_data = (nested(r, "dataset.fingerprint") for r in (config, study.record))
    if None not in (own, planned_data) and own != planned_data:
        raise Damaged(
            f"{records.CONFIG} is of other data (fingerprint {abbreviated(own)}, and that of the "
            f"study is {abbreviated(planned_data)})"
        )
