"""What a run resumes with: config.json lists it where it differs, and one sentence says so."""

import subprocess

import train
from runs import cli, origins, records, resuming
from tests.helpers.runs import EIGHT_STEPS, ROOT, mini, preempt, stop_at
from tests.helpers.small_studies import RecordedProgress

CONFIG = mini(**EIGHT_STEPS)
OTHER = mini(**EIGHT_STEPS, prefetch=0, upstream__examples_per_second=100_000)


def recorded(workdir):
    return records.read_json(workdir / records.CONFIG)


def test_config_json_lists_what_a_run_resumes_with(tmp_path, monkeypatch):
    here = origins.describe() | {"commit": "aaa"}
    monkeypatch.setattr(origins, "describe", lambda: here)
    preempt(CONFIG, tmp_path, 3)
    began, said = recorded(tmp_path), RecordedProgress()
    now = here | {"commit": "bbb", "packages": here["packages"] | {"grain": "0"}}
    monkeypatch.setattr(origins, "describe", lambda: now)
    train.train(OTHER, tmp_path, said)
    fields = {"prefetch": 0, "upstream.examples_per_second": 100_000}
    assert len(said.lines) == 1
    assert all(name in said.lines[0] for name in ("commit", "packages.grain", *fields))
    record = recorded(tmp_path)
    assert record.pop("resumed") == [{"step": 3, **now, "fields": fields}]
    assert record == began


def test_a_run_that_resumes_as_before_says_nothing_and_changes_no_record(tmp_path):
    said = RecordedProgress()
    train.train(CONFIG, tmp_path, said, on_step=stop_at(3))
    began = (tmp_path / records.CONFIG).read_bytes()
    train.train(CONFIG, tmp_path, said)
    assert (tmp_path / records.CONFIG).read_bytes() == began
    assert not said.lines


def resumed(workdir, step, say, **changes):
    """(step, commit, fields) of each entry of a run that begins, or resumes, with changes."""
    record = {"commit": "a", "packages": {"jax": "1"}, "hardware": {"devices": 1}, "config": {}}
    record |= changes
    if not (workdir / records.CONFIG).exists():
        records.write_json(workdir / records.CONFIG, record)
    resuming.note(workdir, record, step, say)
    entries = origins.of_run(recorded(workdir))
    return [(entry["step"], entry["commit"], entry["fields"]) for entry in entries]


def test_a_resumption_after_the_checkpoint_is_dropped_with_its_steps(tmp_path):
    """A process that is killed leaves its entry, and the run resumes from an earlier step."""
    said = []

    def note(step, commit, **config):
        return resumed(tmp_path, step, said.append, commit=commit, config=config)

    assert note(0, "a", prefetch=2) == [(0, "a", {})]
    assert note(20, "b", prefetch=2) == [(0, "a", {}), (20, "b", {})]
    assert note(30, "b", prefetch=0) == [(0, "a", {}), (20, "b", {}), (30, "b", {"prefetch": 0})]
    assert note(25, "b", prefetch=2) == [(0, "a", {}), (20, "b", {})]
    assert note(10, "a", prefetch=2) == [(0, "a", {})]
    assert len(said) == 2
    # it starts over before its first checkpoint: nothing is left of the beginning
    assert note(0, "c", prefetch=2) == [(0, "c", {})]
    assert len(said) == 3


def test_a_configuration_file_that_was_edited_is_another_commit(tmp_path):
    """As the code of its networks may be."""
    commits = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        file = tmp_path / str(number) / "mine.py"
        file.write_text(f"from configs.cifar10 import get_config  # {number}")
        cli.load_module(str(file))
        commits.append(origins.describe()["commit"])
    del cli.OWN_FILES["mine.py"]
    assert all("mine.py:" in commit for commit in commits)
    assert commits[0] != commits[1]


def test_the_commit_is_that_of_the_checkout_wherever_git_is_told_to_look(tmp_path, monkeypatch):
    def git(*words):
        told = ["git", "-C", ROOT, *words]
        return subprocess.run(told, capture_output=True, text=True, check=True).stdout.strip()

    head, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "-uno")
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    commit = origins.of_process.__wrapped__()["commit"]
    assert commit == head[:12] + ("+changes" if changes else "")
