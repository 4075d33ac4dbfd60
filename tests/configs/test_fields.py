"""Every field of every workload at extreme values: a run, or one sentence and nothing written.

Accepted values must get through `prepare`, which opens the data, computes the shapes of the
network's state, and reserves the memory for echoing. It does not compile a training step; a few
accepted values near the limits are trained with.
"""

import copy
import decimal
import fractions
import math
import os
import re

import jax
import numpy as np
import pytest

import train
from configs import base
from configs.fields import SWITCH, Choices, Field, FieldError, Range, Text
from models.resnet import STAGES, BasicBlock
from runs import cli
from tests.helpers.runs import mini
from training import memory
from training.experiment import make_experiment

NAMES = ("cifar10", "imagenet", "lm1b", "common_crawl", "coco", "vit")
MINIS = [f"configs/{name}.py:mini" for name in NAMES]

WORDS = ["", " ", "nan", "-nan", "sNaN", "inf", "-inf", "-1", "-0", "0", "1", "1.5", "1e18", "1e23"]
WORDS += [
    "1e308",
    "1e400",
    "1e999999999",
    "5e-324",
    "1e-999999999",
    "0x10",
    "1_0_0",
    "true",
    "None",
]
WORDS += ["[1]", "ünïcödé", "a\0b", "a\nb", "\udcff", "../evil", "9" * 5000, "word", "x" * 5000]
VALUES = [
    None,
    math.nan,
    math.inf,
    -1,
    0,
    True,
    10**30,
    10**6000,
    1.5,
    [],
    {},
    (1, 2),
    b"x",
    object,
]
VALUES += [np.float32(1), np.int64(3), np.bool_(True), np.array([1]), fractions.Fraction(1, 3)]


def of(kind):
    return [field for field in base.FIELDS if type(field.default) is kind]


def refusal(field, value):
    """Why a field cannot have a value, or None."""
    try:
        field.read(value)
    except FieldError as error:
        return str(error)
    return None


def is_sentence(message):
    return message and "\n" not in message and len(message) < 1000 and message.isprintable()


@pytest.mark.parametrize("field", base.FIELDS, ids=lambda field: field.name)
def test_a_field_reads_a_value_in_range_or_says_what_is_allowed(field):
    accepted = []
    for value in WORDS + VALUES:
        if (message := refusal(field, value)) is None:
            accepted.append(field.read(value))
        else:
            assert message.startswith(f"config.{field.name} is "), value
            assert "; allowed: " in message
            assert is_sentence(message), value
    assert all(type(value) is type(field.default) for value in accepted)
    for value in accepted:
        field.check(value)
    assert not any(isinstance(value, float) and not math.isfinite(value) for value in accepted)


@pytest.mark.parametrize("field", base.FIELDS, ids=lambda field: field.name)
def test_defaults_and_ends_of_ranges_are_allowed_but_nothing_beyond(field):
    assert field.read(field.default) == field.default
    match field.allowed:
        case Range(low, high, above, below, zero):
            step = 1 if type(field.default) is int else None
            beyond = [(low, -1, above), (high, 1, below)]
            for end, sign, left_out in beyond:
                outside = end + sign * step if step else math.nextafter(end, sign * math.inf)
                inside = end - sign * step if step else math.nextafter(end, -sign * math.inf)
                assert field.read(inside) == inside
                assert (end in field.allowed) != left_out
                assert outside not in field.allowed or (zero and outside == 0)
            assert (0 in field.allowed) == (zero or (low <= 0 and not (above and low == 0)))
        case Choices(values):
            assert [field.read(value) for value in values] == list(values)
            if field.allowed == SWITCH:
                assert field.read("true") is True
                assert field.read("FALSE") is False
                assert field.read(1) is True
        case Text(max_length, min_length):
            assert field.read("x" * max_length) == "x" * max_length
            assert "x" * (max_length + 1) not in field.allowed
            assert ("" in field.allowed) == (min_length == 0)


def test_the_ends_of_ranges_are_readable_and_can_be_given_as_they_are_printed():
    for field in base.FIELDS:
        if isinstance(field.allowed, Range):
            printed = re.findall(r"(?:from|above|to|below) (-?[\d][\w.+-]*)", field.range_text)
            assert [type(field.default)(decimal.Decimal(end)) for end in printed] == [
                field.allowed.low,
                field.allowed.high,
            ]
            assert not re.search(r"\d{8}", field.range_text), field.range_text
    (target,) = (field for field in base.FIELDS if field.name == "target.value")
    assert target.range_text == "a number from -1e30 to 1e30"


