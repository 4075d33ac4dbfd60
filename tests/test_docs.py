"""Every code block of README.md and docs/ runs as it stands there, or says why it does not.

A block without a note is run here: Python blocks of a page in order, in one namespace; blocks of
commands in order, in one directory, with smaller numbers. A note is an HTML comment before a block:

    <!-- not executed: REASON -->
    <!-- executed by tests/FILE.py -->      that file names the page
"""

import importlib.util
import re

import pytest

from analysis import report
from runs import cli
from tests.helpers import pages
from tests.helpers.runs import ROOT, SHRUNK
from training.check import check

PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
NOT_EXECUTED, EXECUTED_BY = "not executed: ", "executed by "

PACKAGES = ("torch", "tensorflow")  # of single sections

# What a page's reader has already.
EXAMPLES = """
import grain, numpy as np
examples = grain.MapDataset.range(1_000).map(lambda i: {"x": np.float32(i)})
"""
BEFORE = {
    "docs/auto.md": f"{EXAMPLES}state = 0\ntrain_step = lambda state, batch: (state + 1, loss)",
    "docs/device.md": f"{EXAMPLES}state, train_step = 0, lambda state, batch: state + 1",
    "docs/echo.md": f"{EXAMPLES}seed, augment = 0, lambda item, seed, index, copy: item",
}

# What holds after the page's blocks.
AFTER = {
    "docs/advice.md": 'advice.reason in " ".join(str(advice).split())',
    "docs/auto.md": 'next(iter(batches))["x"].shape == (128,) and state >= 1_000 // 128',
    "docs/device.md": "state == 4 * 1_000 // 128",
    "docs/echo.md": 'next(iter(batches))["x"].shape == (128,)',
    "docs/runs.md": "len(frame) == 2",
    "docs/studies.md": 'set(get_studies("")) == {"fractions"}',
}

# Smaller numbers for each command, given after its own.
SMALL = SHRUNK | {"dataset.canvas": 96, "augmentation.crop_size": 16, "model.layers": 1}
FEWER = [f"--config.{name}={value}" for name, value in SMALL.items()]
FLAGS = {
    "train.py": FEWER,
    # The shortest horizon of a search, 1/32 of the budget, must be a batch of 32.
    "sweep.py": [
        *FEWER,
        "--config.budget.fresh_examples=1100",
        "--config.evaluate_every_fresh_examples=550",
        "--config.checkpoint_every_fresh_examples=0",
        *("--trials=1", "--searches=1"),
    ],
    "advise.py": ["--seconds=0.05"],
}


def executed_here(page, language):
    return [b.code for b in pages.blocks(page) if b.language == language and not b.note]


def pages_with(language, short):
    """The pages with such blocks; those that are not `short` take seconds, and run as `long`."""
    return [
        pytest.param(page, marks=[] if page in short else [pytest.mark.long])
        for page in PAGES
        if executed_here(page, language)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_executed_or_says_why_not(page):
    blocks = pages.blocks(page)
    fences = re.findall(r"^ *```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks)
    for block in blocks:
        where = f"{page}, line {block.line}"
        if block.note.startswith(EXECUTED_BY):
            test = ROOT / block.note.removeprefix(EXECUTED_BY)
            assert page in test.read_text(encoding="utf-8"), where
        elif block.note:
            assert re.fullmatch(rf"{NOT_EXECUTED}\S.+", block.note), where
        else:
            assert block.language in ("python", "", "diff", "text"), (
                f"{where}: a note says how {block.language} runs"
            )
            commands = [] if block.language else pages.commands(block.code)
            runnable = ("python", "source") if page != "README.md" else ("git", "pip", "cd")
            assert all(words[0] in ("python", "source", *runnable) for words in commands), where


def missing(code):
    """The packages that a block imports and that are not installed."""
    imported = [name for name in PACKAGES if f"import {name}" in code]
    return [name for name in imported if importlib.util.find_spec(name) is None]


@pytest.mark.parametrize("page", pages_with("python", PAGES))
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    """In one namespace; without a package, the rest of the section that imports it is left out."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": page}
    exec(BEFORE.get(page, ""), names)
    text = (ROOT / page).read_text(encoding="utf-8")
    left_out = ""
    for block in pages.blocks(page):
        section = text[: text.index(block.code)].rpartition("\n## ")[2].partition("\n")[0]
        left_out = section if missing(block.code) else left_out
        if block.language == "python" and not block.note and section != left_out:
            exec(compile(block.code, page, "exec"), names)
    assert eval(AFTER.get(page, "True"), names)


DIFFS = [block.code for block in pages.blocks("README.md") if block.language == "diff"]


@pytest.mark.parametrize("diff", DIFFS, ids=lambda diff: diff.split()[1])
def test_a_training_loop_of_the_readme_runs_with_and_without_its_added_lines(diff):
    for name in missing(diff):
        pytest.skip(f"{name} is not installed")
    lines = diff.splitlines()
    with_echo, without = ([line[1:] for line in lines if line[:1] != sign] for sign in "-+")
    assert with_echo != without
    for code in (without, with_echo):
        exec("\n".join(code), {})


@pytest.mark.parametrize("page", pages_with("", {"README.md"}))
def test_the_commands_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "FORMATS", {"png": {"dpi": 20}})  # a third of the time
    for code in executed_here(page, ""):
        for command in pages.commands(code):
            if command[0] != "python":  # of a checkout
                continue
            # The full sizes need data; their minis take the same path.
            words = [re.sub(r"^(--config=configs/\w+\.py)$", r"\1:mini", word) for word in command]
            assert pages.run([*words, *FLAGS.get(words[1], [])]) == cli.OK, command


def test_the_flags_of_what_is_not_executed_are_allowed():
    """Full sizes need data and accelerators, but whether they are valid can be checked without."""
    checked, measured = 0, "results/real_data/README.md"
    for block in (block for page in [*PAGES, measured] for block in pages.blocks(page)):
        if (block.note.startswith(NOT_EXECUTED) or block.page == measured) and not block.language:
            for words in pages.commands(block.code):
                flags = [word for word in words if word.startswith("--config")]
                if words[0] == "python" and flags:
                    file = flags[0].removeprefix("--config=")
                    config, _ = cli.load_config(file, flags[1:])
                    check(config)
                    checked += 1
    assert checked >= 14


def anchors(page):
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    plain = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {title.replace(" ", "-") for title in plain}


OURS = ("*.md", "docs/*.md", "examples/*.md", "results/*.md")
LINKING = sorted(str(p.relative_to(ROOT)) for pattern in OURS for p in ROOT.glob(pattern))


@pytest.mark.parametrize("page", LINKING)
def test_every_link_within_the_repository_leads_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M)
    for link in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
