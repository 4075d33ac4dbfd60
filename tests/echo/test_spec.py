"""The factor in all its notations, errors about settings, and the names of the library."""

import decimal
import fractions
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

import echo
from echo.spec import exact_factor
from tests.helpers.runs import HANGS

INTEGER = "an integer of at least 0"
NUMBER = "a number from 1 to 1000000"
WRONG = [
    *[
        ("factor", value, NUMBER)
        for value in (0, 0.99, -2, "two", "1/0", float("nan"), float("inf"))
    ],
    *[("factor", value, NUMBER) for value in (None, True, 1e7, [2])],
    *[("shuffle_buffer", value, INTEGER) for value in (-1, 1.0, "8", None, True)],
    *[("seed", value, INTEGER) for value in (-1, 0.5, "s", None, False)],
]


@pytest.mark.parametrize(("field", "value", "allowed"), WRONG)
def test_a_wrong_value_is_an_error_that_names_it(field, value, allowed):
    with pytest.raises(echo.EchoSpecError) as raised:
        echo.EchoSchedule(**({"factor": 2} | {field: value}))
    assert (raised.value.field, raised.value.value) == (field, value)
    assert str(raised.value).startswith(f"{field} is {value!r}; allowed: {allowed}")
    assert isinstance(raised.value, ValueError)


def test_an_error_can_be_raised_in_another_process():
    with pytest.raises(echo.EchoSpecError) as raised:
        echo.EchoSchedule(0.5)
    received = pickle.loads(pickle.dumps(raised.value))
    assert isinstance(received, echo.EchoSpecError)
    assert str(received) == str(raised.value)
    assert (received.field, received.value) == ("factor", 0.5)


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
def test_a_factor_is_the_decimal_that_was_written(factor, exact):
    assert exact_factor(factor) == exact


def test_the_library_exports_what_it_lists_and_documents_it(request):
    reference = (request.config.rootpath / "docs" / "api.md").read_text()
    for name in echo.__all__:
        assert getattr(echo, name) is not None
        assert re.search(rf"echo\.{name}\b", reference), name
    with pytest.raises(AttributeError, match="no attribute 'EchoStage'"):
        _ = echo.EchoStage


@pytest.mark.parametrize("missing", [(), ("jax",), ("grain", "jax", "tensorflow")])
def test_a_star_import_gives_what_the_installed_packages_allow(missing, request):
    program = f"import sys; sys.modules |= dict.fromkeys({missing})\nfrom echo import *"
    printed = subprocess.check_output(
        [sys.executable, "-c", f"{program}\nprint(dir())"],
        text=True,
        cwd=request.config.rootpath,
        timeout=HANGS,
    )
    assert "'echo_iterable'" in printed
    assert ("'EchoIterDataset'" in printed) == ("grain" not in missing)
    assert ("'DeviceStore'" in printed) == ("jax" not in missing)
