"""The echo stage for tf.data, in the form of the paper: `dataset.apply(echo(factor=2))`."""

from collections.abc import Callable
from typing import Any

from echo.schedule import EchoSchedule
from echo.spec import EchoSpecError, Factor, checked_switch

# TensorFlow counts in 64-bit integers, and squares of the denominator must fit.
_MAX_DENOMINATOR = 10**9

# TensorFlow allocates 24 bytes for each slot before the first element, here 6 GB, and crashes if it
# cannot.
_MAX_BUFFER = 2**28


def echo(
    factor: Factor, shuffle_buffer: int = 0, seed: int = 0, reshuffle_each_iteration: bool = True
) -> Callable[[Any], Any]:
    """A function for `tf.data.Dataset.apply` that repeats each element about `factor` times.

    Over examples this is example echoing, after `.batch(...)` batch echoing. It is `flat_map` over
    `from_tensors(element).repeat(n)` and then `shuffle`, as in Choi et al. (2019): k elements give
    floor(k * factor). The order is that of tf.data's own shuffle buffer, which depends on `seed`
    (and on tf.random.set_seed, if that is called). Put `ignore_errors()` before this stage: after
    it, iteration never ends if an element before the stage fails.

    Args:
        factor: the echo factor e >= 1, with at most nine decimals.
        shuffle_buffer: slots of the shuffle buffer, in elements; 0 leaves copies adjacent. For each
            slot TensorFlow takes 24 bytes, even if the data set is shorter; at most 2**28.
        seed: seeds the buffer's choices.
        reshuffle_each_iteration: whether these choices differ from one pass to the next.

    Raises:
        EchoSpecError: a factor, buffer, seed, or switch that is not allowed.
        ImportError: TensorFlow is not installed.
    """
    schedule = EchoSchedule(factor, shuffle_buffer, seed)
    if schedule.factor.denominator > _MAX_DENOMINATOR:
        raise EchoSpecError("factor", factor, "at most nine decimals")
    if schedule.shuffle_buffer > _MAX_BUFFER:
        allowed = f"at most {_MAX_BUFFER}, for which TensorFlow takes 6 GB"
        raise EchoSpecError("shuffle_buffer", shuffle_buffer, allowed)
    reshuffle = checked_switch("reshuffle_each_iteration", reshuffle_each_iteration)
    import tensorflow as tf  # pyright: ignore[reportMissingImports]

    whole, rest = divmod(schedule.factor.numerator, schedule.factor.denominator)

    def echoed(index, element):
        # floor((i + 1) * e) - floor(i * e), with numbers that stay small for any i
        phase = index % schedule.factor.denominator
        before, after = (n * rest // schedule.factor.denominator for n in (phase, phase + 1))
        return tf.data.Dataset.from_tensors(element).repeat(whole + after - before)

    def apply(dataset: Any) -> Any:
        outputs = dataset.enumerate().flat_map(echoed)  # pyright: ignore[reportArgumentType]
        # None in a graph: inside a tf.function, or a function that makes data sets for `interleave`
        cardinality = tf.get_static_value(dataset.cardinality())
        if cardinality not in (None, tf.data.UNKNOWN_CARDINALITY):
            finite = cardinality != tf.data.INFINITE_CARDINALITY
            total = schedule.num_outputs(int(cardinality)) if finite else cardinality
            outputs = outputs.apply(tf.data.experimental.assert_cardinality(total))
        if shuffle_buffer:
            outputs = outputs.shuffle(shuffle_buffer, seed, reshuffle)
        return outputs

    return apply
