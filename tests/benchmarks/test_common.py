"""What all benchmarks share: rounds, rates, flags, and tables."""

import argparse
import dataclasses

import pytest

from benchmarks import common


def test_rounds_are_interleaved_and_the_warm_up_does_not_count():
    calls = []

    def side(name, values):
        values = iter(values)
        return lambda: calls.append(name) or next(values)

    spreads = common.interleaved({"a": side("a", [9, 1, 3, 2]), "b": side("b", [9, 7, 5, 6])}, 3)
    assert [sorted(calls[i : i + 2]) for i in range(0, 8, 2)] == [["a", "b"]] * 4
    assert f"{spreads['a']:.0f}" == "2 (1 to 3)"
    assert spreads["b"].values == (7, 5, 6)
    assert f"{spreads['b']:.1f}" == "6.0 (5.0 to 7.0)"


@dataclasses.dataclass(frozen=True)
class Plan:
    rounds: int = 5
    seconds: float = 2.0


def test_flags_override_the_plan():
    quick = Plan(rounds=1)
    parser = common.arguments("x", "", Plan(), quick, rounds="", seconds="")

    def chosen(*words):
        return common.plan(parser.parse_args(words), Plan(), quick)

    assert chosen() == Plan()
    assert chosen("--quick", "--seconds=0.5") == Plan(rounds=1, seconds=0.5)
    assert chosen("--quick", "--rounds=3") == Plan(rounds=3)


@pytest.mark.parametrize(
    ("parse", "wrong"),
    [
        (common.number(1), "1.5"),
        (common.number(1), "0"),
        (common.number(0.001), "nan"),
        (common.one_of(["a", "b"]), "c"),
    ],
)
def test_wrong_values_of_flags_are_refused(parse, wrong):
    with pytest.raises(argparse.ArgumentTypeError, match=wrong):
        parse(wrong)
