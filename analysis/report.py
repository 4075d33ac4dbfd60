"""The report of a study on disk: tables as CSV, figures, and all of it as Markdown and as HTML.

    report.write(found, "results/cifar10/report")     # what `load.read` found

Every file is written whole or not at all, so a report can be made again while someone reads it.
"""

import io
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from PIL import Image

from analysis import figures, page, scores, tables, uncertainty
from analysis.load import Records
from runs import records

_PALETTE = 64  # colours of a PNG file
_DPI = 200  # of the PNG files; the PDF beside each is for print


def write(found: Records, out: str | os.PathLike, root: os.PathLike | None = None) -> list[str]:
    """Writes report.md, report.html, scores.csv, paired.csv, trials.csv and the figures (PNG and
    PDF) into `out`; returns the names of the figures.

    Paths in these files are relative to `root`, the analysed directory, so that they hold wherever
    it is moved.
    """
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    root = root or out
    conditions = scores.condition_scores(found.trials, found.study)
    effects = uncertainty.paired_effects(uncertainty.pairs(found.trials, found.study), found.study)
    trials = found.trials.assign(
        path=[os.path.relpath(path, root) for path in found.trials["path"]]
    )
    files = {
        "scores.csv": conditions.to_csv(index=False).encode(),
        "paired.csv": effects.to_csv(index=False).encode(),
        "trials.csv": trials.to_csv(index=False).encode(errors="backslashreplace"),  # of paths
    }
    drawn = figures.of_study(found)
    for name, figure in drawn.items():
        for suffix, options in _FORMATS.items():
            files[f"{name}.{suffix}"] = _rendered(figure, suffix, options)
    text = page.markdown(found, conditions, root, list(drawn))
    pngs = {name: content for name, content in files.items() if name.endswith(".png")}
    html = page.html(tables.title(found.study), text, pngs)
    files |= {"report.md": text.encode(), "report.html": html.encode()}
    for name, content in files.items():
        records.write_bytes(out / name, content)
    return list(drawn)


# Without dates in them, the same records give the same files.
_FORMATS: Mapping[str, Mapping[str, Any]] = {
    "png": {"dpi": _DPI},
    "pdf": {"metadata": {"CreationDate": None}},
}


def _rendered(figure: Figure, suffix: str, options: Mapping[str, Any]) -> bytes:
    content = io.BytesIO()
    with matplotlib.rc_context({"pdf.fonttype": 42}):  # text stays text
        figure.savefig(content, format=suffix, **options)
    return _few_colours(content) if suffix == "png" else content.getvalue()


def _few_colours(png: io.BytesIO) -> bytes:
    """The picture with a palette, a third of the size: reports are kept in repositories."""
    small = io.BytesIO()
    Image.open(png).convert("RGB").quantize(_PALETTE).save(small, format="png", optimize=True)
    return small.getvalue()
