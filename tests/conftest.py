"""How all tests run: compiled once and without optimizing; shared fixtures.

No test's verdict may depend on how fast the machine is or how its processor rounds. Tests wait for
events, or go by clocks of their own; a timeout only ends what hangs.
"""

import gc
import hashlib
import os
import pathlib
import platform
import signal

import jax
import pytest
from hypothesis import HealthCheck, settings

import train
from configs import base
from runs import cli
from tests.helpers.processes import start_pair
from tests.helpers.runs import NOT_OPTIMIZING, ROOT

settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")


def _share_what_is_compiled() -> None:
    """All processes of the tests, and the next run of them, find what others have compiled.

    Most of the tests' time is the compiler's. JAX's key of an entry holds the program, the flags
    and the versions; the directory's name adds the processor, whose instructions the entries use.
    """
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    features = sorted({line for line in lines if line.startswith(("model name", "flags", "Feat"))})
    machine = "\n".join([platform.platform(), platform.processor(), *features])
    name = f"jax-{jax.__version__}-{hashlib.sha256(machine.encode()).hexdigest()[:12]}"
    for option, value in {
        "jax_compilation_cache_dir": str(ROOT / ".pytest_cache" / "compiled" / name),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }.items():
        os.environ[option.upper()] = str(value)
        jax.config.update(option, value)


def _compile_without_optimizing() -> None:
    """Compiling would take longer than the tests' programs run: LLVM's optimizer, and the newer of
    XLA's two ways to generate a fusion's code.

    Whoever names a level in XLA_FLAGS gets XLA's defaults for the rest.
    """
    option, _, _ = NOT_OPTIMIZING.partition("=")
    if option not in (flags := os.environ.get("XLA_FLAGS", "")):
        os.environ["XLA_FLAGS"] = f"{flags} {NOT_OPTIMIZING}".strip()


_share_what_is_compiled()
_compile_without_optimizing()

# A shell starts a background job with SIGINT ignored, and commands under test would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """Later collections of garbage pass over what is there by now, which stays."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory):
    """Runs a configuration once a session and hands out its directory."""

    done = {}

    def directory(config):
        key = config.to_json()
        if key not in done:
            done[key] = tmp_path_factory.mktemp("run") / "workdir"
            train.train(config, done[key])
        return done[key]

    return directory


@pytest.fixture
def two_processes():
    """Starts a command twice, as the two processes of one run; ends them, whatever happens."""
    started = []

    def start(*words):
        started.extend(both := start_pair(*words))
        return both

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def _without_a_users_file():
    """What a user's configuration file has added is gone after the test: fields, its place in the
    records of the code."""
    shipped, files = list(base.FIELDS), dict(cli.OWN_FILES)
    yield
    base.FIELDS[:] = shipped
    cli.OWN_FILES.clear()
    cli.OWN_FILES.update(files)
