"""Sharding: eight devices against one, what is split how, and what is refused."""

import json

import numpy as np
import pytest

import train
from runs.progress import Progress
from tests.helpers import sharding_worker
from tests.helpers.runs import cpu_devices, mini, run_command, train_lines


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """What eight CPU devices found, and the directory of the run that they were stopped in."""
    directory = tmp_path_factory.mktemp("eight")
    done = run_command("tests.helpers.sharding_worker", str(directory), env=cpu_devices(8))
    assert done.returncode == 0, done.stderr
    found = json.loads((directory / "found.json").read_text())
    assert found["devices"] == 8
    return found, directory / "run"


@pytest.mark.long
@pytest.mark.parametrize("choice", ["replicated", "fsdp"])
def test_eight_devices_give_the_losses_of_one_on_images(eight, choice):
    one = sharding_worker.cifar("replicated")["losses"]
    np.testing.assert_allclose(eight[0]["cifar"][choice]["losses"], one, rtol=2e-4)


@pytest.mark.long
def test_eight_devices_give_the_losses_of_one_with_sharded_layers(eight):
    one = sharding_worker.transformer("replicated", 1, 1)["losses"]
    for found in eight[0]["transformer"].values():
        np.testing.assert_allclose(found["losses"], one, rtol=2e-4)


@pytest.mark.long
def test_tensor_splits_heads_hidden_units_and_vocabulary_over_two(eight):
    shards = eight[0]["transformer"]["tensor"]["shards"]
    layer = "params/layers/0"
    wanted = {
        "params/embed/embedding": [32, 32],  # [V, D], V = 64
        f"{layer}/attention/q/kernel": [32, 2, 8],  # [D, N, H], N = 4
        f"{layer}/attention/out/kernel": [2, 8, 32],
        f"{layer}/mlp_in/kernel": [32, 32],  # [D, M], M = 64
        f"{layer}/mlp_in/bias": [32],
        f"{layer}/mlp_out/kernel": [32, 32],
        f"{layer}/mlp_out/bias": [32],  # whole
        f"{layer}/mlp_norm/scale": [32],  # whole
    }
    for name, shape in wanted.items():
        assert shards[name][1] == shape, name
        trace = next(n for n in shards if n.startswith("opt_state") and n.endswith(name[7:]))
        assert shards[trace] == shards[name]  # the optimizer's state lies with its parameter


@pytest.mark.long
def test_devices_exchange_what_the_sharding_says(eight):
    found = eight[0]
    assert found["cifar"]["replicated"]["collectives"] == ["all-reduce"]
    assert found["transformer"]["fsdp"]["collectives"] == ["all-gather", "all-reduce"]
    # Megatron's point: activations are summed, weights never travel
    assert found["transformer"]["tensor"]["collectives"] == ["all-reduce"]


@pytest.mark.long
def test_a_nonfinite_value_on_one_device_is_known_to_all(eight):
    found = eight[0]
    for run in (*found["cifar"].values(), *found["transformer"].values()):
        assert run["nonfinite"] == [0] * sharding_worker.STEPS
    assert found["spoiled"] == [0, 1]


@pytest.mark.long
@pytest.mark.parametrize("network", ["cifar", "transformer"])
def test_fsdp_holds_an_eighth_of_every_large_array_on_each_device(eight, network):
    shards = eight[0][network]["fsdp"]["shards"]
    large = 0
    for name, (shape, shard) in shards.items():
        if name.startswith("model_state") or np.prod(shape) < 1024:
            assert shape == shard, name
        else:
            large += 1
            assert np.prod(shard) * 8 == np.prod(shape), name
    assert large >= 4  # parameters, and as many traces of the optimizer


@pytest.mark.long
def test_items_kept_on_eight_devices_give_the_bytes_and_losses_of_the_host(eight):
    host, device = (eight[0]["placement"][where] for where in ("host", "device"))
    assert device["images"] == host["images"]
    assert device["losses"] == host["losses"]
    one = sharding_worker.placement("device")
    assert one["images"] == host["images"]
    np.testing.assert_allclose(host["losses"], one["losses"], rtol=2e-4)


@pytest.mark.long
def test_a_run_sharded_over_eight_resumes_replicated_on_one(eight, uninterrupted):
    found, workdir = eight
    assert found["stopped"] == "preempted"
    said = Progress(quiet=True)
    assert train.train(mini(log_every_steps=1), workdir, said)["status"] == "exhausted"
    (line,) = said.unsaid
    assert "hardware.devices (8 there, 1 here); sharding ('fsdp' there, 'replicated'" in line
    one, resumed = map(train_lines, (uninterrupted(mini(log_every_steps=1)), workdir))
    assert [r["fresh_examples"] for r in resumed] == [r["fresh_examples"] for r in one]
    losses = [[r["loss"] for r in run[:12]] for run in (resumed, one)]
    np.testing.assert_allclose(*losses, rtol=0.01)  # rounding has grown over the steps