def test_numbers_are_read_exactly():
    by_name = {field.name: field for field in base.FIELDS}
    for text, number in [("1099511627775", 2**40 - 1), ("1e12", 10**12), ("1.5e1", 15), ("+7", 7)]:
        assert by_name["echo.shuffle_buffer"].read(text) == number
    field = Field("n", 0, "", Range(0, 10**24))
    assert field.read("1e23") == 10**23
    assert int(float("1e23")) != 10**23


def test_float32_holds_the_ends_of_ranges():
    """The compiled step takes hyperparameters as float32. A learning rate may overflow there: such
    a run diverges at once."""
    for field in of(float):
        if field.name.startswith("optimizer.") and isinstance(field.allowed, Range):
            assert np.float32(field.allowed.low) > 0 or field.allowed.low == 0
            if field.name != "optimizer.learning_rate":
                assert np.isfinite(np.float32(field.allowed.high))
            if field.name == "optimizer.momentum":
                assert np.float32(field.read(0.999999)) < 1


def prepared(flag, name, value):
    """'ok', or the sentence that refuses a value of a field; any other error is raised."""
    try:
        config, _ = cli.load_config(flag, [f"--config.{name}={value}"], base.FIELDS)
        make_experiment(config)
    except cli.InputError as error:
        return str(error)
    return "ok"


@pytest.mark.slow
@pytest.mark.parametrize("flag", MINIS)
def test_values_out_of_range_are_refused_before_anything_is_opened(flag):
    for field in base.FIELDS:
        for word in ("nan", "-1", "word", "a\nb") if flag == MINIS[0] else ("inf", "a\0b"):
            if message := refusal(field, word):
                assert prepared(flag, field.name, word) == message


# Fields that affect `prepare` in each workload, with values in their ranges: the ends, and values
# that the data, the network, or memory may still refuse.
PREPARED = {
    "configs/cifar10.py:mini": {
        "workload": ["word", "imagenet", "lm1b", "coco"],
        "dataset.name": ["word", "..", "../evil", "x" * 100, "ünïcödé", "1e400"],
        "dataset.train_split": ["word", "train[:0]", "train[", "x" * 200],
        "dataset.validation_split": ["word", "test[5:"],
        "dataset.text": ["sentences", "documents"],
        "dataset.spaced_epochs": ["1e6"],
        "augmentation.pad": ["256"],
        "model.depth": ["1", "7", "9"],
        "model.width": ["65536", "30000"],
        "model.ghost_batch_size": ["5", "1e6"],
        "batch_size": ["1", "12001", "1048576"],
        "budget.fresh_examples": ["0", "31", "32", "4294967296"],
        "optimizer.learning_rate": ["1e15", "0"],
        "optimizer.momentum": ["0.999999"],
        "optimizer.schedule.horizon_fresh_examples": ["1", "4294967296"],
        "optimizer.schedule.warmup_progress": ["5e-324", "0.9999999999999999"],
        "target.metric": ["word"],
        "echo.insertion": ["before_augmentation", "after_batching"],
        "echo.policy": ["auto"],
        "echo.factor": ["1e6"],
        "echo.shuffle_buffer": ["1e12"],
        "echo.replay": ["word"],
        "echo.placement": ["device"],
        "echo.streams": ["1024", "32"],
        "upstream.examples_per_second": ["1e12"],
        "upstream.stall_seconds": ["1"],
        "upstream.stall_every_seconds": ["1"],
        "augment_on": ["device"],
        "prefetch": ["0", "1024"],
        "mesh.data": ["65536"],
        "mesh.model": ["2", "65536"],
        "sharding": ["fsdp", "tensor"],
        "seed.data": ["4294967295"],
        "seed.model": ["4294967295"],
    },
    "configs/imagenet.py:mini": {
        "dataset.canvas": ["8", "16384"],
        "augmentation.crop_size": ["4096"],
        "augmentation.min_area": ["5e-324"],
        "model.depth": ["0", "32"],
        "model.width": ["65536"],
        "batch_size": ["1048576"],
    },
    "configs/lm1b.py:mini": {
        "dataset.text": [""],
        "dataset.sequence_length": ["2"],
        "dataset.vocabulary_size": ["8", "4194304"],
        "model.layers": ["1"],
        "model.dim": ["2", "3", "131072"],
        "model.heads": ["8192"],
        "model.mlp_dim": ["1048576"],
    },
    "configs/coco.py:mini": {
        "dataset.canvas": ["8"],
        "augmentation.crop_size": ["8"],
        "dataset.max_boxes": ["10000"],
        "model.depth": ["50"],
        "model.width": ["65536"],
    },
}


