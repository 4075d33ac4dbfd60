"""Imports between packages point one way, as docs/architecture.md says."""

import ast

import pytest

from tests.helpers.runs import ROOT

# What each package or command may import, besides itself.
_DATA = {"configs", "echo", "runs"}
_TRAINING = {*_DATA, "data", "models", "pipeline", "workloads"}
_STUDIES = {*_TRAINING, "train", "training"}
ALLOWED = {
    "echo": set(),
    "models": set(),
    "runs": {"configs", "echo"},
    "configs": {"echo"},
    "data": _DATA,
    "pipeline": {*_DATA, "data"},
    "workloads": {"configs", "data", "models", "runs"},
    "analysis": {"echo", "runs"},
    "training": _TRAINING,
    "train.py": {*_TRAINING, "training"},
    "studies": _STUDIES,
    "sweep.py": {*_STUDIES, "studies"},
    "advise.py": {*_STUDIES, "studies", "analysis"},
    "examples": {"data", "echo"},
    "benchmarks": {*_STUDIES, "studies", "analysis", "sweep", "advise"},
}
PACKAGES = {name.removesuffix(".py") for name in ALLOWED}


def imported(path):
    """The packages that a file imports, anywhere in it."""
    modules = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            modules.append(node.module)
    return {module.partition(".")[0] for module in modules} & PACKAGES


@pytest.mark.parametrize("name", ALLOWED)
def test_imports_point_one_way(name):
    place = ROOT / name
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    assert files
    own = {name.removesuffix(".py")}
    wrong = {path.name: imported(path) - ALLOWED[name] - own for path in files}
    assert {file: packages for file, packages in wrong.items() if packages} == {}


def test_every_package_has_its_place():
    found = {path.parent.name for path in ROOT.glob("*/*.py")} - {"tests"}
    assert found == {name for name in ALLOWED if not name.endswith(".py")}
