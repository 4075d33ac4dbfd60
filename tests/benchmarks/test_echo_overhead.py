"""The benchmark of the echo stage, and what all benchmarks share."""

import argparse
import dataclasses
import runpy
import subprocess
import sys

import pytest

from benchmarks import (
    common,
    confirmation,
    echo_overhead,
    input_throughput,
    real_data_curves,
    study_scale,
)
from tests.helpers.refusals import refusal
from tests.helpers.runs import HANGS


def run(request, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.echo_overhead", *arguments],
        capture_output=True,
        text=True,
        cwd=request.config.rootpath,
        timeout=HANGS,
    )


@pytest.mark.long
def test_quick_run_prints_a_table_per_path(request, tmp_path):
    out = tmp_path / "new" / "report.md"
    finished = run(request, "--quick", "--factors=2", "--no-memory", f"--out={out}")
    assert finished.returncode == 0, finished.stderr
    assert out.read_text() == finished.stdout
    lines = finished.stdout.splitlines()
    rows = [line[:5] for line in lines if line.startswith("| ")]
    assert rows == ["| e |", "| ---", "| 2 |"] * 2
    assert finished.stdout.count("| e | echo | copying alone |") == 1
    assert finished.stdout.count("| e | echo | Grain |") == 1
    assert ("tf.data is left out" in finished.stdout) == (
        "tf.data, in chunks" not in finished.stdout
    )


@pytest.mark.slow
def test_memory_is_measured_per_side(monkeypatch):
    sides = {"stage": {"echo": echo_overhead.SIDES["stage"]["echo"]}}
    monkeypatch.setattr(echo_overhead, "SIDES", sides)
    table = echo_overhead.memory_table("stage", [4], echo_overhead.QUICK).splitlines()
    assert table[0] == "| MB | e = 4 |"
    assert table[2].startswith("| echo | ")


@pytest.mark.parametrize("wrong", ["--factors=1.5", "--factors=0", "--rounds=0", "--seconds=-1"])
def test_wrong_input_exits_with_one_sentence(wrong, capsys):
    assert "; allowed: " in refusal(echo_overhead.main, [wrong], capsys)


def test_help_shows_the_commands(capsys):
    with pytest.raises(SystemExit) as exit_info:
        echo_overhead.main(["--help"])
    assert exit_info.value.code == 0
    assert "--out=results/echo_overhead.md" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("path", ["stage", "whole"])
def test_all_sides_return_the_same_kind_of_batches(path):
    sizes = echo_overhead.QUICK
    for side in echo_overhead.available_sides(path).values():
        batches = side.batches(side.load(sizes), sizes, path == "whole", 4)
        labels = []
        for _ in range(20):
            batch = next(batches)
            image, label = batch.values() if isinstance(batch, dict) else batch
            assert image.shape == (128, 32, 32, 3)
            assert image.dtype == "uint8"
            labels += label.tolist()
        # Epochs alone would emit each of 1,000 examples two or three times in 2,560 outputs.
        if side.batches is not echo_overhead.copying_alone:
            assert len(labels) / len(set(labels)) == pytest.approx(4, rel=0.15)


def test_rounds_are_interleaved_and_the_warm_up_does_not_count():
    calls = []

    def side(name, values):
        values = iter(values)
        return lambda: calls.append(name) or next(values)

    spreads = common.interleaved({"a": side("a", [9, 1, 3, 2]), "b": side("b", [9, 7, 5, 6])}, 3)
    assert [sorted(calls[i : i + 2]) for i in range(0, 8, 2)] == [["a", "b"]] * 4
    assert (spreads["a"].median, spreads["a"].low, spreads["a"].high) == (2, 1, 3)
    assert spreads["b"].values == (7, 5, 6)
    assert f"{spreads['b']:.1f}" == "6.0 (5.0 to 7.0)"


