"""Evaluating a run: its best checkpoint, on every split held out, with parameters out."""

import contextlib
import hashlib
import shutil

import numpy as np
import pytest
from flax import nnx

import train
from data import splits
from models.resnet import CifarResNet
from runs import cli, records, trial_records, workdirs
from tests.helpers.runs import RESNET, mini, refusal, stop_at
from training.step import Program
from workloads import networks


@pytest.fixture
def finished(uninterrupted, tmp_path):
    """A copy of a finished run, of which the last evaluation need not be the best."""
    return shutil.copytree(uninterrupted(mini(**RESNET)), tmp_path / "run")


def evaluate(workdir):
    return cli.guarded(train.main, [f"--evaluate={workdir}"])


def test_the_best_checkpoint_is_evaluated_on_both_splits_and_exported(finished, capsys):
    assert evaluate(finished) == cli.OK
    best = records.read_json(finished / records.RESULT)["best"]
    found = records.read_json(finished / records.EVALUATION)
    assert (found["step"], found["fresh_examples"]) == (best["step"], best["fresh_examples"])
    assert found["splits"]["validation"]["accuracy"] == pytest.approx(best["value"], abs=1e-6)
    assert set(found["splits"]) == {"validation", "test"}
    assert f"test: accuracy {found['splits']['test']['accuracy']:.4g}" in capsys.readouterr().out
    content = (finished / records.PARAMETERS).read_bytes()
    assert hashlib.sha256(content).hexdigest() == found["parameters_sha256"]
    # the parameters give the network's outputs in a network of the caller's own
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
    assert accuracy == pytest.approx(found["splits"]["test"]["accuracy"], abs=1e-6)


def test_an_evaluation_needs_nothing_of_training(finished):
    record = records.read_json(finished / records.CONFIG)
    config = record["config"]
    config["upstream"] |= {"latency_seconds": 1000.0}
    config["echo"] |= {"insertion": "before_augmentation", "policy": "auto"}
    config["echo"] |= {"replay": "moved/echo_decisions.jsonl", "shuffle_buffer": 50_000}
    config["optimizer"]["schedule"]["horizon_fresh_examples"] = 16
    config["model"]["ghost_batch_size"] = 12
    records.write_json(finished / records.CONFIG, record)
    assert evaluate(finished) == cli.OK


def test_an_evaluation_at_the_end_alone_is_kept_with_its_checkpoint(tmp_path):
    """The budget's last step is due for saving before it is evaluated."""
    config = mini(evaluate_every_fresh_examples=0, checkpoint_every_fresh_examples=640)
    result = train.train(config, tmp_path / "run")
    assert evaluate(tmp_path / "run") == cli.OK
    found = records.read_json(tmp_path / "run" / records.EVALUATION)
    assert found["step"] == result["step"]
    assert found["splits"]["validation"]["accuracy"] == pytest.approx(result["best"]["value"])


@pytest.mark.parametrize("ending", ["preempted", "killed"])
def test_an_interrupted_run_is_evaluated_at_its_best_so_far(ending, tmp_path):
    config = mini(evaluate_every_fresh_examples=160, checkpoint_every_fresh_examples=160)
    workdir = tmp_path / "run"
    assert train.train(config, workdir, on_step=stop_at(12))["status"] == "preempted"
    validation = trial_records.read(workdir).validation
    best = max(validation, key=lambda record: record["accuracy"])
    if ending == "killed":
        (workdir / records.RESULT).unlink()
    assert evaluate(workdir) == cli.OK
    found = records.read_json(workdir / records.EVALUATION)
    assert found["step"] == best["step"]
    assert found["splits"]["validation"]["accuracy"] == pytest.approx(best["accuracy"], abs=1e-6)
    assert found["status"] == {"killed": "interrupted"}.get(ending, ending)
    finished = train.train(config, workdir)
    assert evaluate(workdir) == cli.OK
    found = records.read_json(workdir / records.EVALUATION)
    assert found["status"] == finished["status"]
    assert found["fresh_examples"] == finished["best"]["fresh_examples"]


def test_a_metric_that_is_not_finite_is_recorded_as_null(finished, monkeypatch):
    evaluated = Program.evaluate

    def overflowing(self, state, batches):
        return evaluated(self, state, batches) | {"perplexity": float("inf")}

    monkeypatch.setattr(Program, "evaluate", overflowing)
    assert evaluate(finished) == cli.OK
    assert records.read_json(finished / records.EVALUATION)["splits"]["test"]["perplexity"] is None


MINE = """
from configs import cifar10
from workloads import networks

networks.add("mine_alone")(networks.cifar_resnet)
get_config = cifar10.get_config
"""


def test_a_file_of_ones_own_that_adds_the_network_is_given(finished, tmp_path, capsys):
    record = records.read_json(finished / records.CONFIG)
    record["config"]["model"]["name"] = "mine_alone"
    records.write_json(finished / records.CONFIG, record)
    refused = refusal(train.main, [f"--evaluate={finished}"], capsys)
    assert "mine_alone" in refused
    assert "--config" in refused  # which says where it comes from
    (tmp_path / "mine.py").write_text(MINE)
    words = [f"--evaluate={finished}", f"--config={tmp_path / 'mine.py'}"]
    assert cli.guarded(train.main, words) == cli.OK
    for names in (networks.SMALL, networks.LARGE):
        del names["mine_alone"]


def _without_its_best(workdir):
    best = records.read_json(workdir / records.RESULT)["best"]["step"]
    (workdir / records.CHECKPOINTS / str(best) / "value" / "metadata").unlink()


def _in_training(workdir):
    (workdir / records.RESULT).unlink()
    return workdirs.held(workdir / records.LOCK)


def _on_other_data(workdir):
    record = records.read_json(workdir / records.CONFIG)
    record["dataset"]["fingerprint"] = "0" * 16
    records.write_json(workdir / records.CONFIG, record)


REFUSED = {
    "on other data": _on_other_data,
    "elsewhere": lambda run: shutil.rmtree(run),
    "without checkpoints": lambda run: shutil.rmtree(run / records.CHECKPOINTS),
    "without its best": _without_its_best,
    "damaged": lambda run: (run / records.CONFIG).write_text("{}"),
    "in training": _in_training,
}


@pytest.mark.parametrize("damage", REFUSED)
def test_what_cannot_be_evaluated_is_one_sentence(damage, finished, capsys):
    lock = REFUSED[damage](finished)
    with lock if damage == "in training" else contextlib.nullcontext():
        error = refusal(train.main, [f"--evaluate={finished}"], capsys)
    assert str(finished) in error or f"{records.CONFIG} has changed" in error
    assert not (finished / records.EVALUATION).exists()


@pytest.mark.parametrize("rate", [1e39, 0.1])  # it diverges at once, or is stopped
def test_a_run_that_was_never_evaluated_has_no_best_checkpoint(rate, tmp_path, capsys):
    config = mini(optimizer__learning_rate=rate)
    train.train(config, tmp_path / "run", on_step=stop_at(2))
    assert refusal(train.main, [f"--evaluate={tmp_path / 'run'}"], capsys)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--config.batch_size=64"], "config.batch_size"),
        (["--config.mesh.data=64"], "config.mesh"),
        (["--profile=1:2", "--mirror=there"], "--mirror, --profile"),
        (["--tracker=tensorboard"], "--tracker"),  # the default
    ],
)
def test_flags_that_do_not_go_with_evaluating_are_one_sentence(words, says, finished, capsys):
    assert says in refusal(train.main, [f"--evaluate={finished}", *words], capsys)
