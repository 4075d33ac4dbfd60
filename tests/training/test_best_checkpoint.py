"""Evaluating a run: its best checkpoint, on every split held out, with parameters out."""

import os
import shutil

import numpy as np
import pytest
from flax import nnx

import train
from data import sources, splits
from models.resnet import CifarResNet
from runs import cli, records, trial_records, workdirs
from tests.helpers.runs import RESNET, mini, stop_at
from training.step import Program


@pytest.fixture
def finished(uninterrupted, tmp_path):
    """A copy of a finished run, of which the last evaluation need not be the best."""
    return shutil.copytree(uninterrupted(mini(**RESNET)), tmp_path / "run")


def evaluate(workdir, *words):
    return cli.guarded(train.main, [f"--evaluate={workdir}", *words])


def test_the_command_reports_the_best_checkpoint_on_both_splits(finished, capsys):
    assert evaluate(finished) == cli.OK
    best = records.read_json(finished / records.RESULT)["best"]
    found = records.read_json(finished / records.EVALUATION)
    assert found["fresh_examples"] == best["fresh_examples"]
    assert found["splits"]["validation"]["accuracy"] == pytest.approx(best["value"], abs=1e-6)
    assert set(found["splits"]) == {"validation", "test"}
    assert f"test: accuracy {found['splits']['test']['accuracy']:.4g}" in capsys.readouterr().out


@pytest.mark.slow
def test_saved_parameters_give_the_networks_logits_in_numpy(finished):
    assert evaluate(finished) == cli.OK
    arrays = np.load(finished / records.PARAMETERS)
    assert arrays["params/stem/conv/kernel"].shape == (3, 3, 1, 4)
    model = CifarResNet(depth=8, num_classes=10, width=4, in_channels=1, rngs=nnx.Rngs(0))
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        kind = "params" if isinstance(variable, nnx.Param) else "model_state"
        variable[...] = arrays["/".join([kind, *map(str, path)])]
        nnx.update(model, nnx.from_flat_state([(path, variable)]))
    test, _ = splits.open_source("digits", "test")
    images = np.stack([record["image"] for record in test])
    logits = model((images.astype(np.float32) - 127.5) / 64.0, train=False)
    accuracy = np.mean(np.asarray(logits).argmax(-1) == [record["label"] for record in test])
    found = records.read_json(finished / records.EVALUATION)["splits"]["test"]["accuracy"]
    assert accuracy == pytest.approx(found, abs=1e-6)


def test_the_test_split_is_evaluated_once(finished, capsys):
    assert evaluate(finished) == cli.OK
    first = capsys.readouterr().out
    before = (finished / records.EVALUATION).stat().st_mtime_ns
    assert evaluate(finished) == cli.OK
    assert capsys.readouterr().out == first
    assert (finished / records.EVALUATION).stat().st_mtime_ns == before


def test_an_evaluation_does_not_wait_for_a_slow_upstream(finished):
    config = records.read_json(finished / records.CONFIG)
    config["config"]["upstream"] |= {"latency_seconds": 1000.0}
    records.write_json(finished / records.CONFIG, config)
    assert evaluate(finished) == cli.OK


def test_an_evaluation_needs_nothing_of_echoing(finished):
    """Not the decisions that were replayed."""
    config = records.read_json(finished / records.CONFIG)
    config["config"]["echo"] |= {"insertion": "before_augmentation", "policy": "auto"}
    config["config"]["echo"] |= {"replay": "moved/echo_decisions.jsonl", "shuffle_buffer": 50_000}
    records.write_json(finished / records.CONFIG, config)
    assert evaluate(finished) == cli.OK


def test_an_evaluation_needs_no_schedule(finished):
    """Without echoing, a horizon that echoing makes batches of may be less than one batch."""
    config = records.read_json(finished / records.CONFIG)
    config["config"]["echo"] |= {"insertion": "before_augmentation", "factor": 4.0}
    config["config"]["optimizer"]["schedule"]["horizon_fresh_examples"] = 16
    records.write_json(finished / records.CONFIG, config)
    assert evaluate(finished) == cli.OK


