"""Explains an error of JAX that a device has no memory left."""

import contextlib
from collections.abc import Iterator

import jax
from ml_collections import ConfigDict

from training.check import ConfigError


def exhaustion(error: BaseException, config: ConfigDict) -> str | None:
    """What to do about an error of JAX that a device has no memory left; None for other errors."""
    if not isinstance(error, jax.errors.JaxRuntimeError) or "RESOURCE_EXHAUSTED" not in str(error):
        return None
    remedy = ", or set config.dtype=bfloat16" if config.dtype == "float32" else ""
    return (
        f"a device has no memory left with config.batch_size={config.batch_size:,}; lower it, make "
        f"the network of config.model or what echoing keeps smaller{remedy} "
        f"({str(error).partition(chr(10))[0]})"
    )


@contextlib.contextmanager
def exhaustion_explained(config: ConfigDict) -> Iterator[None]:
    """Replaces an error of JAX that a device has no memory left by ConfigError."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        explanation = exhaustion(error, config)
        if explanation is None:
            raise
        raise ConfigError(explanation) from error
