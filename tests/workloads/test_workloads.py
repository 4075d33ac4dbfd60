"""Adding a workload: the page that shows how, followed to the letter."""

import importlib.util
import json
import shutil
import sys

import pytest

import workloads
from runs import cli
from tests.helpers import pages, tfds_data
from tests.helpers.runs import ROOT

PAGE = "docs/workloads.md"
FILES = ("workloads/linear.py", "configs/linear.py")  # its Python blocks, in order


@pytest.fixture
def added(tmp_path, monkeypatch):
    """The page's files in the working directory, and its workload in the registry."""
    codes = [block.code for block in pages.blocks(PAGE) if block.language == "python"]
    for path, code in zip(FILES, codes, strict=False):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(code)
    shutil.copy(ROOT / "workloads" / "__init__.py", tmp_path / "workloads")
    (diff,) = (block.code for block in pages.blocks(PAGE) if block.language == "diff")
    pages.apply(diff, tmp_path)
    name, path = "workloads.linear", tmp_path / "workloads" / "linear.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    names = {}
    exec((tmp_path / "workloads" / "__init__.py").read_text(), names)
    monkeypatch.setattr(workloads, "CLASSES", names["CLASSES"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def the_pages_commands():
    return [words for b in pages.blocks(PAGE) if not b.language for words in pages.commands(b.code)]


@pytest.mark.long
def test_the_workload_of_the_page_trains_and_is_searched_as_the_page_says(added):
    training, sweeping, analyzing = the_pages_commands()[:3]
    assert pages.run(training) == cli.OK
    result = json.loads((added / "out" / "linear" / "result.json").read_text())
    assert result["status"] == "reached"
    assert pages.run([*sweeping, "--trials=1", "--searches=1"]) == cli.OK
    assert pages.run(analyzing) == cli.OK
    assert (added / "out" / "linear_factor" / "report" / "report.md").exists()


def test_it_trains_on_encoded_images_of_tfds(added, monkeypatch):
    features = {"image": tfds_data.image(8, 8, 1), "label": tfds_data.label()}
    splits = {"train": tfds_data.pictures(range(80))}
    monkeypatch.setenv("TFDS_DATA_DIR", str(added))
    tfds_data.write(added, "drawings", features, splits)  # TFDS looks for mnist's own version
    command = [word.replace("55000", "64") for word in the_pages_commands()[3]]
    words = [word.replace("name=mnist", "name=drawings") for word in command]
    assert pages.run([*words, "--config.budget.fresh_examples=640"]) == cli.OK
    result = json.loads((added / "out" / "linear_mnist" / "result.json").read_text())
    assert result["fresh_examples"] == 640