def test_an_evaluation_at_the_end_alone_is_kept_with_its_checkpoint(tmp_path):
    """The budget's last step is due for saving before it is evaluated."""
    config = mini(evaluate_every_fresh_examples=0, checkpoint_every_fresh_examples=640)
    result = train.train(config, tmp_path / "run")
    assert evaluate(tmp_path / "run") == cli.OK
    found = records.read_json(tmp_path / "run" / records.EVALUATION)
    assert found["step"] == result["step"]
    assert found["splits"]["validation"]["accuracy"] == pytest.approx(result["best"]["value"])


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["preempted", "killed"])
def test_interrupted_run_is_evaluated_at_its_best_so_far(ending, tmp_path, capsys):
    config = mini(evaluate_every_fresh_examples=160, checkpoint_every_fresh_examples=160)
    workdir = tmp_path / "run"
    assert train.train(config, workdir, on_step=stop_at(12))["status"] == "preempted"
    validation = trial_records.read(workdir).validation
    best = max(validation, key=lambda record: record["accuracy"])
    if ending == "killed":
        (workdir / records.RESULT).unlink()
    assert evaluate(workdir) == cli.OK
    found = records.read_json(workdir / records.EVALUATION)
    assert found["splits"]["validation"]["accuracy"] == pytest.approx(best["accuracy"], abs=1e-6)
    status = "preempted" if ending == "preempted" else "interrupted"
    said = f"step {best['step']}, {best['fresh_examples']} fresh examples; the best so far"
    assert said in capsys.readouterr().out
    assert found["status"] == status
    finished = train.train(config, workdir)
    assert evaluate(workdir) == cli.OK
    found = records.read_json(workdir / records.EVALUATION)
    assert found["status"] == finished["status"]
    assert found["fresh_examples"] == finished["best"]["fresh_examples"]
    assert "so far" not in capsys.readouterr().out


def test_a_metric_that_is_not_finite_is_recorded_as_null(finished, capsys, monkeypatch):
    evaluated = Program.evaluate

    def overflowing(self, state, batches):
        return evaluated(self, state, batches) | {"perplexity": float("inf")}

    monkeypatch.setattr(Program, "evaluate", overflowing)
    for _ in range(2):
        assert evaluate(finished) == cli.OK
        assert "perplexity not finite" in capsys.readouterr().out
        monkeypatch.undo()  # the second time the result is there
    assert records.read_json(finished / records.EVALUATION)["splits"]["test"]["perplexity"] is None


@pytest.mark.slow
def test_named_pipes_in_the_place_of_files_do_not_block(finished, capsys):
    assert evaluate(finished) == cli.OK
    exported = (finished / records.PARAMETERS).read_bytes()
    (finished / records.PARAMETERS).unlink()
    os.mkfifo(finished / records.PARAMETERS)  # whoever opens it waits
    assert evaluate(finished) == cli.OK
    assert (finished / records.PARAMETERS).read_bytes() == exported
    (finished / records.RESULT).unlink()
    (finished / records.LOCK).unlink()
    os.mkfifo(finished / records.LOCK)
    assert evaluate(finished) == cli.WRONG_INPUT
    assert f"{records.LOCK} is not a file; move it away" in capsys.readouterr().err


def test_run_in_training_is_not_evaluated(finished, capsys):
    (finished / records.RESULT).unlink()
    with workdirs.held(finished / records.LOCK):
        assert evaluate(finished) == cli.WRONG_INPUT
    assert "another process is training" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("content", ["", "[]", "{}", '{"step": "1", "fresh_examples": 1}'])
def test_a_damaged_evaluation_is_made_again(finished, content):
    assert evaluate(finished) == cli.OK
    before = records.read_json(finished / records.EVALUATION)
    (finished / records.EVALUATION).write_text(content)
    assert evaluate(finished) == cli.OK
    assert records.read_json(finished / records.EVALUATION) == before


def test_damaged_parameters_are_made_again(finished):
    assert evaluate(finished) == cli.OK
    path = finished / records.PARAMETERS
    before = path.read_bytes()
    for damage in (lambda: path.write_bytes(before[:-1]), path.unlink):
        damage()
        assert evaluate(finished) == cli.OK
        assert path.read_bytes() == before


@pytest.mark.parametrize("part", ["value", "arrays"])
def test_a_damaged_checkpoint_gives_way_to_the_one_that_it_was_replacing(part, finished):
    """Its process was killed before the earlier one of the same step was removed."""
    assert evaluate(finished) == cli.OK
    before = records.read_json(finished / records.EVALUATION)
    (finished / records.EVALUATION).unlink()
    for path in list((finished / records.CHECKPOINTS).iterdir()):
        shutil.copytree(path, path.with_name(f".{path.name}"))
        shutil.rmtree(path / part)
    assert evaluate(finished) == cli.OK
    assert records.read_json(finished / records.EVALUATION) == before


