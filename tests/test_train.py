"""Whole runs: what they record, and how they end."""

import dataclasses
import signal
import time

import jax
import numpy as np
import pytest

import train
from runs import cli, records
from runs.checkpoints import Checkpoints
from runs.progress import Progress
from tests.helpers.runs import (
    EIGHT_STEPS,
    HANGS,
    INSERTIONS_AND_BUFFERS,
    StopsAt,
    assert_equal_runs,
    command,
    contents,
    echoing,
    held_training,
    latest_step,
    losses_of,
    mini,
    preempt,
    records_of,
    run_command,
    stop_at,
)
from training import run
from training.experiment import make_experiment
from training.step import program


def test_a_killed_process_resumes_from_its_last_checkpoint(tmp_path, uninterrupted):
    config = mini(**echoing("before_augmentation", 100))
    workdir = tmp_path / "killed"
    with held_training(30, *command(config, workdir)) as process:
        end = time.monotonic() + HANGS
        while len([*workdir.glob(f"{records.CHECKPOINTS}/*/commit_success.txt")]) < 2:
            assert time.monotonic() < end  # the second one is written meanwhile
            time.sleep(0.005)
        process.kill()
    with (workdir / records.METRICS).open("a") as file:
        file.write('{"step": 99, "torn')  # as a crash in the middle of a write leaves it
    assert train.train(config, workdir)["status"] == "exhausted"
    assert_equal_runs(config, uninterrupted(config), workdir)


def test_sigterm_to_the_command_saves_exits_with_75_and_can_be_resumed(tmp_path, uninterrupted):
    config = mini(**echoing("after_batching", 4))
    workdir = tmp_path / "workdir"
    words = command(config, workdir)
    with held_training(17, *words) as process:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=HANGS)
    assert process.returncode == cli.PREEMPTED, errors
    result = records.read_json(workdir / records.RESULT)
    assert (result["status"], result["step"]) == ("preempted", 17)
    again = run_command("train.py", *words)
    assert again.returncode == 0, again.stderr
    assert_equal_runs(config, uninterrupted(config), workdir)


@pytest.mark.parametrize("number", [1, 4, 5])  # 5 is the last one, after the last step
def test_a_stop_during_an_evaluation_saves_and_the_evaluation_is_done_again(
    number, tmp_path, uninterrupted, monkeypatch
):
    config = mini(**echoing("before_augmentation", 100))
    experiment = make_experiment(config)
    validation = StopsAt(experiment.validation, number)
    stopping = dataclasses.replace(experiment, validation=validation)
    monkeypatch.setattr(run, "make_experiment", lambda *_: stopping)
    result = train.train(config, tmp_path / "run")
    assert result["status"] == "preempted"
    *whole, last = validation.evaluated
    assert last == 1  # the batch after the signal is not evaluated
    assert whole == [len(validation)] * (number - 1)
    assert len(validation) > 1
    curve = [r for r in records_of(tmp_path / "run") if r["split"] == "validation"]
    assert len(curve) == number - 1
    assert latest_step(tmp_path / "run") == result["step"]
    monkeypatch.undo()
    assert train.train(config, tmp_path / "run")["status"] == "exhausted"
    assert_equal_runs(config, uninterrupted(config), tmp_path / "run")


