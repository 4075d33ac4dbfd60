"""Resident memory: an item is stored once, however many copies are pending."""

import sys

import pytest

from tests.helpers.runs import run_python

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads /proc/self/status, which is Linux's"
)

# Prints how far the process's resident memory rose above what it was before the pipeline, in items.
PROGRAM = """
import sys
import numpy as np, grain, echo

def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

KIND, BATCH, FACTOR, SLOTS, ITEM = {kind!r}, {batch}, {factor}, {slots}, {item}
parent = grain.MapDataset.range(10**6).map(lambda i: np.full(ITEM, i % 251, np.uint8))
none = grain.ReadOptions(num_threads=0, prefetch_buffer_size=1)
if KIND == "sequential":
    parent = parent.to_iter_dataset(grain.ReadOptions(0, 0))
if KIND == "iterable":
    source = (np.full(ITEM, i % 251, np.uint8) for i in range(10**6))
    iterator = iter(echo.echo_iterable(source, FACTOR, SLOTS))
else:
    iterator = iter(echo.EchoIterDataset(
        parent, factor=FACTOR, shuffle_buffer=SLOTS, batch_size=BATCH, read_options=none))
before = status("VmRSS")
for _ in range(6 * SLOTS // (BATCH or 1)):
    item = next(iterator)
print((status("VmHWM") - before) / ITEM)
"""

SLOTS, ITEM = 1_000, 50_000


@pytest.mark.parametrize(("kind", "batch"), [("sequential", 20), ("iterable", None)])
def test_sixteen_copies_of_an_item_are_resident_once(kind, batch):
    program = PROGRAM.format(kind=kind, batch=batch, factor=16, slots=SLOTS, item=ITEM)
    finished = run_python(["-c", program])
    assert finished.returncode == 0, finished.stderr
    formula = SLOTS * sum(1 / k for k in range(1, 17)) / 16  # 211 items, where copies would be 1000
    resident = float(finished.stdout)
    assert 0.8 * formula < resident < 1.15 * formula + 150  # and 7.5 MB for everything else
