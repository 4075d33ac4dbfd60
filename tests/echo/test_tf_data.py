"""The stage for tf.data, inside real TensorFlow, against the library's own schedule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import echo

FACTORS = st.sampled_from(["1", "2", "3", "1.1", "1.25", "2.5", "1.618", "3.000000001"])


@pytest.fixture(scope="module")
def tf():
    return pytest.importorskip("tensorflow", reason="needs tensorflow-cpu")


def outputs(dataset):
    return [element.tolist() for element in dataset.as_numpy_iterator()]


@settings(max_examples=10, deadline=None)
@given(factor=FACTORS, items=st.integers(0, 40))
def test_without_a_buffer_the_stream_is_that_of_the_schedule(tf, factor, items):
    fresh, _ = echo.EchoSchedule(factor).cursor(0, items).take(400)
    echoed = tf.data.Dataset.range(items).apply(echo.tf_data.echo(factor=factor))
    assert outputs(echoed) == fresh.tolist()
    assert len(echoed) == len(fresh)


@settings(max_examples=6, deadline=None)
@given(factor=FACTORS, items=st.integers(1, 60), seed=st.integers(0, 2**31))
def test_a_buffer_mixes_and_preserves_the_counts(tf, factor, items, seed):
    def echoed(seed):
        stage = echo.tf_data.echo(factor=factor, shuffle_buffer=16, seed=seed)
        return tf.data.Dataset.range(items).apply(stage)

    dataset = echoed(seed)
    first = outputs(dataset)
    assert np.bincount(first, minlength=items).tolist() == (
        echo.EchoSchedule(factor).copies(0, items).tolist()
    )
    # fresh item i enters the buffer at echoed position floor(i * e), 16 outputs ahead at most
    starts = np.asarray([echo.EchoSchedule(factor).num_outputs(item) for item in first])
    assert (starts < np.arange(len(first)) + 16).all()
    assert outputs(echoed(seed)) == first
    if items == 60:
        assert outputs(dataset) != first
        assert outputs(echoed(seed + 1)) != first
    stage = echo.tf_data.echo(factor, 16, seed, reshuffle_each_iteration=False)
    dataset = tf.data.Dataset.range(items).apply(stage)
    assert outputs(dataset) == outputs(dataset)


def test_nested_elements_batches_and_streams_without_a_known_end(tf):
    def examples():
        for i in range(5):
            yield {"image": np.full((2, 2), i, np.uint8), "label": (i, f"digit {i}")}

    spec = {
        "image": tf.TensorSpec((2, 2), tf.uint8),
        "label": (tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.string)),
    }
    dataset = tf.data.Dataset.from_generator(examples, output_signature=spec)
    echoed = dataset.apply(echo.tf_data.echo(factor=1.5))
    assert echoed.element_spec == spec
    assert [x["label"][1] for x in echoed.as_numpy_iterator()] == [
        b"digit %d" % i for i in (0, 1, 1, 2, 3, 3, 4)
    ]
    batches = dataset.batch(2).apply(echo.tf_data.echo(factor=2))
    assert [x["image"][:, 0, 0].tolist() for x in batches.as_numpy_iterator()] == [
        *[[0, 1]] * 2,
        *[[2, 3]] * 2,
        *[[4]] * 2,
    ]
    endless = tf.data.Dataset.range(2).repeat().apply(echo.tf_data.echo(2, shuffle_buffer=4))
    assert endless.cardinality() == tf.data.INFINITE_CARDINALITY
    assert len(outputs(endless.take(50))) == 50


def test_data_sets_made_in_a_graph_are_echoed(tf):
    stage = echo.tf_data.echo(1.5)

    def of_file(number):
        return tf.data.Dataset.range(10 * number, 10 * number + 3).apply(stage)

    files = tf.data.Dataset.range(2)
    assert outputs(files.flat_map(of_file)) == [0, 1, 1, 2, 10, 11, 11, 12]
    total = tf.function(lambda: of_file(1).reduce(np.int64(0), lambda a, b: a + b))
    assert total().numpy() == 44
