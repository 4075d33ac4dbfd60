"""The benchmark of the echo stage against buffer, size of an item, and streams."""

import itertools

import numpy as np
import pytest

from benchmarks import echo_grid

SMALL = echo_grid.Cell(item_bytes=12, buffer=256)


@pytest.mark.slow
@pytest.mark.parametrize("streams", [1, 8])
@pytest.mark.parametrize("name", ["echo", "echo, device"])
def test_a_batch_contains_items_four_times_and_its_state_leads_to_the_next(name, streams):
    cell, size = SMALL._replace(streams=streams), 128
    data = (np.zeros((4096, 12), np.uint8), np.arange(4096, dtype=np.int32))
    take, iterator = echo_grid.taker(name, data, cell), echo_grid.SIDES[name](data, cell)

    def labels(batch):
        return np.asarray(getattr(batch, "data", batch)["label"]).tolist()

    batches = [labels(take(iterator)) for _ in range(60)]
    assert all(len(batch) == size for batch in batches)
    emitted = list(itertools.chain(*batches[20:]))
    # Every stream reads all items, so each is emitted four times by each of them.
    assert len(emitted) / len(set(emitted)) == pytest.approx(4 * streams, rel=0.3)
    restored = echo_grid.SIDES[name](data, cell)
    restored.set_state(iterator.get_state())
    again = echo_grid.taker(name, data, cell)
    assert labels(again(restored)) == labels(take(iterator))


def test_a_cell_is_left_out_if_its_buffer_is_too_large():
    grid = echo_grid.Grid(max_gigabytes=1.0)
    assert {c.item_bytes * c.buffer * 25 / 48 <= 1e9 for c in echo_grid.cells(grid)} == {True}
    assert echo_grid.Cell(3_072, 1_000) in echo_grid.cells(grid)
    assert echo_grid.Cell(3_072, 1_000_000) not in echo_grid.cells(grid)


def test_the_report_has_a_row_per_cell_and_a_column_per_side():
    measured = echo_grid.Measured(rate=1234.5, increase=2**21, state_bytes=80, restore_seconds=0.01)
    cells = [SMALL, SMALL._replace(streams=8)]
    results = {cells[0]: {"echo": measured, "Grain": measured}, cells[1]: {"echo": measured}}
    text = echo_grid.report(echo_grid.QUICK, results)
    assert text.count("| item | buffer | streams | echo | Grain |") == 3
    assert "| 0 kB | 256 | 8 | 80 B, 10 ms |  |" in text
