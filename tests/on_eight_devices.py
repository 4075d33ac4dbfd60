"""What the tests of sharding run on eight devices, in a process of its own, and on one, in theirs.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python tests/on_eight_devices.py DIR
"""

import dataclasses
import json
import pathlib
import re
import sys

import jax
import numpy as np
import optax
from conftest import mini, slot
from test_train import StopAt

import train
from models.transformer import Transformer
from runs.checkpoints import by_path
from training import optimizer, sharding
from training import step as steps

STEPS = 5


@dataclasses.dataclass(frozen=True)
class NextToken:
    """A tiny Transformer that predicts the next token."""

    vocab_size: int = 64

    def model(self, rngs):
        sizes = {"num_layers": 1, "model_dim": 32, "num_heads": 4, "mlp_dim": 64}
        return Transformer(vocab_size=self.vocab_size, max_length=16, rngs=rngs, **sizes)

    def loss(self, model, data):
        tokens_BxL = data["tokens"]
        logits_BxLxV = model(tokens_BxL[:, :-1], train=True)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits_BxLxV, tokens_BxL[:, 1:])
        return losses.mean(), {"loss": losses.mean()}


def transformer(choice, data, model):
    """Losses of the first steps, and where the state lies afterwards."""
    task = steps.Task(
        NextToken(), "nesterov", False, sharding.make_mesh(data, model), sharding=choice
    )
    rng = np.random.default_rng(0)
    batches = [
        ({"tokens": rng.integers(0, 64, (16, 16), np.int32)}, *np.zeros((2, 16), np.uint32))
        for _ in range(STEPS)
    ]
    return _run(steps.Program(task), batches)


def cifar(choice):
    """The same for the mini of CIFAR-10 with batch norm over the whole batch."""
    parts = train.prepare(mini(**slot("before_augmentation", 50, factor=2), sharding=choice))
    iterator = iter(parts.batches)
    batches = [next(iterator) for _ in range(STEPS)]
    iterator.close()
    rows = [(b.data, b.index.astype(np.uint32), b.copy.astype(np.uint32)) for b in batches]
    return _run(parts.program, rows)


def _run(program, batches):
    state = program.init(0)
    hyper = optimizer.Hyperparameters(*map(np.float32, (0.1, 0.9, 0.0)))
    losses = []
    for batch in batches:
        arguments = (state, sharding.put_batch(program.task.mesh, batch), hyper, np.uint32(0))
        step = program.compile_train(*arguments)
        state, metrics = step(*arguments)
        losses.append(float(metrics["loss"]))
    return {
        "losses": losses,
        "collectives": sorted(set(re.findall(r"all-gather|all-reduce|all-to-all", step.as_text()))),
        "shards": {
            name.removesuffix("/value"): [leaf.shape, leaf.addressable_shards[0].data.shape]
            for name, leaf in by_path(state).items()
        },
    }


def stopped(workdir, step):
    """A run under fsdp that was told to stop."""
    with StopAt(step):
        return train.train(mini(log_every_steps=1, sharding="fsdp"), workdir)["status"]


def main(directory):
    found = {
        "devices": jax.device_count(),
        "cifar": {choice: cifar(choice) for choice in ("replicated", "fsdp")},
        "transformer": {
            "tensor": transformer("tensor", 4, 2),
            "fsdp": transformer("fsdp", 8, 1),
        },
        "stopped": stopped(directory / "run", 9),
    }
    (directory / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