@pytest.mark.long
@pytest.mark.parametrize("flag", PREPARED)
def test_values_within_ranges_are_prepared_or_refused_in_a_sentence(flag, tmp_path, monkeypatch):
    """On a simulated machine of 2 GiB, so that every machine refuses the same values."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(memory, "of_machine", lambda: 2**31)
    monkeypatch.setattr(memory, "of_device", lambda device: 2**31)
    monkeypatch.setitem(STAGES, 18, (BasicBlock, (1, 1, 1, 1)))  # traced in a third of the time
    answers = {
        (name, value): prepared(flag, name, value)
        for name, values in PREPARED[flag].items()
        for value in values
    }
    assert "ok" in answers.values()
    assert all(map(is_sentence, answers.values()))
    assert not list(tmp_path.iterdir())


TOO_LARGE = [
    {"model__width": 65_536},
    {"batch_size": 2**20, "budget__fresh_examples": 2**31, "prefetch": 1024},
    {
        "echo__policy": "auto",
        "echo__insertion": "before_augmentation",
        "echo__shuffle_buffer": 10**12,
    },
]


@pytest.mark.slow
@pytest.mark.parametrize("fields", TOO_LARGE, ids=lambda fields: "-".join(fields))
def test_a_run_that_exceeds_memory_is_refused_before_anything_is_written(fields, tmp_path, capsys):
    words = [f"--config.{name.replace('__', '.')}={value}" for name, value in fields.items()]
    argv = [f"--config={MINIS[1]}", f"--workdir={tmp_path / 'run'}", *words]
    assert cli.guarded(train.main, argv) == cli.WRONG_INPUT
    error = capsys.readouterr().err
    assert "bytes" in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_state_bytes_are_those_of_the_arrays():
    program = make_experiment(mini()).program
    state = program.init(0)
    assert program.state_bytes == sum(x.nbytes for x in jax.tree.leaves(state))
    assert program.gradient_bytes == sum(x.nbytes for x in jax.tree.leaves(state.params))


NEAR_THE_LIMITS = [
    ({"optimizer__learning_rate": 1e15, "optimizer__weight_decay": 1e15}, "diverged"),
    ({"optimizer__learning_rate": 1e-15, "optimizer__momentum": 0.999999}, "exhausted"),
    (
        {
            "echo__insertion": "before_augmentation",
            "echo__factor": 1.000001,
            "echo__shuffle_buffer": 2**40,
            "upstream__examples_per_second": 1e12,
            "upstream__stall_every_seconds": 1e6,
            "upstream__stall_seconds": 1e6,
            "seed__data": 2**32 - 1,
            "seed__model": 2**32 - 1,
        },
        "exhausted",
    ),
]


@pytest.mark.parametrize(("fields", "status"), NEAR_THE_LIMITS)
def test_values_near_the_limits_train(fields, status, tmp_path):
    config = mini(budget__fresh_examples=96, evaluate_every_fresh_examples=0, **fields)
    assert train.train(config, tmp_path / "run")["status"] == status


@pytest.mark.parametrize("value", [None, "32", 32.0, True, np.int64(32), math.nan, -1])
def test_values_set_by_a_configuration_file_are_checked(value):
    config = mini()
    with config.ignore_type():
        config.batch_size = value
    with pytest.raises(cli.InputError, match=r"^config\.batch_size is .*; allowed: a whole numb"):
        make_experiment(config)


def test_a_field_deleted_by_a_configuration_file_is_named():
    config = copy.deepcopy(mini())
    with config.unlocked():
        del config.echo.streams
    with pytest.raises(cli.InputError, match=r"^config\.echo\.streams is missing; start from"):
        make_experiment(config)


UPSTREAM = [
    {"upstream__examples_per_second": 0.01, "upstream__latency_seconds": 600.0},
    {
        "upstream__examples_per_second": 0.01,
        "upstream__stall_every_seconds": 0.001,
        "upstream__stall_seconds": 1e6,
    },
]


@pytest.mark.parametrize("fields", UPSTREAM, ids=lambda fields: "-".join(fields))
def test_an_upstream_that_takes_minutes_per_record_is_refused(fields):
    with pytest.raises(cli.InputError, match=r"^config\.upstream"):
        make_experiment(mini(**fields))


PATHS = ["x" * 5000, "x" * 5000 + ".py", "a\0b.py", ".", "/dev/null", "dangling.py", "a\nb.py", ""]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[:12])
def test_a_path_that_is_not_a_configuration_is_one_sentence(path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.symlink("nowhere.py", "dangling.py")
    argv = [f"--config={path}", f"--workdir={tmp_path / 'run'}"]
    assert cli.guarded(train.main, argv) == cli.WRONG_INPUT
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "give one of configs/cifar10.py" in error or "required: --config" in error
    assert len(error) < 1000
    assert [p.name for p in tmp_path.iterdir()] == ["dangling.py"]
