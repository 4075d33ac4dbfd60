"""A run on disk: whole records, clocks that leave pauses out, checkpoints that come back."""

import contextlib
import errno
import hashlib
import json
import os
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runs import fingerprint, records
from runs.checkpoints import Checkpoints
from runs.clock import Clock
from runs.tracking import Followers, Recorder
from tests.helpers.runs import HANGS


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "result.json"
    records.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.write_json(path, {"a": float("nan")})
    assert records.read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]
    assert records.read_json(tmp_path / "none.json") is None


@pytest.mark.parametrize("lacks", [(), ("os.link",), ("os.link", "fcntl.flock")])
def test_the_first_of_several_processes_creates_a_record(lacks, tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.EOPNOTSUPP, "not here")

    for name in lacks:
        monkeypatch.setattr(name, unsupported)
    path, created = tmp_path / "study.json", []

    def create(number):
        with contextlib.suppress(FileExistsError):
            records.create_json(path, {"by": number})
            created.append(number)

    for _ in range(50):
        threads = [threading.Thread(target=create, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(created) == 1
        assert records.read_json(path) == {"by": created.pop()}
        assert [p.name for p in tmp_path.iterdir()] == ["study.json"]
        path.unlink()


def test_the_measurements_are_on_disk_before_the_result(tmp_path, monkeypatch):
    """After a power failure, a result must not stand beside measurements that were lost."""
    forced, force = [], os.fsync

    def fsync(file):
        status = os.fstat(file)
        forced.append((status.st_ino, status.st_size, (tmp_path / records.RESULT).exists()))
        force(file)

    monkeypatch.setattr(os, "fsync", fsync)
    recorder = Recorder(tmp_path, 0, Followers({}, print))
    recorder.write({"step": 1, "fresh_examples": 8, "split": "train", "loss": 1.0})
    recorder.close()
    recorder.write_result({"status": "exhausted"})
    metrics = (tmp_path / records.METRICS).stat()
    assert forced[0] == (metrics.st_ino, metrics.st_size, False)
    assert (tmp_path / records.RESULT).exists()


def test_a_record_is_created_whole_where_links_are_not_supported(tmp_path, monkeypatch):
    """Whoever sees the file can read it, and one of several creators succeeds."""

    def no_links(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    path, seen, created = tmp_path / "study.json", [], []
    content = {str(number): "x" * 100 for number in range(50_000)}

    def read():
        until = time.monotonic() + HANGS
        while not path.exists() and time.monotonic() < until:
            pass
        seen.append(records.read_json(path))

    def create(number):
        with contextlib.suppress(FileExistsError):
            records.create_json(path, {**content, "by": number})
            created.append(number)

    threads = [threading.Thread(target=read)]
    threads += [threading.Thread(target=create, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(created) == 1
    assert seen == [{**content, "by": created[0]}]
    assert [p.name for p in tmp_path.iterdir()] == ["study.json"]


def test_stale_temporary_files_are_removed_and_recent_ones_stay(tmp_path):
    dead, living = ".study.json." + "a" * 16 + ".tmp", ".study.json." + "b" * 16 + ".tmp"
    table = ".scores.csv." + "a" * 16 + ".tmp"
    for name in (dead, living, table, ".study.json.4711", ".notes.4711"):
        (tmp_path / name).write_text("{")
        assert records.is_temporary(name) == (name != ".notes.4711")
    old = time.time() - records.STALE_SECONDS - 3600
    for name in (dead, table, ".study.json.4711", ".notes.4711"):
        os.utime(tmp_path / name, (old, old))
    records.remove_stale(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([living, ".notes.4711"])
    records.remove_stale(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b'{"a": NaN}', "it holds NaN"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 5000, "is not JSON"),
        (b"[1]", "holds list, not an object"),
        (b"null", "holds NoneType, not an object"),
    ],
)
def test_damage_is_named(tmp_path, content, says):
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(records.Damaged, match=f"result.json.*{says}"):
        records.read_object(tmp_path / "result.json")
    (tmp_path / records.METRICS).write_bytes(b'{"step": 1}\n' + content + b"\n")
    with pytest.raises(records.Damaged, match="line 2"):
        records.read_metrics(tmp_path)


def test_a_path_that_is_not_a_file_is_damaged_and_does_not_block(tmp_path):
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("directory", "pipe", "loop"):
        with pytest.raises(records.Damaged, match=name):
            records.read_json(tmp_path / name)
    assert records.read_json(tmp_path / "none" / "below") is None


def test_metrics_are_truncated_to_the_extent_in_a_checkpoint(tmp_path):
    writer = records.LinesWriter(tmp_path / records.METRICS)
    writer.write({"step": 1, "loss": 0.5})
    known = writer.sync()
    content = (tmp_path / records.METRICS).read_bytes()
    assert known == records.Extent(len(content), hashlib.sha256(content).hexdigest())
    writer.write({"step": 2, "loss": float("inf")})
    writer.close()
    assert records.read_metrics(tmp_path)[1] == {"step": 2, "loss": None}
    writer = records.LinesWriter(tmp_path / records.METRICS, keep_bytes=known.bytes)
    assert writer.sync() == known
    writer.write({"step": 2, "loss": 0.25})
    writer.close()
    assert records.read_metrics(tmp_path) == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]


@pytest.mark.parametrize(("old", "new"), [(b"}\n{", b"},{"), (b", ", b"\n"), (b"{", b"[{")])
def test_lines_that_are_json_together_only_are_damaged(tmp_path, old, new):
    path = tmp_path / records.METRICS
    path.write_bytes(b'{"step": 1, "a": 1}\n{"step": 2, "a": 1}\n'.replace(old, new, 1))
    with pytest.raises(records.Damaged, match="line 1"):
        records.read_lines(path)


def test_an_incomplete_last_line_is_dropped_and_a_damaged_one_before_it_named(tmp_path):
    path = tmp_path / records.METRICS
    path.write_text('{"step": 1}\n{"step": 2')
    assert records.read_metrics(tmp_path) == [{"step": 1}]
    path.write_text('{"step": 1\n{"step": 2}\n')
    with pytest.raises(ValueError, match="line 1"):
        records.read_metrics(tmp_path)


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
    monkeypatch.setattr("runs.clock.time.perf_counter", lambda: now[0])
    clock = Clock(train=10.0, wall=20.0, waited=1.0)
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
    assert resumed.readings() == clock.readings() == {"train": 34.0, "wall": 51.0, "waited": 17.0}


def saved(directory, best=2):
    """Five checkpoints were saved, of which the newest two and the best are kept."""
    checkpoints = Checkpoints(directory)
    for step in range(1, 6):
        arrays = {"w": jnp.full((3,), step / 3), "nested": [jnp.int32(step)]}
        checkpoints.save(step, arrays, {"step": step, "third": 1 / 3}, best if step >= best else -1)
    checkpoints.close()
    return Checkpoints(directory), {"w": jnp.zeros(3), "nested": [jnp.int32(0)]}


def test_checkpoints_keep_the_newest_two_and_the_best_bit_for_bit(tmp_path):
    assert Checkpoints(tmp_path / "checkpoints").steps() == []
    checkpoints, like = saved(tmp_path / "checkpoints")
    assert checkpoints.steps() == [5, 4, 2]
    arrays = checkpoints.restore(2, like)
    np.testing.assert_array_equal(arrays["w"], jnp.full((3,), 2 / 3))
    assert jax.tree.leaves(arrays)[0].dtype == jnp.int32
    assert checkpoints.value(2) == {"step": 2, "third": 1 / 3}


def test_a_saved_checkpoint_is_reported_once_it_is_complete(tmp_path):
    found = []
    checkpoints = Checkpoints(tmp_path, lambda: found.append(checkpoints.steps()))
    for step in (1, 2, 3):
        checkpoints.save(step, {"w": jnp.zeros(3)}, {}, -1)
    checkpoints.close()
    assert found[-1] == [3, 2]
    assert all(steps for steps in found)


def test_a_checkpoint_that_is_replaced_is_there_until_the_new_one_is_complete(
    tmp_path, monkeypatch
):
    arrays = {"w": jnp.zeros(3)}
    checkpoints = Checkpoints(tmp_path)
    for value in ("first", "second"):
        checkpoints.save(1, arrays, value, -1)
    with monkeypatch.context() as killed:
        killed.setattr("runs.checkpoints._Manager.save", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            checkpoints.save(1, arrays, "third", -1)
    checkpoints.close()
    checkpoints = Checkpoints(tmp_path)
    for recover in (lambda: None, checkpoints.recover):
        recover()
        assert checkpoints.steps() == [1]
        checkpoints.check_metadata(1)
        assert checkpoints.value(1) == "second"
        np.testing.assert_array_equal(checkpoints.restore(1, arrays)["w"], arrays["w"])
    checkpoints.save(1, arrays, "fourth", -1)
    checkpoints.close()
    (tmp_path / ".1").mkdir()  # as if the process was killed before it removed the earlier one
    checkpoints.recover()
    assert checkpoints.value(1) == "fourth"
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "bit"])
def test_a_checkpoint_restores_what_was_saved_or_is_damaged(tmp_path, damage):
    """Whichever of its files is damaged; Orbax needs only some of them."""
    checkpoints, like = saved(tmp_path / "checkpoints")
    expected = jax.tree.map(np.asarray, checkpoints.restore(4, like))
    files = sorted(p for p in (tmp_path / "checkpoints" / "4").rglob("*") if p.is_file())
    seen = set()
    for number, file in enumerate(files):
        content = file.read_bytes()
        if damage == "gone":
            file.unlink()
        else:
            bits = bytearray(content)
            if bits:
                bits[number * 37 % len(bits)] ^= 1 << number % 8
            file.write_bytes(
                {"cut": content[: len(content) // 2], "empty": b"", "bit": bits}[damage]
            )
        try:
            restored = checkpoints.restore(4, like)
            jax.tree.map(np.testing.assert_array_equal, restored, expected)
            assert checkpoints.value(4) == {"step": 4, "third": 1 / 3}
            seen.add("intact")
        except records.Damaged:
            seen.add("damaged")
        file.write_bytes(content)
    assert seen == {"intact", "damaged"}


@settings(max_examples=25)
@given(data=st.data())
def test_a_fingerprint_depends_on_every_bit_and_not_on_sharding(data):
    dtype = data.draw(st.sampled_from(["float32", "bfloat16", "int32", "uint8", "bool"]))
    array = np.asarray(jnp.asarray(np.arange(24).reshape(2, 3, 4) % 2, dtype))
    known = fingerprint.of_arrays({"a": jnp.asarray(array)})
    assert known == fingerprint.of_arrays({"a": jnp.asarray(array)})
    place = tuple(data.draw(st.integers(0, n - 1)) for n in array.shape)
    changed = array.copy()
    changed[place] = not array[place]
    assert fingerprint.of_arrays({"a": jnp.asarray(changed)}) != known
    moved = np.roll(array, 1)  # the same values elsewhere
    assert fingerprint.of_arrays({"a": jnp.asarray(moved)}) != known


def test_trials_on_disk_come_in_order(tmp_path):
    for place in (
        "b/0/10",
        "b/0/9",
        "a/1/0",
        "a/0/0",
        "a/0/not_a_trial",
        "report/x/1",
        "a/0/01",
        "a/0/²",
    ):
        (tmp_path / place).mkdir(parents=True)
    found = [(t.condition, t.search, t.trial) for t, _ in records.trials_on_disk(tmp_path)]
    assert found == [("a", 0, 0), ("a", 1, 0), ("b", 0, 9), ("b", 0, 10)]
    assert json.dumps(str(records.TrialPath("a", 1, 0).under(tmp_path))).endswith('a/1/0"')


def test_error_files_are_those_that_processes_write():
    names = [records.error_file(process) for process in (0, 1, 12)]
    assert names == ["error.txt", "error1.txt", "error12.txt"]
    assert all(map(records.is_error_file, names))
    assert not any(map(records.is_error_file, ("error0.txt", "error01.txt", "errors.txt")))
