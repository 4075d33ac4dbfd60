"""What follows a run: trackers, and a profile. None of them can end it."""

import collections
import glob
import json
import struct
import threading
import time

import jax
import numpy as np
import pytest

import train
from runs import records, tracking
from runs.progress import Progress
from runs.trackers import TRACKERS
from runs.tracking import Followers
from tests.helpers.runs import EIGHT_STEPS, HANGS, echoing, mini, stop_at

# Trackers call what their own dependencies deprecate.
pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")


def test_a_profile_names_what_the_host_does(tmp_path):
    # a profile is named by the second in which it starts, so the two parts must not be too fast
    config = mini(**echoing("before_augmentation", 100, factor=2))
    tools = tracking.Tools(root=tmp_path, profile=(4, 20))
    train.train(config, tmp_path, on_step=stop_at(13), tools=tools)
    time.sleep(1.1)
    train.train(config, tmp_path, tools=tools)
    traces = glob.glob(f"{tmp_path}/{records.PROFILE}/plugins/profile/*/*.xplane.pb")
    assert len(traces) == 2  # one of each process that took steps of the range
    counts = collections.Counter(
        event.name
        for trace in traces
        for plane in jax.profiler.ProfileData.from_file(trace).planes
        for line in plane.lines
        for event in line.events
    )
    regions = ("read", "decode", "echo", "augment", "transfer", "step", "evaluate", "save")
    assert set(regions) <= set(counts)
    assert counts["step"] == counts["transfer"] == 16  # steps 4 to 19


@pytest.mark.parametrize(("steps", "is_file"), [((2, 4), True), ((90, 99), False)])
def test_a_profile_that_cannot_be_written_or_has_no_step_is_one_warning(steps, is_file, tmp_path):
    said, tools = Progress(quiet=True), tracking.Tools(root=tmp_path, profile=steps)

    def in_the_way(step):
        if step == 1 and is_file:
            (tmp_path / records.PROFILE).touch()

    config = mini(**EIGHT_STEPS)
    result = train.train(config, tmp_path, said, on_step=in_the_way, tools=tools)
    assert result["status"] == "exhausted"
    assert len(said.unsaid) == 1
    assert "--profile" in said.unsaid[0]


EVENTS = {"record": ({},), "saved": (), "end": ({},), "close": ()}


class Listed:
    """A follower that notes its events, waits at the first one, and fails at one of them."""

    def __init__(self, fails=None):
        self.events, self.released = [], threading.Event()
        for name in EVENTS:
            setattr(self, name, lambda *_, name=name: self._event(name))
        self._fails = fails

    def _event(self, name):
        assert self.released.wait(HANGS)
        self.events.append(name)
        if name == self._fails:
            raise ConnectionError("the server\nis gone")


@pytest.mark.parametrize("fails", [None, *EVENTS])
def test_a_slow_follower_holds_up_only_the_end_and_one_that_fails_is_left_out(fails):
    said, follower = [], Listed(fails)
    followers = Followers({"--tracker=x": follower}, said.append)
    for name in ("record", "saved", "end"):
        followers.tell(name, *EVENTS[name])
    assert not follower.events
    follower.released.set()
    followers.close()
    names = list(EVENTS)
    assert follower.events == (names[: names.index(fails) + 1] if fails else names)
    assert len(said) == bool(fails)
    assert all("--tracker=x" in line and "\n" not in line for line in said)


# What the trackers hold after a run that was stopped and resumed, read by their own readers.


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """The directory of a trial that all three trackers followed, and MLflow's store."""
    for package in ("tensorboard", "wandb", "mlflow"):
        pytest.importorskip(package)
    root = tmp_path_factory.mktemp("tracked") / "study"
    workdir, store = root / "e2" / "1" / "3", f"sqlite:///{root.parent}/mlflow.db"
    workdir.mkdir(parents=True)
    tools = tracking.Tools(trackers=tuple(TRACKERS), root=root)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("WANDB_MODE", "offline")
        environment.setenv("MLFLOW_TRACKING_URI", store)
        stopped = train.train(mini(), workdir, on_step=stop_at(13), tools=tools)
        assert stopped["status"] == "preempted"
        assert train.train(mini(), workdir, tools=tools)["status"] == "exhausted"
    return workdir, store


def validation_losses(workdir):
    """(fresh examples, loss) of each evaluation in metrics.jsonl."""
    lines = records.read_metrics(workdir)
    return [(r["fresh_examples"], r["loss"]) for r in lines if r["split"] == "validation"]


@pytest.mark.extras
def test_tensorboard_shows_the_curve(tracked):
    from tensorboard.backend.event_processing import plugin_event_multiplexer

    workdir, _ = tracked
    events = plugin_event_multiplexer.EventMultiplexer()
    events.AddRunsFromDirectory(str(workdir.parents[2]))
    events.Reload()
    (run,) = events.Runs()
    assert run == "e2/1/3/tensorboard"
    scalars = [
        (e.step, e.tensor_proto.float_val[0]) for e in events.Tensors(run, "validation/loss")
    ]
    np.testing.assert_allclose(scalars, validation_losses(workdir), rtol=1e-6)


@pytest.mark.extras
def test_mlflow_has_one_run_with_the_curve_and_how_it_ended(tracked):
    import mlflow

    workdir, store = tracked
    client = mlflow.MlflowClient(store)
    experiment = client.get_experiment_by_name("study")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "e2/1/3"
    assert run.info.status == "FINISHED"
    assert run.data.tags["status"] == "exhausted"
    assert run.data.params["batch_size"] == "32"
    history = client.get_metric_history(run.info.run_id, "validation/loss")
    assert sorted({(m.step, m.value) for m in history}) == validation_losses(workdir)


def wandb_records(path):
    """The records of an offline run: a log in LevelDB's format, after a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    data, place, parts = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32_768 - place % 32_768 < 7:  # the rest of a block is padding
            place += 32_768 - place % 32_768
        _, length, kind = struct.unpack_from("<IHB", data, place)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


@pytest.mark.extras
def test_weights_and_biases_has_one_run_with_the_curve_and_how_it_ended(tracked):
    workdir, _ = tracked
    files = sorted(workdir.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2  # of two processes
    parts = [record for file in files for record in wandb_records(file)]
    runs = [part.run for part in parts if part.WhichOneof("record_type") == "run"]
    assert {run.run_id for run in runs} == {records.read_json(workdir / records.TRACKED)["wandb"]}
    assert {(run.project, run.run_group, run.display_name) for run in runs} == {
        ("data-echoing", "study", "e2/1/3")
    }
    history = []
    for part in parts:
        if part.WhichOneof("record_type") == "history":
            items = {i.key or i.nested_key[0]: json.loads(i.value_json) for i in part.history.item}
            if "validation/loss" in items:
                history.append((items["fresh_examples"], items["validation/loss"]))
    assert sorted(set(history)) == validation_losses(workdir)
    assert [p.exit.exit_code for p in parts if p.WhichOneof("record_type") == "exit"] == [0, 0]
