"""Fields: what each reads, what is refused, and what a configuration file may add."""

import fractions
import math

import numpy as np
import pytest

import train
from configs import base
from configs.fields import Field
from runs import cli
from runs.records import nested
from tests.helpers.runs import mini
from training.experiment import make_experiment

WORDS = ["", " ", "nan", "-nan", "inf", "-inf", "-1", "-0", "0", "1", "1.5", "1e18", "1e308"]
WORDS += ["1e400", "1e999999999", "5e-324", "1e-999999999", "0x10", "1_0_0", "true", "None", "[1]"]
WORDS += ["ünïcödé", "a\0b", "a\nb", "\udcff", "../evil", "9" * 5000, "word", "x" * 5000]
VALUES = [None, math.nan, math.inf, -1, 0, True, 10**30, 10**6000, 1.5, [], {}, (1, 2), b"x"]
VALUES += [object, np.float32(1), np.int64(3), np.bool_(True), np.ones(1), fractions.Fraction(1, 3)]


def refused(field, value):
    """Why a field cannot have a value; '' if it can."""
    try:
        field.read(value)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("field", base.FIELDS, ids=lambda field: field.name)
def test_a_field_reads_a_value_in_range_or_says_what_is_allowed(field):
    for value in WORDS + VALUES:
        if message := refused(field, value):
            assert message.startswith(f"config.{field.name} is "), value
            assert message.endswith(field.allowed)
            assert len(message) < 500
            assert message.isprintable()
        else:
            read = field.read(value)
            assert type(read) is type(field.default)
            assert not isinstance(read, float) or math.isfinite(read)
            field.check(read)


@pytest.mark.parametrize("field", base.FIELDS, ids=lambda field: field.name)
def test_defaults_and_ends_of_ranges_are_allowed_but_nothing_beyond(field):
    assert field.read(field.default) == field.default
    for choice in field.choices:
        assert field.read(choice) == choice
    for end, sign in ((field.low, -1), (field.high, 1)):
        if math.isfinite(end):
            assert field.read(end) == field.read(str(end)) == end
            whole = isinstance(field.default, int)
            assert refused(field, end + sign if whole else math.nextafter(end, sign * math.inf))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("echo.factor", "2", 2.0),
        ("budget.fresh_examples", "1e6", 1_000_000),
        ("budget.fresh_examples", "1_000", 1000),
        ("echo.shuffle_buffer", "1099511627775", 2**40 - 1),
        ("echo.shuffle_buffer", "1.5e1", 15),
        ("augmentation.flip", "FALSE", False),
        ("augmentation.flip", 1, True),
        ("dataset.name", "123", "123"),
        ("dataset.name", "a,b=@%#|{}'日本", "a,b=@%#|{}'日本"),
        ("batch_size", "\uff11\uff12\uff18", 128),  # full-width digits
        ("optimizer.learning_rate", "1E-3", 0.001),
        ("optimizer.learning_rate", ".5", 0.5),
        ("target.value", "-1e-3", -0.001),
    ],
)
def test_fields_take_the_types_of_their_defaults(name, text, value):
    config = mini()
    cli.set_field(config, name, text)
    assert nested(config, name) == value
    assert type(nested(config, name)) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("dataset.cache_dir", text) for text in ("None", "null", " ", " x", "x\t", "a\u200bb")),
        *(("batch_size", text) for text in ("010", "0x20", "32.5", "1,024", "1 0")),
        *(("echo.factor", text) for text in ("02", "1..2", "1/2", "2e", "\u22122", "nan")),
        *(("augmentation.flip", text) for text in ("yes", "on", "2", "", "None", "[true]")),
        ("optimizer.name", "'adamw'"),
        ("dataset.test_split", "None"),
    ],
)
def test_what_other_tools_would_take_for_something_else_is_refused(name, text):
    with pytest.raises(cli.InputError, match=f"^config.{name} is "):
        cli.set_field(mini(), name, text)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"optimizer__learning_rate": 1e39, "optimizer__weight_decay": 1e15}, "diverged"),
        ({"optimizer__learning_rate": 1e-15, "optimizer__momentum": 0.999999}, "exhausted"),
        (
            {
                "echo__insertion": "before_augmentation",
                "echo__factor": 1.000001,
                "echo__shuffle_buffer": 2**40,
                "upstream__examples_per_second": 1e12,
                "seed__data": 2**32 - 1,
                "seed__model": 2**32 - 1,
            },
            "exhausted",
        ),
    ],
)
def test_values_near_the_limits_train(fields, status, tmp_path):
    config = mini(budget__fresh_examples=96, evaluate_every_fresh_examples=0, **fields)
    assert train.train(config, tmp_path / "run")["status"] == status


@pytest.mark.parametrize("value", [None, "32", 32.0, True, np.int64(32), math.nan, -1])
def test_values_set_by_a_configuration_file_are_checked(value):
    config = mini()
    with config.ignore_type():
        config.batch_size = value
    with pytest.raises(cli.InputError, match=r"^config\.batch_size is "):
        make_experiment(config)


def test_a_file_may_add_a_field(monkeypatch):
    monkeypatch.setattr(base, "FIELDS", [*base.FIELDS])
    field = Field("model.dropout", 0.1, "share that is dropped", 0, 0.9)
    base.add(field)
    base.add(field)  # as a file that is imported twice does
    assert base.FIELDS.count(field) == 1
    assert base.get_config().model.dropout == 0.1
    with pytest.raises(ValueError, match=r"echo\.factor"):
        base.add(Field("echo.factor", 3, "another"))
