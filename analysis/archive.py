"""Published records: trials.parquet, a row per trial of many studies, and curves.parquet.

    python -m analysis out/digits --pack=results --study=grid/digits   adds or replaces a study
    python -m analysis results/trials.parquet --study=grid/digits --out=out/report

trials.parquet has the columns of `load.load` without what follows from the plan. The plan itself,
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
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from runs import records
from runs.cli import InputError
from runs.study import MAY_CHANGE, Study

TRIALS, CURVES = "trials.parquet", "curves.parquet"
POINTS = 60  # evaluations kept of a trial, besides those that its scores depend on
OF_PLAN = ("label", "insertion", "factor", "shuffle_buffer", "batch_size", "path")
_KEY = ["condition", "search", "trial"]
_DIGEST = b"sha256_of_csv"


def is_published(path: str | os.PathLike) -> bool:
    """Whether a path is that of published records, by its name."""
    return os.path.basename(path) == TRIALS


def studies(file: str | os.PathLike) -> list[str]:
    """The names of the studies in a trials.parquet; raises InputError."""
    return list(_groups(pathlib.Path(file)))


def rows(file: str | os.PathLike, study: str = "") -> pd.DataFrame:
    """The rows of one study, whose name may be left out if the file has only one.

    Raises:
        InputError: the file has no such study, was damaged or changed, or cannot be read.
    """
    groups = _groups(pathlib.Path(file))
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
    record = json.loads(table["plan"].iloc[0])
    plan = Study.from_record({"schema_version": records.SCHEMA_VERSION} | record)
    place = table[["study", *_KEY]].astype(str).agg("/".join, axis=1)
    paths = pd.Series([os.path.join(file, name) for name in place], dtype=object)
    return plan, table.drop(columns=["study", "plan"]).assign(path=paths)


def curves(file: pathlib.Path, study: str) -> pd.DataFrame:
    """The evaluations of the trials of a study, by trial; none if they were not published. Raises
    InputError."""
    file = file.with_name(CURVES)
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
    record = {key: value for key, value in plan.record.items() if key != "schema_version"}
    known = _groups(directory / TRIALS).get(study)
    text = json.dumps(record) if known is None else known["plan"].iloc[0]
    if not isinstance(text, str) or _identity(json.loads(text)) != _identity(record):
        raise InputError(
            f"--study is {study!r}, and {directory / TRIALS} has another study of that name; give "
            "another one"
        )
    trials = trials.drop(columns=[name for name in OF_PLAN if name in trials])
    trials = trials.reset_index(drop=True).assign(plan=None)
    trials.loc[0, "plan"] = json.dumps(record)
    points = curves[[*_KEY, "step", "fresh_examples", "value"]]
    thinned = [_thinned(own, plan.target) for _, own in points.groupby(_KEY, sort=False)]
    _add(directory / TRIALS, study, trials)
    _add(directory / CURVES, study, pd.concat(thinned))


def _identity(plan: dict[str, Any]) -> dict[str, Any]:
    """What a study cannot change when it grows, as JSON."""
    changing = (*MAY_CHANGE, *records.ORIGIN, "study", "sha256")
    return json.loads(json.dumps({k: v for k, v in plan.items() if k not in changing}))


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


def _add(file: pathlib.Path, study: str, table: pd.DataFrame) -> None:
    known = [group for name, group in _groups(file).items() if name != study]
    table.insert(0, "study", study)
    write(file, pd.concat([*known, table]).sort_values("study", kind="stable"))


def write(file: pathlib.Path, table: pd.DataFrame) -> None:
    """Writes rows, with their digest, whole or not at all; raises InputError."""
    content = pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata()
    content = content.replace_schema_metadata({_DIGEST: _digest(content)})
    buffer = pa.BufferOutputStream()
    pq.write_table(content, buffer, compression="zstd", compression_level=19)
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
def _read(file: pathlib.Path, version: Any) -> dict[str, pd.DataFrame]:
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
