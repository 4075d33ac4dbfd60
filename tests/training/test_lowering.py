"""Every shipped full-size step lowers for a GPU. That proves lowering only: nothing is compiled."""

import jax
import pytest

from benchmarks import step_time, tpu_compile
from training import sharding
from training import step as steps


@pytest.mark.slow
@pytest.mark.parametrize("name", [*step_time.CONFIGS, "imagenet-augment"])
def test_steps_lower_for_cuda(name):
    task, arguments = tpu_compile.step(tpu_compile.CASES[name], sharding.make_mesh(1, 1))
    exported = jax.export.export(steps.Program(task)._train, platforms=["cuda"])(*arguments)
    assert exported.platforms == ("cuda",)
