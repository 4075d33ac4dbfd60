"""The command `python -m analysis`: its output, its files, and its errors."""

import re

import pytest
from markdown_it import MarkdownIt

from analysis import archive
from runs import records
from tests.helpers.runs import HANGS, ROOT, start_python
from tests.helpers.written_studies import (
    BASELINE,
    BEFORE,
    SMALL,
    TARGET,
    change,
    run_analysis,
    write_study,
)

TRIALS = str(ROOT / "results" / archive.TRIALS)

pytestmark = pytest.mark.usefixtures("coarse_figures")


@pytest.mark.parametrize("width", [40, 100])
def test_report_is_printed_and_written(small, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert run_analysis(small) == 0
    printed = capsys.readouterr()
    title = printed.out.splitlines()[0]
    assert title == "small: fresh examples to reach 90% validation accuracy"
    for word in ("buffer", "reached", "seconds", "(600", ">1,000)", ">1.00]", "1/2", "undecided"):
        assert word in printed.out
    if width == 100:
        assert max(len(s) for s in printed.out.splitlines() if str(small) not in s) <= width
    assert (small / "report" / "report.md").exists()
    assert not [path for path in (small / "report").iterdir() if path.name.startswith(".")]
    (small / "baseline" / "1" / "0" / "result.json").write_text("{")
    assert run_analysis(small) == 0  # again, and into the same directory
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1
    assert "baseline/1/0" in warning


def test_target_flag_judges_at_another_target(small, tmp_path, capsys):
    assert run_analysis(small, "--target=0.85", f"--out={tmp_path / 'easy'}") == 0
    assert "85% validation accuracy" in capsys.readouterr().out
    assert (tmp_path / "easy" / "scores.csv").exists()
    assert not (small / "report").exists()


@pytest.mark.long
def test_closed_pipe_is_not_an_error(small):
    with start_python(["-m", "analysis", str(small)]) as process:
        process.stdout.close()
        assert process.communicate(timeout=HANGS)[1] == ""
    assert (small / "report" / "report.md").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "DIR"),
        (("{tmp}/nowhere",), "{tmp}/nowhere"),
        (("{tmp}",), "study.json"),
        (("{tmp}/study", "--target=high"), "'high'"),
        (("{tmp}/study", "--target=nan"), "nan"),
        (("{tmp}/study", "--target"), "--target"),
        (("{tmp}/study", "--trials=3"), "--trials=3"),
        (("{tmp}/study", "{tmp}/other"), "{tmp}/other"),
        (("{tmp}/study", "--out={tmp}/study/study.json"), "study.json"),
        (("{tmp}/study", "--out=s3://bucket/report"), "s3://bucket/report"),
        (("{tmp}/broken",), "{tmp}/broken/study.json"),
        (("{tmp}/empty",), "{tmp}/empty"),
        (("{tmp}/study", "--target=90"), "accuracy"),
        (("{tmp}/study", "--study=other"), "--study"),
        (("{tmp}/study/..",), "{tmp}/study"),
        (("{tmp}/without",), "study.json"),
        (("{tmp}/study", "--out={tmp}/other"), "{tmp}/other/trials.csv"),
        (("{tmp}/study", "--out={tmp}/figure"), "{tmp}/figure/best_trial_curves.png"),
        ((TRIALS,), TRIALS),
        ((TRIALS, "--out={tmp}/out"), "--study"),
        ((TRIALS, "--out={tmp}/out", "--study=grid/nothing"), "grid/nothing"),
        ((TRIALS, "--out={tmp}/out", "--study=convex/further"), "plan"),
        ((TRIALS, "--out={tmp}/out", "--study=further/quality", "--target=0.5"), archive.CURVES),
        (("{tmp}/" + archive.TRIALS, "--out={tmp}/out"), "no such file"),
        (("{tmp}", "--pack={tmp}/out"), "{tmp}"),
        (("{tmp}", "--pack={tmp}/out", "--target=1"), "--pack"),
        (("{tmp}", "--pack="), "directory"),
    ],
)
def test_wrong_input_is_one_sentence(tmp_path, capsys, arguments, named):
    if arguments and arguments[0] != "{tmp}":
        for name in ("study", "without"):
            write_study(tmp_path / name, [BASELINE], {("baseline", 0, 0): [0.95]})
        write_study(tmp_path / "empty", [BASELINE], {})
        (tmp_path / "without" / "study.json").unlink()
        files = {"broken/study.json": "{", "other/trials.csv": "mine"}
        for name, content in (files | {"figure/best_trial_curves.png": "mine"}).items():
            (tmp_path / name).parent.mkdir()
            (tmp_path / name).write_text(content)
    assert run_analysis(*(word.format(tmp=tmp_path) for word in arguments)) == 2
    printed = capsys.readouterr()
    assert named.format(tmp=tmp_path) in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert not [*tmp_path.rglob("report"), *tmp_path.glob("out")]
    for path in (*tmp_path.rglob("trials.csv"), *tmp_path.rglob("*.png")):
        assert path.read_text() == "mine"


EVIL = "<img src=http://evil/a> ![x](http://evil/b) [x](http://evil/c) "
EVIL += "`$\\frac{` a|b *c* __d__ \x1b[2J"


def test_text_of_records_is_shown_literally(tmp_path, capsys):
    target = TARGET | {"metric": EVIL.replace("\x1b", "")}
    conditions = [c | {"label": f"{EVIL} {c['name']}"} for c in (BASELINE, BEFORE)]
    more = {"study": EVIL, "workload": EVIL, "config": EVIL, "commit": EVIL, "target": target}
    more |= {"dataset": {EVIL: EVIL}, "packages": {EVIL: EVIL}, "hardware": {"device": EVIL}}
    root = write_study(tmp_path / "evil", conditions, SMALL, **more)
    for number, path in enumerate(root.glob("*/*/*/config.json")):
        device = {"device_kind": f"{EVIL}{number % 2}"}
        change(path, commit=f"{EVIL}{number}", hardware=device)
    records.write_json(root / "baseline" / "1" / "0" / "result.json", {"schema_version": EVIL})
    assert run_analysis(root) == 0
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    markdown = (root / "report" / "report.md").read_text()
    blocks = MarkdownIt("gfm-like", {"html": True, "linkify": False}).parse(markdown)
    tokens = [*blocks, *(token for block in blocks for token in block.children or ())]
    kinds = {token.type for token in tokens}
    assert {"table_open", "image", "text"} <= kinds
    assert not {"html_inline", "html_block", "link_open", "s_open"} & kinds
    sources = [token.attrs["src"] for token in tokens if token.type == "image"]
    assert all(re.fullmatch(r"\w+\.png", source) for source in sources)
    shown = "".join(token.content for token in tokens if token.type.startswith("text"))
    for text in ("<img src=http://evil/a> ![x](http://evil/b) [x](http://evil/c)", "a|b *c* __d__"):
        assert text in shown
    assert "`$\\frac{`" in shown
