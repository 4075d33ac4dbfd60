"""What trackers hold after a run that was stopped and resumed, read by their own readers."""

import json
import struct

import numpy as np
import pytest

import train
from runs import records, tooling
from tests.helpers.runs import mini, stop_at

pytestmark = pytest.mark.extras

CONFIG = mini()
DRAWN = {"optimizer.learning_rate": 0.07, "optimizer.schedule.final_factor": 0.3}  # no defaults
HPARAMS = {"condition": "e2", "search": 1, "trial": 3, "hparams": DRAWN}


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """The directory of a trial that all three trackers followed, and MLflow's store."""
    for package in ("tensorboard", "wandb", "mlflow"):
        pytest.importorskip(package)
    root = tmp_path_factory.mktemp("tracked") / "study"
    workdir, store = root / "e2" / "1" / "3", f"sqlite:///{root.parent}/mlflow.db"
    workdir.mkdir(parents=True)
    records.write_json(workdir / records.HPARAMS, HPARAMS)
    tools = tooling.Tools(trackers=tuple(tooling.TRACKERS), root=root)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("WANDB_MODE", "offline")
        environment.setenv("MLFLOW_TRACKING_URI", store)
        stopped = train.train(CONFIG, workdir, on_step=stop_at(13), tools=tools)
        assert stopped["status"] == "preempted"
        assert train.train(CONFIG, workdir, tools=tools)["status"] == "exhausted"
    return workdir, store


def validation_losses(workdir):
    """(fresh examples, loss) of each evaluation in metrics.jsonl."""
    lines = records.read_metrics(workdir)
    return [(r["fresh_examples"], r["loss"]) for r in lines if r["split"] == "validation"]


def test_tensorboard_shows_the_curve_and_the_trial_in_hparams(tracked):
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

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

    provider = data_provider.MultiplexerDataProvider(events, "logs")
    context = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    request = api_pb2.ListSessionGroupsRequest(
        start_index=0,
        slice_size=10,
        allowed_statuses=[api_pb2.STATUS_SUCCESS],
        col_params=[
            *(api_pb2.ColParams(hparam=name) for name in DRAWN),
            api_pb2.ColParams(metric=api_pb2.MetricName(tag="score/best")),
        ],
    )
    handler = list_session_groups.Handler(RequestContext(), context, "logs", request)
    (group,) = handler.run().session_groups
    for name, value in DRAWN.items():
        assert group.hparams[name].number_value == pytest.approx(value)
    assert group.hparams["condition"].string_value == "e2"
    best = records.read_json(workdir / records.RESULT)["best"]["value"]
    values = {value.name.tag: value.value for value in group.metric_values}
    assert values["score/best"] == pytest.approx(best)


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
