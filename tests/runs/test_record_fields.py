"""The fields of the records are those that docs/runs.md lists."""

import itertools
import re

import pytest

import train
from runs import records
from tests.helpers.runs import EIGHT_STEPS, ROOT, echoing, mini

PAGE = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Fields of the records")[2].partition("\n## ")[0]
ROWS = [line.strip("|").split("|") for line in SECTION.splitlines() if line.startswith("| ")]


def names(cell):
    return re.findall(r"`([a-z_0-9]+)`", cell)


def documented(split):
    """The fields of a split's lines in metrics.jsonl."""
    cells = [row[1] for row in ROWS if len(row) == 3 and row[0].strip() in ("all", split)]
    return {name for cell in cells for name in names(cell)}


@pytest.fixture
def run(uninterrupted):
    """The directory of a run whose lines have all fields."""
    fields = echoing("before_augmentation", 100, factor=2)
    return uninterrupted(mini(**fields))


def test_the_lines_have_the_documented_fields_and_their_clocks(run):
    by_split, lines = {}, records.read_metrics(run)
    for before, line in itertools.pairwise([lines[0], *lines]):
        by_split.setdefault(line["split"], set()).update(line)
        assert line.keys() >= documented("")
        assert line["wall_seconds"] >= before["wall_seconds"] > 0
        assert line["wall_seconds"] >= line["train_seconds"]
        assert 0 <= line["input_wait_fraction"] <= 1
    assert by_split == {split: documented(split) for split in ("train", "validation")}


def test_the_result_has_the_documented_fields(run, tmp_path):
    content = {name: row[1] for row in ROWS if len(row) == 2 for name in names(row[0])}

    def fail(step):
        raise RuntimeError

    failed = train.train(mini(**EIGHT_STEPS), tmp_path, on_step=fail)
    for result, absent in ((failed, set()), (records.read_json(run / records.RESULT), {"error"})):
        assert result.keys() == content.keys() - absent
        assert all(list(result[name]) == names(content[name]) for name in ("target", "best"))
    assert names(content["status"]) == list(records.STATUSES)
