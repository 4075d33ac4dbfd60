"""Each example, shrunk: fast storage, and a target that is soon reached."""

import difflib
import importlib
import inspect

import numpy as np
import pytest
import scipy.stats

from examples import compare, slow_storage

TORCH = pytest.param("torch_jpegs", marks=pytest.mark.extras)
JOBS = [TORCH, "grain_jpegs", "jax_arrays"]


@pytest.fixture(scope="module")
def url():
    with slow_storage.serve(5_000) as url:
        yield url


def job_of(name):
    if name.startswith("torch"):
        pytest.importorskip("torch", reason="see requirements-extras.txt")
    return importlib.import_module(f"examples.{name}")


@pytest.mark.long
@pytest.mark.parametrize("name", JOBS)
def test_the_job_reaches_a_low_target_with_echo_and_without(name, url):
    job = job_of(name)
    for changed in ({}, {"make_loader": job.make_loader_with_echo}):
        result = job.train(url, 0, 0.15, **changed)
        assert result["seconds"] > 0
        assert result["steps"] % job_of("grain_jpegs").EVALUATE_EVERY == 0


@pytest.mark.parametrize("name", JOBS)
def test_echo_takes_at_most_four_lines(name):
    job = job_of(name)
    before, after = (
        inspect.getsource(function).splitlines()[1:]
        for function in (job.make_loader, job.make_loader_with_echo)
    )
    added = [line for line in difflib.ndiff(before, after) if line.startswith("+ ")]
    assert 1 <= len(added) <= 3  # and one that imports echo
    assert "import echo\n" in inspect.getsource(job)


@pytest.mark.parametrize("name", JOBS)
def test_what_advice_says_is_put_in_words(name, url):
    job_of(name)
    words = compare.advice(name, url, 0.01)
    assert any(text in words for text in ("echo after", "do not echo (R = "))


def test_storage_serves_every_digit_once_at_a_limited_rate(url):
    source, _ = slow_storage.packaged.open_source("digits_jpeg", "train")
    for index in (0, 7, slow_storage.NUM_TRAIN - 1):
        (record,) = source.__getitems__([index])
        assert slow_storage.get(f"{url}/{index}") == (record["image"], record["label"])
        assert slow_storage.decode(record["image"]).shape == (slow_storage.SIDE, slow_storage.SIDE)
    assert len(source) == slow_storage.NUM_TRAIN
    assert len(slow_storage.local("validation")[0]) == 300


def test_a_row_has_means_and_intervals_over_the_seeds():
    sooner = [2.0, 4.0, 3.0, 2.5, 3.5]
    pairs = [
        compare.Pair({"seconds": 4.0 * s, "steps": 10}, {"seconds": 4.0 + n / 100, "steps": 20 + n})
        for n, s in enumerate(sooner)
    ]
    cells = compare.row("grain_jpegs", "echo", pairs)
    seconds = {2: [4 * s for s in sooner], 3: [4 + n / 100 for n in range(5)]}
    seconds[4] = [before / after for before, after in zip(seconds[2], seconds[3], strict=True)]
    for column, values in seconds.items():
        mean, error = np.log(values).mean(), scipy.stats.sem(np.log(values))
        low, high = np.exp(scipy.stats.t.interval(0.95, 4, mean, error))
        assert cells[column] == f"{np.exp(mean):.3g} ({low:.3g} to {high:.3g})"
    assert cells[5] == "10, 22"


@pytest.mark.long
def test_the_command_runs_the_jobs_and_replaces_the_table(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{compare.BEGIN}old\n{compare.END}after\n")
    words = ["--jobs=jax_arrays", "--seeds=1", "--target=0.15", "--files-per-second=5000"]
    compare.main([*words, "--seconds=0.01", f"--out={page}"])
    printed = capsys.readouterr().out
    assert printed.startswith("| job | advice |")
    assert "| `examples/jax_arrays.py` | " in printed
    assert page.read_text() == f"before\n{compare.BEGIN}{printed}{compare.END}after\n"


@pytest.mark.parametrize("word", ["--jobs=x", "--out=missing.md", f"--out={compare.__file__}"])
def test_wrong_arguments_are_refused(word, capsys):
    """Before anything is measured."""
    with pytest.raises(SystemExit, match="2"):
        compare.main([word])
    assert word.partition("=")[2] in capsys.readouterr().err
