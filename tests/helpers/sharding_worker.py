"""What the tests of sharding run on eight devices, in a process of its own, and on one, in theirs.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.helpers.sharding_worker DIR
"""

import functools
import json
import pathlib
import re
import sys

import jax
import numpy as np

import train
from models.transformer import Transformer
from runs.checkpoints import by_path
from tests.helpers.runs import RESNET, echoing, mini, placed, stop_at
from training import optimizer, sharding
from training import step as steps
from training.experiment import make_experiment
from workloads.language import LanguageModel
from workloads.networks import Network

STEPS = 5


def transformer(choice, data, model):
    """Losses of the first steps, and where the state lies afterward."""
    rng = np.random.default_rng(0)
    batches = [{"tokens": rng.integers(1, 64, (16, 16), np.int32)} for _ in range(STEPS)]
    layers = {"num_layers": 1, "model_dim": 32, "num_heads": 4, "mlp_dim": 64}
    workload = LanguageModel(15, Network.of(Transformer, vocab_size=64, **layers))
    mesh = sharding.make_mesh(data, model)
    task = steps.Task(workload, "nesterov", False, mesh, sharding=choice)
    rows = np.zeros((2, 16), np.uint32)
    return _run(
        steps.Program(task), [sharding.put_batch(mesh, (batch, *rows)) for batch in batches]
    )


def cifar(choice):
    """The same for the mini of CIFAR-10 with batch norm over the whole batch."""
    parts = make_experiment(
        mini(**RESNET, **echoing("before_augmentation", 50, factor=2), sharding=choice)
    )
    iterator = iter(parts.batches)
    batches = [next(iterator) for _ in range(STEPS)]
    iterator.close()
    return _run(parts.program, [parts.transfer.put(batch) for batch in batches])


def placement(where):
    """The same for echoed items kept on the host or on the devices, and the images of each step."""
    fields = placed("before_augmentation", 24) | {"echo__placement": where, "echo__streams": 16}
    parts = make_experiment(mini(**fields))
    iterator = iter(parts.batches)
    batches = [parts.transfer.put(next(iterator)) for _ in range(STEPS)]
    iterator.close()
    images = [np.asarray(data["image"]).tolist() for data, _, _ in batches]
    return {"losses": _run(parts.program, batches)["losses"], "images": images}


def spoiled():
    """The check of parameters split over the devices: finite, then with an inf on the last one."""
    array = np.ones(16, np.float32)
    put = functools.partial(jax.device_put, device=sharding.over_data(sharding.make_mesh(8, 1)))
    bad = np.where(np.arange(16) == 15, np.float32("inf"), array)
    found = jax.jit(steps.nonfinite)
    return [int(found(np.float32(0), put(array), put(params))) for params in (array, bad)]


def _run(program, batches):
    state = program.init(0)
    hyper = optimizer.Hyperparameters(*map(np.float32, (0.1, 0.9, 0.0)))
    losses, nonfinite = [], []
    for batch in batches:
        arguments = (state, batch, hyper, np.uint32(0))
        step = program.compile("train", program.train, arguments)
        state, metrics = step(*arguments)
        losses.append(float(metrics["loss"]))
        nonfinite.append(int(metrics["nonfinite"]))
    return {
        "losses": losses,
        "nonfinite": nonfinite,
        "collectives": sorted(set(re.findall(r"all-gather|all-reduce|all-to-all", step.as_text()))),
        "shards": {
            name.removesuffix("/value"): [leaf.shape, leaf.addressable_shards[0].data.shape]
            for name, leaf in by_path(state).items()
        },
    }


def stopped(workdir, step):
    """A run under fsdp that was stopped."""
    config = mini(log_every_steps=1, sharding="fsdp")
    return train.train(config, workdir, on_step=stop_at(step))["status"]


def main(directory):
    found = {
        "devices": jax.device_count(),
        "cifar": {choice: cifar(choice) for choice in ("replicated", "fsdp")},
        "transformer": {
            "tensor": transformer("tensor", 4, 2),
            "fsdp": transformer("fsdp", 8, 1),
        },
        "placement": {where: placement(where) for where in ("host", "device")},
        "spoiled": spoiled(),
        "stopped": stopped(directory / "run", 9),
    }
    (directory / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
