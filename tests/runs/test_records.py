"""The files of a run: written whole, and either read as they were written or refused."""

import dataclasses
import json
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runs import records
from runs.checkpoints import MANIFEST, Checkpoints
from runs.progress import Clock
from runs.tracking import Followers, Recorder
from tests.helpers.runs import mini

RECORD = {"schema_version": records.SCHEMA_VERSION, "a": 1, "b": {"c": [0.1, "é", None]}}


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / records.CONFIG
    records.write_json(path, RECORD | {"b": (1, 2)})
    with pytest.raises(ValueError, match="JSON"):
        records.write_json(path, {"a": float("nan")})
    assert records.read_json(path) == RECORD | {"b": [1, 2]}
    assert [p.name for p in tmp_path.iterdir()] == [records.CONFIG]
    assert records.read_json(tmp_path / "none.json") == {}


# --- damage


def damaged(data, content):
    """Other content: with a bit flipped, cut, a part replaced by one of another place, or random;
    or None, for a file that is gone."""
    place = data.draw(st.integers(0, len(content) - 1))
    how = data.draw(st.sampled_from(["bit", "cut", "swap", "digit", "random", "gone"]))
    if how == "bit":
        flipped = content[place] ^ (1 << data.draw(st.integers(0, 7)))
        return content[:place] + bytes([flipped]) + content[place + 1 :]
    if how == "cut":
        return content[:place]
    if how == "swap":
        other, n = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(1, 20))
        return content[:place] + content[other : other + n] + content[place + n :]
    if how == "digit":
        place = data.draw(st.sampled_from([i for i, c in enumerate(content) if chr(c).isdigit()]))
        digit = data.draw(st.sampled_from([b"0", b"7", b"8", b"9"]))
        return content[:place] + digit + content[place + 1 :]
    return data.draw(st.binary(max_size=60)) if how == "random" else None


RECORDS = (records.CONFIG, records.HPARAMS, records.RESULT, records.EVALUATION, records.STUDY)


def read(run, name):
    return records.read_metrics(run) if name == records.METRICS else records.read_json(run / name)


@pytest.fixture(scope="module")
def run(uninterrupted, tmp_path_factory):
    """A finished run's directory with every kind of record."""
    place = tmp_path_factory.mktemp("records") / "run"
    shutil.copytree(uninterrupted(mini()), place)
    records.write_json(place / records.HPARAMS, {"trial": 3, "hparams": {"optimizer.x": 0.07}})
    records.write_json(place / records.EVALUATION, {"step": 20, "splits": {"test": {"a": 0.5}}})
    records.write_json(place / records.STUDY, {**RECORD, "trials": 12})
    return place


@pytest.mark.parametrize("name", [*RECORDS, records.METRICS])
@settings(max_examples=150)
@given(data=st.data())
def test_a_damaged_record_is_refused_or_the_same_and_never_another(name, run, data):
    content, expected = (run / name).read_bytes(), read(run, name)
    assert expected
    try:
        other = damaged(data, content)
        (run / name).unlink() if other is None else (run / name).write_bytes(other)
        try:
            again = read(run, name)
        except records.Damaged:
            pass
        else:
            assert again == (expected if other is not None else type(expected)())
    finally:
        (run / name).write_bytes(content)


def test_the_record_of_another_version_is_refused_by_its_version(tmp_path):
    for version in (records.SCHEMA_VERSION - 1, records.SCHEMA_VERSION + 1, None):
        text = json.dumps({"schema_version": version, "config": {}})
        (tmp_path / records.CONFIG).write_text(text)
        with pytest.raises(records.Damaged, match=f"schema version {version}"):
            records.read_json(tmp_path / records.CONFIG)