@pytest.mark.parametrize(("insertion", "buffer"), INSERTIONS_AND_BUFFERS)
def test_records_count_fresh_examples_as_the_stage_admits_them(insertion, buffer, uninterrupted):
    config = mini(**echoing(insertion, buffer))
    workdir = uninterrupted(config)
    result = records.read_json(workdir / records.RESULT)
    lines = records.read_metrics(workdir)
    example_echoing = insertion in ("before_augmentation", "after_augmentation")
    copies = int(640 * 2.5) if example_echoing else 32 * int(640 // 32 * config.echo.factor)
    assert result["step"] == copies // 32
    assert result["fresh_examples"] == 640
    for record in lines:
        emitted, e = record["step"] * 32, config.echo.factor
        if example_echoing:  # buffer - 1 echoed examples have entered besides those emitted
            echoed = min(emitted + max(buffer, 1) - 1, copies)
            assert record["fresh_examples"] == -(-echoed * 2 // 5)
        else:  # whole batches
            echoed = min(record["step"] + max(buffer, 1) - 1, copies // 32)
            assert record["fresh_examples"] == 32 * int(np.ceil(echoed / e))


def test_the_upstreams_clock_stands_still_during_evaluations(tmp_path, monkeypatch):
    config, times = mini(upstream__examples_per_second=1e6), []
    experiment = make_experiment(config)

    class Watched(list):
        def __iter__(self):
            for batch in super().__iter__():
                times.append(experiment.upstream_clock())
                time.sleep(0.001)
                yield batch
            times.append(experiment.upstream_clock())

    watched = Watched(experiment.validation)
    assert len(watched) > 1
    replaced = dataclasses.replace(experiment, validation=watched)
    monkeypatch.setattr(run, "make_experiment", lambda *_: replaced)
    assert train.train(config, tmp_path / "run")["status"] == "exhausted"
    evaluations = np.reshape(times, (-1, len(watched) + 1))
    assert (evaluations == evaluations[:, :1]).all()
    assert (np.diff(evaluations[:, 0]) > 0).all()  # it runs between them


def test_evaluations_happen_once_per_multiple_of_the_cadence_and_at_the_end(uninterrupted):
    config = mini(**echoing("before_augmentation", 100))
    lines = records.read_metrics(uninterrupted(config))
    at = [r["fresh_examples"] for r in lines if r["split"] == "validation"]
    fresh = [r["fresh_examples"] for r in lines]
    assert fresh == sorted(fresh)
    assert [n // 160 for n in at] == [1, 2, 3, 4, 4]  # the last one after the buffer was drained
    assert {"accuracy", "loss"} <= set(lines[-1])


@pytest.mark.parametrize(
    ("every", "evaluate_every", "steps"),
    [
        (160, 0, [5, 10, 15, 20]),
        (100, 0, [4, 7, 10, 13, 16, 19, 20]),
        (10_000, 320, [10, 20]),  # the best so far, and the last
        (0, 320, []),
    ],
)
def test_checkpoints_are_saved_at_their_cadence_if_improved_and_at_the_end(
    every, evaluate_every, steps, tmp_path, monkeypatch
):
    saved, save = [], Checkpoints.save

    def noted(self, step, *others):
        saved.append(step)
        return save(self, step, *others)

    monkeypatch.setattr(Checkpoints, "save", noted)
    cadences = {"checkpoint_every_fresh_examples": every}
    cadences |= {"evaluate_every_fresh_examples": evaluate_every}
    assert train.train(mini(**cadences), tmp_path / "run")["status"] == "exhausted"
    assert saved == steps


def test_the_run_stops_at_the_first_evaluation_that_reaches_the_target(tmp_path, uninterrupted):
    curve = records.read_metrics(uninterrupted(mini()))
    accuracies = [(r["fresh_examples"], r["accuracy"]) for r in curve if r["split"] == "validation"]
    goal = max(value for _, value in accuracies)
    first = next(fresh for fresh, value in accuracies if value >= goal)
    result = train.train(mini(target__value=goal), tmp_path / "run")
    assert result["status"] == "reached"
    assert result["fresh_examples_to_target"] == result["fresh_examples"] == first
    assert result["steps_to_target"] == first // 32
    assert 0 < result["seconds_to_target"] <= result["wall_seconds"]
    best = {"metric": "accuracy", "value": goal, "fresh_examples": first, "step": first // 32}
    assert result["best"] == best


def test_the_progress_line_names_the_target_the_loss_and_the_position(tmp_path):
    lines, shown = [], Progress(quiet=True)
    shown.update = lambda status: lines.append(status())
    train.train(mini(**EIGHT_STEPS), tmp_path / "run", shown)
    first, *lines = lines
    assert "first batch" in first  # for which a large buffer is filled
    assert len(lines) == 8
    for number, line in enumerate(lines, start=1):
        value, loss, *_, position = line.split(" | ")
        evaluated = number > 4  # after four steps
        assert (value == "accuracy - (>= 1.1)") != evaluated
        assert float(loss.removeprefix("training loss ")) > 0
        assert position.endswith(" of 128 fresh")


def test_an_error_in_the_pipeline_ends_the_run_as_failed_and_is_recorded(tmp_path, monkeypatch):
    from workloads.classification import SmallImageClassification

    decode, calls = SmallImageClassification.decode, []

    def failing(self, records_):
        calls.append(len(records_))
        if sum(calls) > 900:
            raise OSError("the disk is gone")
        return decode(self, records_)

    monkeypatch.setattr(SmallImageClassification, "decode", failing)
    result = train.train(mini(), tmp_path / "run")
    assert result["status"] == "failed"
    assert "the disk is gone" in result["error"]
    assert "Traceback" in (tmp_path / "run" / "error.txt").read_text()
    assert latest_step(tmp_path / "run") == result["step"] > 0  # saved at once, and once
    monkeypatch.undo()
    (tmp_path / "run" / "errors.txt").touch()  # the user's
    assert train.train(mini(), tmp_path / "run")["status"] == "exhausted"
    assert [path.name for path in (tmp_path / "run").glob("error*")] == ["errors.txt"]


def test_a_finished_run_says_so_and_changes_nothing(uninterrupted, capsys):
    config = mini()
    workdir = uninterrupted(config)
    before = contents(workdir)
    assert cli.guarded(train.main, command(config, workdir)) == cli.OK
    assert "already finished: exhausted" in capsys.readouterr().err
    assert contents(workdir) == before


@pytest.mark.parametrize("change", [{"prefetch": 0}, {"echo__placement": "device"}])
def test_settings_that_cannot_change_the_numbers_may_change_on_resume(
    change, tmp_path, uninterrupted
):
    config = mini(**echoing("after_augmentation", 100))
    train.train(config, tmp_path / "run", on_step=stop_at(9))
    train.train(mini(**echoing("after_augmentation", 100), **change), tmp_path / "run")
    assert_equal_runs(config, uninterrupted(config), tmp_path / "run")


@pytest.mark.parametrize("insertion", ["none", "before_augmentation"])
def test_augmenting_on_the_device_gives_the_numbers_of_the_host(insertion, uninterrupted):
    def losses(augment_on):
        config = mini(**echoing(insertion, 0), augment_on=augment_on)
        return losses_of(uninterrupted(config))

    np.testing.assert_allclose(losses("device")[:4], losses("host")[:4], rtol=2e-4)


def test_settings_of_jax_change_no_number_and_what_may_is_said(tmp_path, uninterrupted):
    config = mini(**EIGHT_STEPS, log_every_steps=1, loss__label_smoothing=0.0125)
    odd = {
        "jax_enable_x64": True,
        "jax_default_prng_impl": "rbg",
        "jax_random_seed_offset": 5,
        "jax_threefry_partitionable": False,
        "jax_numpy_dtype_promotion": "strict",
        "jax_numpy_rank_promotion": "raise",
        "jax_transfer_guard": "disallow",
        "jax_disable_jit": True,
        "jax_no_execution": True,
        "jax_default_matmul_precision": "highest",
    }
    before = {name: getattr(jax.config, name) for name in odd}
    said = Progress(quiet=True)
    preempt(config, tmp_path, 3)
    try:
        for name, value in odd.items():
            jax.config.update(name, value)
        program.cache_clear()  # so that it is traced and compiled again
        assert train.train(config, tmp_path, said)["status"] == "exhausted"
        assert {name: getattr(jax.config, name) for name in odd} == odd
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        program.cache_clear()
    assert records_of(tmp_path) == records_of(uninterrupted(config))
    assert "matmul_precision (None there, 'highest' here)" in " ".join(said.unsaid)


def test_training_learns(tmp_path):
    """The shipped mini with a good learning rate, a third of its budget."""
    config = mini(
        model__width=8,
        optimizer__learning_rate=0.1,
        budget__fresh_examples=5_000,
        evaluate_every_fresh_examples=2_500,
    )
    result = train.train(config, tmp_path / "run")
    assert result["best"]["value"] > 0.7  # it is 0.97, and chance is 0.1


def test_the_clock_of_training_stands_still_while_a_run_closes(tmp_path, monkeypatch):
    leap, close, clock = [0.0], Checkpoints.close, time.perf_counter

    def slow_close(checkpoints):
        leap[0] += 1e6
        close(checkpoints)

    monkeypatch.setattr(time, "perf_counter", lambda: clock() + leap[0])
    monkeypatch.setattr(Checkpoints, "close", slow_close)
    result = train.train(mini(budget__fresh_examples=64), tmp_path / "run")
    assert result["train_seconds"] < 1e6 <= result["wall_seconds"]