def test_rate_counts_items(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(common.time, "perf_counter", lambda: now[0])

    def iterator():  # 50 per second
        while True:
            now[0] += 0.02
            yield None

    assert common.rate(iterator(), 5, 1.0) == pytest.approx(5 * 50)


def block(megabytes):
    return megabytes


def fill(megabytes):
    filled = bytearray(b"x") * (megabytes * 10**6)
    assert filled[-1]


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_increase_is_that_of_the_work():
    assert common.memory_increase(block, fill, 100) == pytest.approx(100e6, rel=0.1)


def test_tables_are_markdown():
    assert common.markdown_table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | ---: |\n| 1 | 2 |"


@dataclasses.dataclass(frozen=True)
class Plan:
    rounds: int = 5
    seconds: float = 2.0
    batch_size: int = 512


@pytest.mark.parametrize(
    ("argv", "plan"),
    [
        ([], Plan()),
        (["--quick"], Plan(rounds=1)),
        (["--quick", "--rounds=3"], Plan(rounds=3)),
        (["--batch-size=8", "--seconds=0.5"], Plan(seconds=0.5, batch_size=8)),
    ],
)
def test_flags_override_the_plan(argv, plan):
    quick = Plan(rounds=1)
    parser = common.arguments("x", "", Plan(), quick, rounds="", seconds="", batch_size="")
    assert common.plan(parser.parse_args(argv), Plan(), quick) == plan


@pytest.mark.parametrize(
    ("parse", "wrong"),
    [
        (common.number(1), "1.5"),
        (common.number(1), "0"),
        (common.number(0.001), "nan"),
        (common.number(0.0, 1.0), "1"),
        (common.number(0.0, 1.0), "x"),
        (common.one_of(["a", "b"]), "c"),
    ],
)
def test_wrong_values_of_flags_are_refused(parse, wrong):
    with pytest.raises(argparse.ArgumentTypeError, match=f"got '{wrong}'; allowed: "):
        parse(wrong)


@pytest.mark.parametrize("benchmark", [echo_overhead, real_data_curves])
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_measured(
    benchmark, tmp_path, capsys
):
    (tmp_path / "file").write_text("")
    sentence = refusal(benchmark.main, [f"--out={tmp_path}"], capsys)
    assert sentence.endswith(f"got '{tmp_path}', a directory; allowed: files")
    sentence = refusal(benchmark.main, [f"--out={tmp_path}/file/new/page.md"], capsys)
    assert sentence.endswith(f"but {tmp_path}/file is a file; allowed: files")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["wall_time", "--problem=sentences"],
        ["decaying_factors", "--problem=sentences", "--train={}"],
        ["mean_curves", "--problem=cells", "--train={}"],
        ["input_throughput", "--data=coco_mini"],
        ["real_data_curves", "--references"],
    ],
    ids=lambda words: words[0],
)
def test_data_that_are_not_prepared_are_one_sentence(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "data"))
    name, *flags = [word.format(tmp_path / "train") for word in words]
    monkeypatch.setattr(sys, "argv", [name, *flags])
    monkeypatch.delitem(sys.modules, f"benchmarks.{name}", raising=False)
    with pytest.raises(SystemExit) as exit_info:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert exit_info.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: data set ")
    assert f"is not prepared in {tmp_path / 'data'}" in error


def test_studies_are_not_mixed_with_what_a_directory_holds(tmp_path, capsys):
    sentence = refusal(study_scale.main, [f"--keep={tmp_path}"], capsys)
    assert sentence.endswith("allowed: a directory that does not exist yet")


@pytest.mark.parametrize("flags", [[], ["--choose"]])
def test_a_directory_without_records_is_one_sentence(flags, tmp_path, capsys):
    sentence = refusal(confirmation.main, [*flags, f"--records={tmp_path}"], capsys)
    assert sentence.startswith(f"--records: {tmp_path} has no packed ")
    assert not list(tmp_path.iterdir())


def test_no_flag_gives_the_other_sides_another_number_of_workers(capsys):
    with pytest.raises(SystemExit):
        input_throughput.main(["--help"])
    assert "--cores" not in capsys.readouterr().out
