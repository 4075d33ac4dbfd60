"""The command `python -m analysis`: its output, its files, and its errors."""

import html.parser
import os
import pathlib
import re

import pytest
from markdown_it import MarkdownIt

from analysis import __main__ as analysis_main
from runs import cli, records
from tests.helpers.runs import HANGS, run_command, start_python
from tests.helpers.written_studies import (
    BASELINE,
    BEFORE,
    SMALL,
    TARGET,
    config,
    write_study,
    write_trial,
)

pytestmark = pytest.mark.usefixtures("coarse_figures")


def run(arguments):
    """The exit code of the command, in this process."""
    return cli.guarded(analysis_main.main, [str(argument) for argument in arguments])


def run_process(*arguments, **environment):
    words = map(str, arguments)
    return run_command("analysis", *words, env=os.environ | {"COLUMNS": "100"} | environment)


@pytest.fixture
def small(tmp_path):
    return write_study(tmp_path / "small", [BASELINE, BEFORE], SMALL)


def test_report_is_printed_and_written(small):
    done = run_process(small)
    assert (done.returncode, done.stderr) == (0, "")
    assert "small: fresh examples to reach 90% validation accuracy" in done.stdout
    assert "(600" in done.stdout
    assert ">1,000)" in done.stdout
    assert ">1.00]" in done.stdout
    assert "1/2" in done.stdout
    assert "matched seeds: each trial against the baseline's" in done.stdout
    assert "undecided" in done.stdout
    assert "- Some searches never reached" in done.stdout
    lines = [line for line in done.stdout.splitlines() if str(small) not in line]
    assert max(map(len, lines)) <= 100
    assert (small / "report" / "report.md").exists()
    assert not [path for path in (small / "report").iterdir() if path.name.startswith(".")]


@pytest.mark.long
def test_narrow_terminal_shows_every_column(small, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert run([str(small)]) == 0
    printed = capsys.readouterr().out
    for word in ("buffer", "reached", "baseline", "steps", "seconds"):
        assert word in printed


def test_target_flag_judges_at_another_target(small, tmp_path, capsys):
    assert run([str(small), "--target=0.85", f"--out={tmp_path / 'easy'}"]) == 0
    assert "85% validation accuracy" in capsys.readouterr().out
    assert (tmp_path / "easy" / "scores.csv").exists()
    assert not (small / "report").exists()


def test_damaged_trial_is_named_in_one_sentence(small, capsys):
    (small / "baseline" / "1" / "0" / "result.json").write_text("{")
    assert run([str(small)]) == 0
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1
    assert "baseline/1/0" in warning


def test_single_runs_are_compared(tmp_path, capsys):
    echo = {"insertion": "before_augmentation", "factor": 2.0, "shuffle_buffer": 0}
    write_trial(tmp_path / "plain", [0.1, 0.1, 0.9])
    write_trial(tmp_path / "echoed", [0.1, 0.9], settings=config(echo=echo))
    arguments = [str(tmp_path / "plain"), str(tmp_path / "echoed"), f"--out={tmp_path / 'both'}"]
    assert run(arguments) == 0
    assert "0.67" in capsys.readouterr().out
    assert "echoed" in (tmp_path / "both" / "trials.csv").read_text()


def test_the_directories_of_the_help_are_not_those_of_the_checkout():
    lines = re.findall(r"^  python -m analysis (.*?)  ", analysis_main._EXAMPLES, re.MULTILINE)
    assert len(lines) >= 5
    for line in lines:
        arguments = analysis_main.parse(line.split())
        for name in (*arguments.directories, *filter(None, [arguments.out])):
            top = pathlib.Path(name).parts[0]
            assert top == "out" or name == "trials.parquet", name


def test_help_explains_the_command():
    done = run_process("--help")
    assert done.returncode == 0
    for word in ("study.json", "--target=0.95", "report.md", "exit codes", "counted trials"):
        assert word in done.stdout


@pytest.mark.long
def test_closed_pipe_is_not_an_error(small):
    process = start_python(["-m", "analysis", str(small)])
    process.stdout.close()
    assert process.communicate(timeout=HANGS)[1] == ""
    assert (small / "report" / "report.md").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "DIR"),
        (("{tmp}/nowhere",), "no such directory"),
        (("{tmp}",), "no run records"),
        (("{tmp}/study", "--target=high"), "--target is 'high'; allowed: a number"),
        (("{tmp}/study", "--target=nan"), "--target is 'nan'"),
        (("{tmp}/study", "--target"), "expected one argument"),
        (("{tmp}/study", "--trials=3"), "unrecognized arguments: --trials=3"),
        (("{tmp}/study", "{tmp}/other"), "give one study alone"),
        (("{tmp}/study", "--out={tmp}/study/study.json"), "cannot write to"),
        (("{tmp}/study", "--out=s3://bucket/report"), "s3://bucket/report"),
        (("{tmp}/broken",), "is not a readable study record"),
        (("{tmp}/study", "--target=90"), "--target is 90, which accuracy, a share, cannot reach"),
    ],
)
def test_wrong_input_is_one_sentence(tmp_path, capsys, arguments, said):
    if arguments and "study" in arguments[0]:
        write_study(tmp_path / "study", [BASELINE], {("baseline", 0, 0): [0.95]})
        (tmp_path / "other").mkdir()
    if arguments and "broken" in arguments[0]:
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "study.json").write_text("{")
    assert run([word.format(tmp=tmp_path) for word in arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_exit_code_of_the_process():
    done = run_process("/nowhere/at/all")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


EVIL = "<img src=http://evil/a> ![x](http://evil/b) [x](http://evil/c) `$\\frac{` a|b *c* \x1b[2J"


@pytest.fixture
def evil(tmp_path):
    """A study in which every text is EVIL."""
    target = TARGET | {"metric": EVIL.replace("\x1b", "")}
    conditions = [dict(each, label=f"{EVIL} {each['name']}") for each in (BASELINE, BEFORE)]
    more = {"study": EVIL, "workload": EVIL, "config": EVIL, "commit": EVIL, "target": target}
    more |= {"dataset": {EVIL: EVIL}, "packages": {EVIL: EVIL}, "hardware": {"device": EVIL}}
    root = write_study(tmp_path / "evil", conditions, SMALL, **more)
    for number, path in enumerate(root.glob("*/*/*/config.json")):
        record = records.read_json(path)
        record |= {"commit": f"{EVIL}{number}", "hardware": {"device_kind": f"{EVIL}{number % 2}"}}
        records.write_json(path, record)
    records.write_json(root / "baseline" / "1" / "0" / "result.json", {"status": EVIL})
    return root


def test_text_of_records_is_escaped_and_pages_fetch_nothing(evil, capsys):
    assert run([str(evil)]) == 0
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    page_html = (evil / "report" / "report.html").read_text()
    markdown = (evil / "report" / "report.md").read_text()
    rendered = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(markdown)
    for text in (page_html, rendered):
        page = _Page(text)
        assert "evil" in page.text
        assert "script" not in page.tags
        assert not {"a", "link", "iframe", "del"} & set(page.tags)
        assert all(not source.startswith(("http", "//")) for source in page.sources)
        assert "![x](http://evil/b) [x](http://evil/c)" in page.text
        assert "<img src=http://evil/a>" in page.text
        assert "`$\\frac{` a|b *c*" in page.text
    assert "default-src 'none'; img-src data:;" in page_html


class _Page(html.parser.HTMLParser):
    """The text, tags and images of a page."""

    def __init__(self, content):
        super().__init__()
        self.text, self.tags, self.sources = "", [], []
        self.feed(content)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.text += data
