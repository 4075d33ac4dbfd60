"""The notebooks run from a clean checkout, on mini studies."""

import collections
import pathlib
import re

import nbclient
import nbformat
import pytest

from tests.helpers.runs import HANGS, optimizing

NOTEBOOKS = pathlib.Path(__file__).parent.parent / "notebooks"
NAMES = (
    *("01_echoing_in_five_minutes", "02_figures_of_the_paper", "03_your_own_pipeline"),
    "04_how_much_to_echo",
)

FEWER = ("--config.model.depth=0", "--config.budget.fresh_examples=1600")


def read(name):
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def execute(name, parameters, fewer=()):
    """Runs a notebook with its cell of parameters replaced, and the flags `fewer` given to the
    command that it starts; its cells with their outputs."""
    notebook = read(name)
    for cell in notebook.cells:
        cell.source = cell.source.replace("run(command", f"run(command + {[*fewer]}")
        # A directory holds one study.
        cell.source = re.sub(r', (study=f"grid/\{name\}"|"grid/sentences")', "", cell.source)
    (cell,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", ())]
    cell.source = f"import pathlib\n{parameters}"
    where = {"metadata": {"path": str(NOTEBOOKS)}}
    limits = {"timeout": HANGS, "startup_timeout": HANGS}
    client = nbclient.NotebookClient(notebook, resources=where, **limits)
    return client.execute(env=optimizing()).cells


def outputs(cells):
    return [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]


def pictures(cells):
    return [o for o in outputs(cells) if "image/png" in o.get("data", {})]


def printed(cells):
    return "".join(output.get("text", "") for output in outputs(cells))


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The first notebook's directory and cells, on small budgets."""
    out = tmp_path_factory.mktemp("notebooks")
    parameters = f"FRESH_EXAMPLES, TRIALS, SEARCHES, OUT = 1_600, 1, 1, pathlib.Path({str(out)!r})"
    return out, execute(NAMES[0], parameters, FEWER)


@pytest.mark.long
def test_five_minutes(first):
    out, cells = first
    assert len(pictures(cells)) == 2
    assert "1,600 fresh examples, 50 steps" in printed(cells)
    assert "1,600 fresh examples, 100 steps" in printed(cells)
    assert len(list(out.glob("study/*/0/0/result.json"))) == 5


@pytest.mark.long
def test_the_figures_of_a_study(first):
    study = str(first[0] / "study")  # the same one each time
    cells = execute(NAMES[1], f"RECORDS, EASIER = {study!r}, 0.9")
    assert len(pictures(cells)) == 8
    assert "before augmentation, e = 4" in printed(cells)


@pytest.mark.long
def test_your_own_pipeline():
    cells = execute(NAMES[2], "SECONDS_PER_READ = 0.0001")
    said = printed(cells)
    steps = collections.Counter(re.findall(r"(\d+) steps in", said))  # those of auto vary
    assert steps["31"] >= 1
    assert steps["124"] >= 3
    assert "1488 copies" in said


@pytest.mark.long
def test_how_much_to_echo(tmp_path):
    fewer = ("--config.target.value=0.2", *FEWER)
    cells = execute(NAMES[3], f"TRIALS, OUT = 1, pathlib.Path({str(tmp_path / 'p')!r})", fewer)
    assert len(pictures(cells)) == 1
    assert len(re.findall(r"^e = +(?:1|4|16): ", printed(cells), re.MULTILINE)) == 3


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_valid_and_small(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert (NOTEBOOKS / f"{name}.ipynb").stat().st_size < 20_000
    assert not outputs(notebook.cells)
