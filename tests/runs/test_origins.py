"""What a run resumes with: config.json lists it where it differs, and one sentence says so."""

import subprocess

import train
from runs import cli, origins, records, resuming
from runs.progress import Progress
from tests.helpers.runs import EIGHT_STEPS, ROOT, mini, stop_at


def recorded(workdir):
    return records.read_json(workdir / records.CONFIG)


def test_config_json_lists_what_a_run_resumes_with(tmp_path, monkeypatch):
    config, said = mini(**EIGHT_STEPS), Progress(quiet=True)
    here = origins.describe() | {"commit": "aaa"}
    monkeypatch.setattr(origins, "describe", lambda: here)
    train.train(config, tmp_path, said, on_step=stop_at(3))
    began = (tmp_path / records.CONFIG).read_bytes()
    train.train(config, tmp_path, said, on_step=stop_at(4))
    assert (tmp_path / records.CONFIG).read_bytes() == began
    assert not said.unsaid
    now = here | {"commit": "bbb", "packages": here["packages"] | {"grain": "0"}}
    monkeypatch.setattr(origins, "describe", lambda: now)
    fields = {"prefetch": 0, "upstream.examples_per_second": 100_000}
    train.train(
        mini(**EIGHT_STEPS, prefetch=0, upstream__examples_per_second=100_000), tmp_path, said
    )
    assert len(said.unsaid) == 1
    assert all(name in said.unsaid[0] for name in ("commit", "packages.grain"))
    assert "prefetch (2 there, 0 here); upstream.examples_per_second (0.0 there" in said.unsaid[0]
    assert "fields" not in said.unsaid[0]
    record = recorded(tmp_path)
    assert record.pop("resumed") == [{"step": 4, **now, "fields": fields}]
    (tmp_path / "began").write_bytes(began)
    assert record == records.read_json(tmp_path / "began")


def test_a_resumption_after_the_checkpoint_is_dropped_with_its_steps(tmp_path):
    """A process that is killed leaves its entry, and the run resumes from an earlier step."""
    said = []

    def note(step, commit, **config):
        record = {"commit": commit, "packages": {"jax": "1"}, "hardware": {}, "config": config}
        if not (tmp_path / records.CONFIG).exists():
            records.write_json(tmp_path / records.CONFIG, record)
        resuming.note(tmp_path, record, step, said.append)
        entries = origins.of_run(recorded(tmp_path))
        return [(entry["step"], entry["commit"], entry["fields"]) for entry in entries]

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
    commits = set()
    for number in "01":
        file = tmp_path / number / "mine.py"
        file.parent.mkdir()
        file.write_text(f"from configs.cifar10 import get_config  # {number}")
        cli.load_module(str(file))
        commits.add(origins.describe()["commit"])
    assert len(commits) == 2
    assert all("mine.py:" in commit for commit in commits)


def test_the_commit_is_that_of_the_checkout_wherever_git_is_told_to_look(tmp_path, monkeypatch):
    def git(*words):
        words = ["git", "-C", ROOT, *words]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    head, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "-uno")
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    origins.commit.cache_clear()
    assert origins.commit() == head[:12] + ("+changes" if changes else "")
