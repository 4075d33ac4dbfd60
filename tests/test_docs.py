"""The code on the pages that users copy from runs, as it stands there."""

import re

import pytest

from tests.helpers.runs import ROOT

PAGES = [
    ("advice.md", "numpy"),
    ("grain.md", "grain"),
    ("tf_data.md", "tensorflow"),
    pytest.param("pytorch.md", "torch", marks=pytest.mark.extras),
]


@pytest.mark.parametrize(("page", "package"), PAGES)
def test_the_code_of_a_page_runs(page, package):
    pytest.importorskip(package, reason=f"the page is about {package}")
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    variables = {"__name__": page}
    for block in blocks:
        exec(compile(block, page, "exec"), variables)
    if page == "advice.md":
        assert variables["advice"].reason in " ".join(str(variables["advice"]).split())
    if page == "grain.md":
        assert variables["batch"]["x"].shape == (128,)
    if page == "tf_data.md":
        assert variables["batches"].element_spec.shape == (128,)
        assert len(variables["batches"]) == 2 * 1_000 // 128
        assert sum(1 for _ in variables["batches"]) == 2 * 1_000 // 128
    if page == "pytorch.md":
        assert variables["x"].shape == variables["y"].shape == (128,)
