"""Settings that are not allowed are refused, naming the field, the value and what is allowed."""

import decimal
import fractions

import numpy as np
import pytest

import echo

INTEGERS = "an integer of at least {}"
NUMBER = "a number from 1 to 1000000"

WRONG = [
    (
        "insertion",
        "before",
        "'none', 'before_augmentation', 'after_augmentation', 'after_batching'",
    ),
    ("insertion", None, "'none', 'before_augmentation'"),
    ("placement", "gpu", "'host', 'device'"),
    *(
        ("factor", value, NUMBER)
        for value in (0, 0.99, -2, "two", "1/0", float("nan"), float("inf"), None, True, 1e7, [2])
    ),
    *(("shuffle_buffer", value, INTEGERS.format(0)) for value in (-1, 1.0, "8", None, True)),
    *(("seed", value, INTEGERS.format(0)) for value in (-1, 0.5, "s", None, False)),
]


@pytest.mark.parametrize(("field", "value", "allowed"), WRONG)
def test_a_wrong_value_is_refused_by_name(field, value, allowed):
    right = {"insertion": "before_augmentation", "factor": 2, "shuffle_buffer": 8}
    with pytest.raises(echo.EchoSpecError) as raised:
        echo.EchoSpec(**(right | {field: value}))
    assert raised.value.field == field
    assert str(raised.value).startswith(f"{field} is {value!r}; allowed: {allowed}")
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize(("field", "value", "allowed"), [w for w in WRONG if w[0] in "factor seed"])
def test_the_schedule_refuses_the_same(field, value, allowed):
    with pytest.raises(echo.EchoSpecError, match=f"^{field} is .*; allowed: {allowed}"):
        echo.EchoSchedule(**({"factor": 2} | {field: value}))


def test_a_factor_needs_a_place():
    with pytest.raises(
        echo.EchoSpecError, match="factor is 2; allowed: 1 where insertion is 'none'"
    ):
        echo.EchoSpec(factor=2)
    assert echo.EchoSpec(factor=1.0).insertion == "none"


@pytest.mark.parametrize(
    ("factor", "exact"),
    [
        (1, 1),
        (1.1, fractions.Fraction(11, 10)),
        ("1.1", fractions.Fraction(11, 10)),
        (decimal.Decimal("1.50"), fractions.Fraction(3, 2)),
        (fractions.Fraction(4, 3), fractions.Fraction(4, 3)),
        (np.float32(2.7), fractions.Fraction(27, 10)),
        (np.int64(3), 3),
        (1_000_000, 1_000_000),
    ],
)
def test_factors_may_be_written_in_many_ways(factor, exact):
    spec = echo.EchoSpec("after_batching", factor, shuffle_buffer=np.int32(4), seed=7)
    assert spec.exact_factor == exact


def test_a_spec_cannot_be_changed_behind_its_check():
    with pytest.raises(AttributeError):
        echo.EchoSpec().factor = 0.5


def test_the_library_names_what_it_has_and_no_more():
    for name in echo.__all__:
        assert getattr(echo, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'EchoStage'"):
        _ = echo.EchoStage