def test_what_is_not_a_file_or_deeply_nested_is_damaged_and_does_not_block(tmp_path):
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nested").write_bytes(b"[" * 100_000)
    (tmp_path / "list").write_bytes(b"[]")
    for name in ("directory", "pipe", "nested", "list"):
        with pytest.raises(records.Damaged, match=name):
            records.read_json(tmp_path / name)
    assert records.read_json(tmp_path / "none" / "below") == {}


# --- files that grow by lines


def test_metrics_are_truncated_to_the_extent_in_a_checkpoint(tmp_path):
    writer = records.LinesWriter(tmp_path / records.METRICS)
    writer.write({"step": 1, "loss": 0.5})
    known = writer.sync()
    writer.write({"step": 2, "loss": float("inf")})
    writer.close()
    assert records.read_metrics(tmp_path)[1] == {"step": 2, "loss": None}
    assert not known.missing_from(tmp_path / records.METRICS)
    writer = records.LinesWriter(tmp_path / records.METRICS, keep_bytes=known.bytes)
    assert writer.sync() == known
    writer.write({"step": 2, "loss": 0.25})
    writer.close()
    assert records.read_metrics(tmp_path) == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
    for content in (b"", b'{"step": 1, "loss": 0.6}\n{"st'):
        (tmp_path / records.METRICS).write_bytes(content)
        assert records.METRICS in known.missing_from(tmp_path / records.METRICS)
    # also if it was changed while the run wrote it
    writer = records.LinesWriter(tmp_path / records.METRICS)
    writer.write({"step": 1})
    (tmp_path / records.METRICS).write_bytes(b'{"step": 7}\n')
    assert writer.sync().missing_from(tmp_path / records.METRICS)
    writer.close()


@pytest.mark.parametrize(("old", "new"), [(b"}\n{", b"},{"), (b", ", b"\n"), (b"{", b"[{")])
def test_lines_that_are_json_together_only_are_damaged(tmp_path, old, new):
    path = tmp_path / records.METRICS
    path.write_bytes(b'{"step": 1, "a": 1}\n{"step": 2, "a": 1}\n'.replace(old, new, 1))
    with pytest.raises(records.Damaged, match="line 1"):
        records.read_metrics(tmp_path)


def ended(place, status):
    """A run with one record has ended in `place`."""
    recorder = Recorder(place, 0, Followers({}, print))
    recorder.write({"step": 1, "fresh_examples": 8, "split": "train", "loss": 1.0})
    recorder.close()
    recorder.write_result({"status": status})


def test_the_measurements_are_on_disk_before_the_result(tmp_path, monkeypatch):
    """After a power failure, a result must not stand beside measurements that were lost."""
    forced, force = [], os.fsync

    def fsync(file):
        status = os.fstat(file)
        forced.append((status.st_ino, status.st_size, (tmp_path / records.RESULT).exists()))
        force(file)

    monkeypatch.setattr(os, "fsync", fsync)
    ended(tmp_path, "exhausted")
    metrics = (tmp_path / records.METRICS).stat()
    assert forced[0] == (metrics.st_ino, metrics.st_size, False)
    assert records.read_metrics(tmp_path)[0]["loss"] == 1.0


def test_a_result_is_removed_before_the_measurements_that_it_covers(tmp_path, monkeypatch):
    """A process that is killed in between must not leave a result beside fewer measurements."""
    ended(tmp_path, "preempted")
    monkeypatch.delattr(records, "LinesWriter")  # as if killed
    with pytest.raises(AttributeError):
        Recorder(tmp_path, 0, Followers({}, print))
    assert not (tmp_path / records.RESULT).exists()


@pytest.mark.parametrize(
    ("mode", "reached", "better"),
    [("above", [False, True, True], 3.0), ("below", [True, True, False], 1.0)],
)
def test_a_target_says_on_which_side_the_goal_lies(mode, reached, better):
    target = records.Target("accuracy", 2.0, mode)
    assert [target.reached(value) for value in (1.0, 2.0, 3.0)] == reached
    assert target.better(better, than=2.0)
    assert target.better(2.0, than=None)
    assert not target.better(2.0, than=2.0)
    for value in (float("nan"), float("inf"), -float("inf")):
        assert not target.better(value, than=None)
    assert not target.reached(float("nan"))


def test_a_clock_excludes_pauses_and_continues_from_its_readings(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("runs.progress.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("runs.progress.time.process_time", lambda: 2 * now[0])
    clock = Clock(train=10.0, wall=20.0, waited=1.0, cores=5.0)
    with clock.paused():
        now[0] += 1.0
        with clock.paused():
            now[0] += 2.0
        now[0] += 4.0
        assert clock.train == 10.0
    assert (clock.train, clock.wall, clock.waited) == (10.0, 27.0, 1.0)
    now[0] += 8.0
    with clock.waiting():
        now[0] += 16.0
    assert (clock.train, clock.wall, clock.waited) == (34.0, 51.0, 17.0)
    assert clock.input_wait_fraction == 17.0 / 34.0
    resumed = Clock(**clock.readings())
    readings = {"train": 34.0, "wall": 51.0, "waited": 17.0, "cores": 53.0}
    assert resumed.readings() == clock.readings() == readings


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ftp://me:pass@host/a b", "ftp://***@host/a b"),
        ("'s3://key:s/e+c/ret@bucket/a' (x)", "'s3://***@bucket/a' (x)"),
        ("https://token@host:80/a, s3://bucket/a@b", "https://***@host:80/a, s3://bucket/a@b"),
        ("http://host:80/a@b?x=1&sig=AB%2F&y=2", "http://host:80/a@b?x=1&sig=***&y=2"),
        ("https://a/b?X-Amz-Signature=12&x-token=3", "https://a/b?X-Amz-Signature=***&x-token=***"),
        ("me@host: folder:/a/b?label=x", "me@host: folder:/a/b?label=x"),
    ],
)
def test_passwords_in_urls_are_not_shown(text, shown):
    assert records.redacted(text) == shown


def test_long_text_is_cut_to_one_line():
    assert records.plain("a\n\tb" + "c" * 20, 10) == "a bcccc..."
    assert records.plain("a bcccccc\n", 9) == "a bcccccc"


def test_trials_on_disk_come_in_order(tmp_path):
    no_trials = ("a/0/not_a_trial", "report/x/1", "a/0/01", "a/0/²")
    for place in ("b/0/10", "b/0/9", "a/1/0", "a/0/0", *no_trials):
        (tmp_path / place).mkdir(parents=True)
    found = [dataclasses.astuple(trial) for trial, _ in records.trials_on_disk(tmp_path)]
    assert found == [("a", 0, 0), ("a", 1, 0), ("b", 0, 9), ("b", 0, 10)]
    assert all(trial.under(tmp_path) == path for trial, path in records.trials_on_disk(tmp_path))


# --- checkpoints


def saved(directory, best=2):
    """Five checkpoints were saved, of which the newest two and the best are kept; an earlier
    process was killed while it saved the third."""
    complete = []
    (directory / ".saving_3").mkdir(parents=True)
    (directory / ".saving_3" / "half").touch()
    checkpoints = Checkpoints(directory, lambda: complete.append(checkpoints.steps()))
    for step in range(1, 6):
        arrays = {"w": jnp.full((3,), step / 3), "nested": [jnp.int32(step)]}
        checkpoints.save(step, arrays, {"step": step, "third": 1 / 3}, best if step >= best else -1)
    checkpoints.close()
    assert complete[-1] == [5, 4, 2]
    return Checkpoints(directory), {"w": jnp.zeros(3), "nested": [jnp.int32(0)]}


def test_checkpoints_keep_the_newest_two_and_the_best_bit_for_bit(tmp_path):
    assert Checkpoints(tmp_path / "checkpoints").steps() == []
    checkpoints, like = saved(tmp_path / "checkpoints")
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"5", "4", "2"}
    for foreign in ("007", "٩"):
        (tmp_path / "checkpoints" / foreign).mkdir()
    (tmp_path / "checkpoints" / "7").touch()
    assert checkpoints.steps() == [5, 4, 2]
    assert checkpoints.value(5)["step"] == 5
    arrays = checkpoints.restore(2, like)
    np.testing.assert_array_equal(arrays["w"], jnp.full((3,), 2 / 3))
    assert jax.tree.leaves(arrays)[0].dtype == jnp.int32
    assert checkpoints.value(2) == {"step": 2, "third": 1 / 3}


