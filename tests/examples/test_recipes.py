"""Recipes: they train with and without the marked lines, and docs/recipes.md shows these lines."""

import importlib.util

import pytest

from tests.helpers import pages
from tests.helpers.runs import ROOT

MARK = "  # echo"

# What a recipe imports besides requirements.txt, and by what factor it repeats; None is auto.
RECIPES = {
    "pytorch_loop": (["torch"], None),
    "stateful_dataloader": (["torchdata"], 4),
    "lightning_fit": (["lightning"], None),
    "accelerate_loop": (["accelerate"], 4),
    "hf_trainer": (["transformers", "accelerate"], 4),
    "keras_on_jax": (["keras"], None),
    "grain_loop": ([], 4),
    "tf_data_loop": (["tensorflow"], 4),
    "ray_data": (["ray", "pandas"], None),
    "webdataset_loop": (["webdataset"], None),
}
BATCHES = 8  # of 256 examples


def lines_of(name):
    path = ROOT / "examples" / "recipes" / f"{name}.py"
    return path.read_text(encoding="utf-8").splitlines()


@pytest.mark.extras
@pytest.mark.filterwarnings("default")  # of the packages
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_with_and_without_its_marked_lines(name, tmp_path, monkeypatch):
    packages, factor = RECIPES[name]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    lines, steps = lines_of(name), []
    for kept in ([line for line in lines if not line.endswith(MARK)], lines):
        names = {"__name__": name}
        exec(compile("\n".join(kept), name, "exec"), names)
        steps.append(names["steps"])
    without, with_echo = steps
    if factor:
        assert with_echo == factor * without
    else:  # it repeats only if the loader is slower; the last examples may not fill a batch
        assert with_echo >= without - without // BATCHES


def test_the_page_shows_the_lines_of_every_recipe():
    diffs = [b.code for b in pages.blocks("docs/recipes.md") if b.language == "diff"]
    assert len(diffs) == len(RECIPES)
    for name, diff in zip(RECIPES, diffs, strict=True):
        lines = lines_of(name)
        assert len(lines) <= 40
        added = [line.removesuffix(MARK) for line in lines if line.endswith(MARK)]
        assert added == [line[1:] for line in diff.splitlines() if line[0] == "+"]
        rest = iter([line.removesuffix(MARK) for line in lines])
        assert all(line[1:] in rest for line in diff.splitlines())  # in this order
