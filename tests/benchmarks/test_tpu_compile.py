"""Compiling for TPUs ahead of time: what is missing, what is refused, and one small case."""

import importlib.util

import jax
import pytest

from benchmarks import tpu_compile
from benchmarks.tpu_compile import CASES, Case
from tests.helpers.refusals import refusal


def test_a_missing_compiler_is_one_sentence(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    words = ["--cases=cifar10", f"--cache={tmp_path / 'cache'}"]
    wanted = f"libtpu is not installed; run: pip install 'jax[tpu]=={jax.__version__}'"
    assert refusal(tpu_compile.main, words, capsys) == wanted
    assert not (tmp_path / "cache").exists()


def test_an_unknown_case_is_refused_with_the_known_ones(capsys):
    sentence = refusal(tpu_compile.main, ["--cases=resnet"], capsys)
    assert "got 'resnet'; allowed: cifar10, " in sentence


@pytest.mark.extras
def test_a_small_step_is_compiled_once_and_its_gradients_are_scattered(
    monkeypatch, capsys, tmp_path
):
    pytest.importorskip("libtpu")
    case = Case("lm1b", size="mini", fields=(("sharding", "fsdp"),))
    monkeypatch.setitem(CASES, "small", case)
    cache, out = tmp_path / "cache", tmp_path / "report.md"
    argv = ["--cases=small", f"--cache={cache}", f"--out={out}"]
    assert tpu_compile.main(argv) == 0
    assert "small: compiled in" in capsys.readouterr().err
    assert tpu_compile.main(argv) == 0
    printed = capsys.readouterr()
    assert "small: compiled before" in printed.err
    assert out.read_text() == printed.out

    compiled, counts = tpu_compile.load("small", cache)
    kinds = {collective.kind for collective in counts.collectives}
    assert {"all-gather", "reduce-scatter"} <= kinds
    # No logits are computed again at this size, so the products are those of the step as written.
    assert counts.flops == pytest.approx(compiled.model_flops, rel=0.05)
    assert compiled.memory > 0
