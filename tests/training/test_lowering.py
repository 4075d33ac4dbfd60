"""Every shipped full-size step lowers for a GPU. That proves lowering only: nothing is compiled.

Layers that repeat are left out: a stage of a ResNet keeps its first block and one more, and a
Transformer two layers.
"""

import jax
import pytest

from benchmarks import step as step_time
from benchmarks import tpu
from models import resnet
from training import sharding
from training import step as steps


@pytest.mark.long
@pytest.mark.parametrize("name", [*step_time.CONFIGS, "imagenet-augment"])
def test_steps_lower_for_cuda(name, monkeypatch):
    case = tpu.CASES[name]
    if tpu.configuration(case, 1).model.layers > 2:
        case = case._replace(fields=case.fields | {"model.layers": 2})
    for depth, (block, blocks) in resnet.STAGES.items():
        two = tuple(min(number, 2) for number in blocks)
        monkeypatch.setitem(resnet.STAGES, depth, (block, two))
    task, arguments = tpu.step(case, sharding.make_mesh(1, 1))
    exported = jax.export.export(steps.Program(task).train, platforms=["cuda"])(*arguments)
    assert exported.platforms == ("cuda",)