def test_an_old_checkpoint_that_is_half_removed_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as if killed
    kept = Checkpoints(tmp_path)
    for step in range(4):
        kept.save(step, {"w": jnp.zeros(3)}, {}, -1)
    kept.close()
    assert Checkpoints(tmp_path).steps() == [3, 2]


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "bit"])
def test_a_checkpoint_with_any_damaged_file_is_damaged(tmp_path, damage):
    _, like = saved(tmp_path / "checkpoints")
    place = tmp_path / "checkpoints" / "4"
    files = sorted(path for path in place.rglob("*") if path.is_file() and path.stat().st_size)
    assert place / MANIFEST in files
    for number, file in enumerate(files):
        content = file.read_bytes()
        bits = bytearray(content)
        bits[number * 37 % len(bits)] ^= 1 << number % 8
        if damage == "gone":
            file.unlink()
        else:
            other = {"cut": content[: len(content) // 2], "empty": b"", "bit": bits}
            file.write_bytes(other[damage])
        for read in (lambda kept: kept.restore(4, like), lambda kept: kept.value(4)):
            with pytest.raises(records.Damaged):
                read(Checkpoints(place.parent))
        file.write_bytes(content)
    assert Checkpoints(place.parent).value(4) == {"step": 4, "third": 1 / 3}


def test_arrays_of_another_network_are_damage(tmp_path):
    checkpoints, like = saved(tmp_path / "checkpoints")
    for other in (like | {"more": jnp.zeros(3)}, like | {"w": jnp.zeros((2, 3))}):
        with pytest.raises(records.Damaged, match="arrays"):
            checkpoints.restore(4, other)
