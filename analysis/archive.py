"""Published records: trials.parquet, a row per trial of many studies, and curves.parquet.

    python -m analysis out/digits --pack=results --study=grid/digits   adds or replaces a study
    python -m analysis results/trials.parquet --study=grid/digits --out=out/report

trials.parquet has the columns of `load.read` without what follows from the plan. The plan itself,
study.json, is text in the column `plan` of a study's first row. curves.parquet has the evaluations
of each trial: study, condition, search, trial, step, fresh_examples, and value (of the target's
metric). It keeps at most POINTS of a trial, among them those that its scores depend on, and no
seconds. Both files state the SHA-256 of their content in their metadata, and are refused if it
differs.
"""

import functools
import hashlib
import json
import os
import pathlib

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from runs import records
from runs.cli import InputError
from runs.study import Study

TRIALS, CURVES = "trials.parquet", "curves.parquet"
POINTS = 60  # evaluations kept of a trial, besides those that its scores depend on
PLACE = ["condition", "search", "trial"]
_OF_PLAN = ["label", "insertion", "factor", "shuffle_buffer", "batch_size", "path"]
_DIGEST = b"sha256_of_csv"


def studies(file: str | os.PathLike) -> list[str]:
    """The names of the studies in a trials.parquet; raises InputError."""
    return list(_groups(pathlib.Path(file)))


def rows(file: str | os.PathLike, study: str = "") -> pd.DataFrame:
    """The rows of one study, whose name may be left out if the file has only one.

    Raises:
        InputError: the file has no such study, was damaged or changed, or cannot be read.
    """
    groups = _groups(pathlib.Path(file))
    if not os.path.exists(file):
        raise InputError(f"no such file: {file}; give a {TRIALS}, or the directory of a study")
    name = study or (next(iter(groups)) if len(groups) == 1 else "")
    if name not in groups:
        listed = ", ".join(groups)
        raise InputError(f"--study is {study!r}, which {file} does not have; allowed: {listed}")
    own = groups[name].dropna(axis="columns", how="all").reset_index(drop=True)
    whole = [c for c in own if own[c].dtype == pd.Int64Dtype() and own[c].notna().all()]
    return own.astype(dict.fromkeys(whole, "int64"))


def read(file: str | os.PathLike, study: str = "") -> tuple[Study, pd.DataFrame]:
    """The plan of a study and the rows of its trials; raises InputError, see `rows`."""
    table = rows(file, study)
    if "plan" not in table:
        raise InputError(f"{file} has rows of {study}, but no plan; read them with archive.rows")
    plan = {"schema_version": records.SCHEMA_VERSION} | json.loads(table["plan"].iloc[0])
    place = table[["study", *PLACE]].astype(str).agg("/".join, axis=1)
    paths = pd.Series([os.path.join(file, name) for name in place], dtype=object)
    return Study.from_record(plan), table.drop(columns=["study", "plan"]).assign(path=paths)


def curves(file: str | os.PathLike, study: str) -> pd.DataFrame:
    """The evaluations of the trials of a study, by trial; none if they were not published. Raises
    InputError."""
    file = pathlib.Path(file).with_name(CURVES)
    if not file.exists():
        raise InputError(f"no such file: {file}; restore it, it belongs to {TRIALS}")
    groups = _groups(file)
    own = groups.get(study, next(iter(groups.values()))[:0])
    kept = ["step", "fresh_examples"] if own["step"].notna().all() else ["fresh_examples"]
    return own.astype(dict.fromkeys((*kept, "search", "trial"), "int64"))


def place(path: str) -> tuple[pathlib.Path, str] | None:
    """The file and the study of a trial's `path`; None for a directory."""
    file, found, inside = path.partition(TRIALS + os.sep)
    return (pathlib.Path(file + TRIALS), inside.rsplit("/", 3)[0]) if found else None