def _no_run(workdir):
    return "contains no run"


def _without_checkpoints(workdir):
    shutil.rmtree(workdir / records.CHECKPOINTS)
    return "kept no evaluated checkpoint that is intact; train with a "


def _without_its_best(workdir):
    """An older checkpoint is intact, but knows an older best alone."""
    newest = max((workdir / records.CHECKPOINTS).iterdir(), key=lambda path: int(path.name))
    (newest / "value" / "metadata").unlink()
    result = records.read_json(workdir / records.RESULT)
    result["best"] |= {"fresh_examples": result["fresh_examples"]}
    records.write_json(workdir / records.RESULT, result)
    return "kept no evaluated checkpoint that is intact; train with a "


def _of_another_version(workdir):
    record = records.read_json(workdir / records.CONFIG)
    record["config"]["echo"]["repeats"] = 2
    records.write_json(workdir / records.CONFIG, record)
    return "has a field echo.repeats, which this version does not have; use the commit in its conf"


@pytest.mark.parametrize(
    "damage", [_no_run, _without_checkpoints, _without_its_best, _of_another_version]
)
def test_what_cannot_be_evaluated_is_one_sentence(damage, finished, capsys):
    workdir = finished.parent / "elsewhere" if damage is _no_run else finished
    says = damage(workdir)
    assert evaluate(workdir) == cli.WRONG_INPUT
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (workdir / records.EVALUATION).exists()


@pytest.mark.parametrize("rate", [1e39, 0.1])  # it diverges at once, or is stopped
def test_a_run_that_was_never_evaluated_has_no_best_checkpoint(rate, tmp_path, capsys):
    config = mini(optimizer__learning_rate=rate)
    train.train(config, tmp_path / "run", on_step=stop_at(2))
    assert evaluate(tmp_path / "run") == cli.WRONG_INPUT
    error = capsys.readouterr().err
    assert "no best checkpoint, since no evaluation has given a finite accuracy; resume" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--config=configs/cifar10.py"], "--evaluate takes the run's own configuration"),
        (["--config.batch_size=64"], "config.batch_size cannot be given with --evaluate"),
        (["--config.prefetch=0"], "config.prefetch cannot be given with --evaluate"),
        (["--config.mesh.data=64"], "config.mesh is data=64"),
        (["--profile=1:2", "--mirror=there"], "nothing to follow; leave out --mirror, --profile;"),
        (["--evaluate=", "--config=x", "--workdir=y"], "directory to write to is empty; give one"),
        (["--evaluate=s3://bucket/run"], "s3://bucket/run is a URL; give a directory"),
        (["--tracker=none"], "--evaluate trains nothing to follow; leave out --tracker;"),
        (["--tracker=tensorboard"], "nothing to follow; leave out --tracker;"),  # the default
    ],
)
def test_flags_that_do_not_go_with_evaluating_are_one_sentence(words, says, finished, capsys):
    assert evaluate(finished, *words) == cli.WRONG_INPUT
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_fields_are_checked_although_the_evaluation_is_stored(finished, capsys):
    assert evaluate(finished) == cli.OK
    capsys.readouterr()
    assert evaluate(finished, "--config.batch_size=64") == cli.WRONG_INPUT
    assert "config.batch_size cannot be given with --evaluate" in capsys.readouterr().err
    assert evaluate(finished, "--config.mesh.data=1") == cli.OK


def test_a_test_record_that_cannot_be_decoded_is_one_sentence(finished, capsys, monkeypatch):
    opened = splits.open_source

    def with_a_bad_label(name, split, *others, **options):
        source, info = opened(name, split, *others, **options)
        if split == "test":
            images, labels = ([record[field] for record in source] for field in ("image", "label"))
            source = sources.ArraySource(image=np.stack(images), label=np.array([*labels[1:], 77]))
        return source, info

    monkeypatch.setattr(splits, "open_source", with_a_bad_label)
    assert evaluate(finished) == cli.WRONG_INPUT
    error = capsys.readouterr().err
    assert "error: record 299 " in error
    assert "cannot be decoded: label 77; allowed: 0 to 9" in error
    assert error.count("\n") == 1
    assert not (finished / records.EVALUATION).exists()
