"""The recipes of CONTRIBUTING.md: each diff applies to a copy of the tree, and its command runs."""

import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.helpers import pages
from tests.helpers.runs import HANGS, ROOT
from tests.helpers.written_studies import BASELINE, BEFORE, SMALL, write_study

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = {
    title: (diff, command)
    for title, diff, command in re.findall(
        r"^### (an? [^\n]+)\n.*?^```diff\n(.*?)^```\n\n```\npython (.*?)\n```", PAGE, re.S | re.M
    )
}
COPIED = (
    *("analysis", "configs", "data", "echo", "models", "pipeline", "runs", "studies", "training"),
    *("workloads", "train.py", "sweep.py"),
)
WRITES = {"a figure": "out/report/seconds_of_trials.png", "a workload": "out/inverted/result.json"}
PRINTS = {"a study": "fractions", "a data source": "exhausted", "an echo order": "exhausted"}


def test_there_are_five_recipes():
    assert set(RECIPES) == {*WRITES, *PRINTS}


@pytest.mark.parametrize("title", sorted(RECIPES))
def test_the_diff_of_a_recipe_applies(title, tmp_path):
    diff, _ = RECIPES[title]
    for name in re.findall(r"^--- a/(\S+)", diff, re.M):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in re.findall(r"^\+\+\+ b/(\S+)", diff, re.M):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    pages.apply(diff, tmp_path)
    for path in tmp_path.glob("**/*.py"):
        compile(path.read_text(encoding="utf-8"), path.name, "exec")


@pytest.mark.long
@pytest.mark.parametrize("title", sorted({*WRITES, *PRINTS}))
def test_a_recipe_applies_and_its_command_runs(title, tmp_path):
    for package in COPIED:
        copy = shutil.copytree if (ROOT / package).is_dir() else shutil.copy
        copy(ROOT / package, tmp_path / package)
    diff, command = RECIPES[title]
    pages.apply(diff, tmp_path)
    if title == "a data source":
        (prepare,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)
        subprocess.run([sys.executable, "-c", prepare], cwd=tmp_path, check=True, timeout=HANGS)
    study = write_study(tmp_path / "small", [BASELINE, BEFORE], SMALL)
    words = [str(study) if w.startswith("results/") else w for w in shlex.split(command)]
    words = [w for w in words if title != "a figure" or not w.startswith("--study")]
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=HANGS
    )
    assert done.returncode == 0, done.stderr
    assert not WRITES.get(title) or (tmp_path / WRITES[title]).exists()
    assert PRINTS.get(title, "") in done.stdout + done.stderr