def pack(
    plan: Study, trials: pd.DataFrame, curves: pd.DataFrame, directory: pathlib.Path, study: str
) -> None:
    """Adds a study to the published records in `directory`, or replaces it there.

    Args:
        plan, trials, curves: what `load.read` and `load.curves` return, of trials that ended.
        directory: where trials.parquet and curves.parquet are, or are made.
        study: the name under which it can be read.

    Raises:
        InputError: the files there are damaged, or cannot be written, or the name is another
            study's.
    """
    record = json.dumps({k: v for k, v in plan.record.items() if k != "schema_version"})
    known = _groups(directory / TRIALS).get(study)
    if known is not None and _identity(known["plan"].iloc[0]) != _identity(record):
        raise InputError(
            f"--study is {study!r}, and {directory / TRIALS} has another study of that name; give "
            "another one"
        )
    searched = [axis.field for axis in plan.space]  # the batch size may be
    of_plan = trials.columns.intersection(_OF_PLAN).difference(searched)
    trials = trials.drop(columns=of_plan).reset_index(drop=True)
    plans = [record, *[None] * (len(trials) - 1)]
    points = curves[[*PLACE, "step", "fresh_examples", "value"]]
    if plan.space or not plan.scores_values:  # others are for their curves, averaged over seeds
        kept = [_thinned(own, plan.target) for _, own in points.groupby(PLACE, sort=False)]
        points = pd.concat(kept)
    for name, table in ((TRIALS, trials.assign(plan=plans)), (CURVES, points.copy())):
        table.insert(0, "study", study)
        others = [own for key, own in _groups(directory / name).items() if key != study]
        _write(directory / name, pd.concat([*others, table]).sort_values("study", kind="stable"))


def _identity(plan: str | None) -> list[object]:
    """What a study does not change when it grows."""
    record = json.loads(plan) if isinstance(plan, str) else {}
    return [record.get(name) for name in ("resolved_config", "conditions", "search_space")]


def _thinned(curve: pd.DataFrame, target: records.Target) -> pd.DataFrame:
    """POINTS evenly spaced evaluations of a trial, and those that its scores depend on."""
    values, fresh = curve["value"].to_numpy(), curve["fresh_examples"].to_numpy()
    last = len(values) - 1
    kept = {*np.linspace(0, last, min(POINTS, last + 1)).round().astype(int)}
    hits = np.flatnonzero(target.reached(values))
    if len(hits):
        kept |= {hits[0], *np.flatnonzero(fresh < fresh[hits[0]])[-1:]}
    if np.isfinite(values).any():
        kept.add(np.nanargmax(values if target.mode == "above" else -values))
    return curve.iloc[sorted(kept)]


def _write(file: pathlib.Path, table: pd.DataFrame) -> None:
    """Writes rows, with their digest, whole or not at all; raises InputError."""
    content = pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata()
    buffer = pa.BufferOutputStream()
    pq.write_table(
        content.replace_schema_metadata({_DIGEST: _digest(content)}),
        buffer,
        compression="zstd",
        compression_level=19,
    )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        records.write_bytes(file, buffer.getvalue().to_pybytes())
    except OSError as error:
        raise InputError(f"cannot write {file} ({error}); give another --pack") from error


def _digest(table: pa.Table) -> str:
    text = pa.BufferOutputStream()
    csv.write_csv(table, text)
    return hashlib.sha256(text.getvalue()).hexdigest()


def _groups(file: pathlib.Path) -> dict[str, pd.DataFrame]:
    """The rows of a file by study; none if it does not exist."""
    if not file.exists():
        return {}
    status = file.stat()
    return _read(file, (status.st_mtime_ns, status.st_size, status.st_ino))


@functools.lru_cache(maxsize=4)
def _read(file: pathlib.Path, version: tuple[int, ...]) -> dict[str, pd.DataFrame]:
    try:
        table = pq.read_table(file)
        stated = (table.schema.metadata or {}).get(_DIGEST, b"").decode()
        if stated != _digest(table):
            raise ValueError("its content differs from the SHA-256 in its metadata")
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{file} is damaged or was changed ({error}); restore it") from error
    integers = {pa.int32(): pd.Int64Dtype(), pa.int64(): pd.Int64Dtype()}
    frame = table.to_pandas(types_mapper=integers.get)
    return {str(name): own for name, own in frame.groupby("study", sort=False)}
