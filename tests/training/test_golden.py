"""Training steps of every network against PyTorch's, from equal parameters on equal batches.

tests/helpers/golden.json is what PyTorch and torchvision computed (their layers, losses, and
optimizer, in double precision), by tests/helpers/make_golden.py of commit 98374779. If a step
differs, either it is wrong or it was changed on purpose; then change that script alike, by hand.
"""

import json

import numpy as np
import pytest

from tests.helpers.runs import ROOT, run_command

GOLDEN = json.loads((ROOT / "tests" / "helpers" / "golden.json").read_text())

# network: relative tolerance of the losses, and of the updates.
TOLERANCES = {
    "cifar10": (1e-10, 1e-10),
    "imagenet": (1e-10, 1e-10),
    "transformer": (1e-7, 1e-5),  # jax.nn.dot_product_attention has its softmax in float32
    "vit": (1e-7, 1e-5),  # likewise
    "ssd": (1e-10, 1e-10),
}


@pytest.fixture(scope="module")
def found():
    """The same steps as this project takes them, in double precision."""
    done = run_command("tests.helpers.golden_worker")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
@pytest.mark.parametrize("name", TOLERANCES)
def test_the_first_steps_are_those_of_pytorch(name, found):
    (loss_tolerance, tolerance), ours, wanted = TOLERANCES[name], found[name], GOLDEN[name]
    np.testing.assert_allclose(ours["losses"], wanted["losses"], rtol=loss_tolerance)
    assert ours["updates"].keys() == wanted["updates"].keys()
    for parameter, (length, extent) in wanted["updates"].items():
        our_length, our_extent = ours["updates"][parameter]
        # The floor is for the bias of the keys, which shifts all scores of a query alike: its
        # update is 0, and others are 1e-4 or more.
        assert our_length == pytest.approx(length, rel=tolerance, abs=1e-9), parameter
        assert our_extent == pytest.approx(extent, abs=tolerance * length + 1e-9), parameter
