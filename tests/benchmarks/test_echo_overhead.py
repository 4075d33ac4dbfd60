"""The benchmark of the echo stage runs, says what it measured, and measures what it says."""

import subprocess
import sys

import pytest

from benchmarks import common, echo_overhead
from tests.helpers.runs import HANGS


def run(request, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.echo_overhead", *arguments],
        capture_output=True,
        text=True,
        cwd=request.config.rootpath,
        timeout=HANGS,
    )


def test_a_quick_run_gives_a_table_of_each_path(request, tmp_path):
    out = tmp_path / "new" / "report.md"
    finished = run(request, "--quick", "--factors=2", "--no-memory", f"--out={out}")
    assert finished.returncode == 0, finished.stderr
    assert out.read_text() == finished.stdout.rstrip("\n") + "\n"
    lines = finished.stdout.splitlines()
    rows = [line[:5] for line in lines if line.startswith("| ")]
    assert rows == ["| e |", "| ---", "| 2 |"] * 2
    assert finished.stdout.count("| e | echo | Grain |") == 2
    assert ("tf.data is left out" in finished.stdout) == (
        "tf.data, in chunks" not in finished.stdout
    )


def test_memory_is_measured_side_by_side(monkeypatch):
    sides = {"stage": {"echo": echo_overhead.SIDES["stage"]["echo"]}}
    monkeypatch.setattr(echo_overhead, "SIDES", sides)
    table = echo_overhead.memory_table("stage", [4], echo_overhead.QUICK).splitlines()
    assert table[0] == "| MB | e = 4 |"
    assert table[2].startswith("| echo | ")


@pytest.mark.parametrize("wrong", ["--factors=1.5", "--factors=0", "--rounds=0", "--seconds=-1"])
def test_wrong_input_is_answered_in_a_sentence(wrong, capsys):
    with pytest.raises(SystemExit) as left:
        echo_overhead.main([wrong])
    assert left.value.code == 2
    assert "; allowed: " in capsys.readouterr().err


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as left:
        echo_overhead.main(["--help"])
    assert left.value.code == 0
    assert "--out=results/echo_overhead.md" in capsys.readouterr().out


@pytest.mark.parametrize("path", ["stage", "whole"])
def test_the_sides_hand_over_the_same_kind_of_batches(path):
    sizes = echo_overhead.QUICK
    for side in echo_overhead.sides_here(path).values():
        batches = side.batches(side.load(sizes), sizes, path == "whole", 4)
        labels = []
        for _ in range(20):
            batch = next(batches)
            image, label = batch.values() if isinstance(batch, dict) else batch
            assert image.shape == (128, 32, 32, 3)
            assert image.dtype == "uint8"
            labels += label.tolist()
        # In 2,560 outputs, epochs alone would show 1,000 examples two or three times, not four.
        if side.batches is not echo_overhead.copies_alone:
            assert len(labels) / len(set(labels)) == pytest.approx(4, rel=0.15)


def test_sides_take_turns_and_the_first_round_does_not_count():
    calls = []

    def side(name, values):
        values = iter(values)
        return lambda: calls.append(name) or next(values)

    found = common.interleaved({"a": side("a", [9, 1, 3, 2]), "b": side("b", [9, 7, 5, 6])}, 3)
    assert [sorted(calls[i : i + 2]) for i in range(0, 8, 2)] == [["a", "b"]] * 4
    assert (found["a"].median, found["a"].low, found["a"].high) == (2, 1, 3)
    assert found["b"].values == (7, 5, 6)


def test_a_rate_counts_items(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(common.time, "perf_counter", lambda: now[0])

    def iterator():  # 50 a second
        while True:
            now[0] += 0.02
            yield None

    assert common.rate(iterator(), 5, 1.0) == pytest.approx(5 * 50)


def block(megabytes):
    return megabytes


def fill(megabytes):
    bytearray(b"x") * (megabytes * 10**6)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_the_rise_of_memory_is_that_of_the_work():
    assert common.rise_in_memory(block, fill, 100) == pytest.approx(100e6, rel=0.1)


def test_tables_are_markdown():
    assert common.markdown_table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | ---: |\n| 1 | 2 |"
