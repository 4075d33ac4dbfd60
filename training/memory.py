"""Explains errors that there is no memory left."""

import contextlib
from collections.abc import Iterator

import jax
from ml_collections import ConfigDict

from training.check import ConfigError


def exhaustion(error: BaseException, config: ConfigDict) -> str | None:
    """What to do about an error that this machine or a device has no memory left; None for other
    errors."""
    of_device = isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)
    if not of_device and not isinstance(error, MemoryError):
        return None
    remedy = ", or set config.dtype=bfloat16" if config.dtype == "float32" else ""
    return (
        f"{'a device' if of_device else 'this machine'} has no memory left with config.batch_size="
        f"{config.batch_size:,}; lower it, make the network of config.model or what echoing keeps "
        f"smaller{remedy} ({str(error).partition(chr(10))[0]})"
    )


@contextlib.contextmanager
def exhaustion_explained(config: ConfigDict) -> Iterator[None]:
    """Replaces an error that there is no memory left by ConfigError."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        explanation = exhaustion(error, config)
        if explanation is None:
            raise
        raise ConfigError(explanation) from error
