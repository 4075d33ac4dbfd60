"""Rules between fields of a configuration, and what to do about one that needs too much memory.

The range of a single field is in configs/base.py.
"""

import contextlib
from collections.abc import Iterator

import jax
from ml_collections import ConfigDict

from configs import base
from configs.fields import FieldError
from data.throttle import limits
from pipeline.accounting import total_steps
from runs import cli, records
from runs.study import check_target_value, is_share, nested
from workloads.interface import Workload

# The longest wait for one record of a throttled upstream that can be intended.
MAX_RECORD_SECONDS = 600

# The field that scales the learning rate at the end of each schedule that decays.
_FINAL_FACTORS = {"linear": "final_factor", "cosine": "final_factor", "two_steps": "step_factor"}

_FALLING = ("loss", "perplexity")  # metrics that training lowers


class ConfigError(cli.InputError):
    """A field's value is not allowed; the message names the field, the value, and what is."""


def _refuse(broken: bool, message: str) -> None:
    if broken:
        raise ConfigError(f"config.{message}")


def check(config: ConfigDict) -> None:
    """Checks every field, and the rules between fields that do not depend on the data set; raises
    ConfigError for the first that is broken, like all functions here."""
    for field in base.FIELDS:  # a configuration file can set them to anything, or delete them
        try:
            field.check(nested(config, field.name))
        except FieldError as error:
            raise ConfigError(str(error)) from error
    check_rules(config)
    seconds = limits(config).record_seconds
    _refuse(
        seconds > MAX_RECORD_SECONDS,
        f"upstream lets a record pass in {seconds:.3g} seconds; allowed: {MAX_RECORD_SECONDS} "
        "seconds at most, by a higher rate or fewer and shorter stalls",
    )


def check_rules(config: ConfigDict) -> None:
    """Checks the rules between fields, each of which is allowed, as far as they do not depend on
    the data set."""
    settings, upstream, spaced = config.echo, config.upstream, config.dataset.spaced_epochs
    echoes, auto = settings.insertion != "none", settings.policy == "auto"
    of_examples = echoes and settings.insertion != "after_batching"
    slots, streams, rows = settings.shuffle_buffer, settings.streams, config.batch_size
    _refuse(
        auto and not echoes,
        "echo.policy is 'auto' with echo.insertion='none', where nothing is repeated; allowed: "
        "'fixed', or another insertion",
    )
    _refuse(
        auto and settings.factor != 1,
        f"echo.factor is {settings.factor:g} with echo.policy='auto', which chooses the factor; "
        "allowed: 1 (the maximum number of copies is config.echo.max_factor)",
    )
    _refuse(
        not echoes and settings.factor != 1,
        f"echo.factor is {settings.factor:g} with echo.insertion='none', where nothing is "
        "repeated; set config.echo.insertion to before_augmentation, after_augmentation, or "
        "after_batching as well",
    )
    _refuse(
        auto and of_examples and 0 < slots < rows and not settings.replay,
        f"echo.shuffle_buffer is {slots} with echo.policy='auto', which repeats an example at most "
        f"once in a batch; allowed: config.batch_size ({rows}) or more, or 0 for eight batches",
    )
    _refuse(
        bool(settings.replay) and not auto,
        f"echo.replay is {settings.replay!r} with echo.policy={settings.policy!r}, which makes no "
        "decisions to replay; allowed: '', or echo.policy=auto",
    )
    _refuse(
        spaced > 1 and (echoes or streams > 1),
        f"dataset.spaced_epochs is {spaced}, which takes the place of echoing; allowed only with "
        "echo.insertion='none' and echo.streams=1",
    )
    check_insertion(config, settings.insertion)
    _refuse(
        (upstream.stall_seconds > 0) != (upstream.stall_every_seconds > 0),
        f"upstream.stall_seconds is {upstream.stall_seconds:g} with config.upstream."
        f"stall_every_seconds={upstream.stall_every_seconds:g}; allowed: both above 0, or both 0",
    )
    _refuse(
        rows % streams != 0,
        f"echo.streams is {streams}, which does not divide config.batch_size {rows}; allowed: a "
        "divisor of the batch size",
    )
    _refuse(
        of_examples and 0 < slots < streams,
        f"echo.shuffle_buffer is {slots}, the total of config.echo.streams={streams} streams, "
        f"which need a slot each; allowed: {streams} or more, 0, or fewer streams",
    )
    schedule, budget = config.optimizer.schedule, config.budget.fresh_examples
    horizon, factor = schedule.horizon_fresh_examples, _FINAL_FACTORS.get(schedule.name)
    _refuse(
        total_steps(config) < 1,
        f"budget.fresh_examples is {budget}, which gives no batch of {rows}; allowed: at least the "
        "batch size",
    )
    _refuse(
        total_steps(config, horizon) < 1,
        f"optimizer.schedule.horizon_fresh_examples is {horizon}, which gives no batch of {rows}; "
        "allowed: at least the batch size, or 0 for the budget",
    )
    _refuse(
        0 < horizon < budget and factor is not None and not schedule[factor],
        f"optimizer.schedule.{factor} is 0 with horizon_fresh_examples={horizon}, after which the "
        f"rest of the budget of {budget} would train at a learning rate of 0; allowed: a factor "
        "above 0, or a horizon of the budget or more (0 = the budget)",
    )


def check_insertion(config: ConfigDict, insertion: str) -> None:
    """Checks that `insertion` is possible with the configured decoding, augmentation, and
    placement."""
    on_host, before = config.echo.placement == "host", insertion == "before_augmentation"
    _refuse(
        config.dataset.fused_decode and before,
        "dataset.fused_decode is true with echo.insertion='before_augmentation', so all copies of "
        "an example would have the same crop; allowed here: false",
    )
    _refuse(
        config.augment_on == "device" and insertion.startswith("after") and on_host,
        f"augment_on is 'device' with echo.insertion={insertion!r}, but the host echoes examples "
        "that are already augmented; allowed here: 'host', or config.echo.placement=device",
    )
    _refuse(
        config.augment_on == "host" and before and not on_host,
        "augment_on is 'host' with echo.insertion='before_augmentation' and echo.placement="
        "'device', but the copies exist only on the device; allowed here: 'device'",
    )


def check_workload(config: ConfigDict, workload: Workload) -> None:
    """Checks the fields that refer to properties of the workload."""
    target, rises = config.target, config.target.mode == "above"
    _refuse(
        target.metric not in workload.metrics,
        f"target.metric is {target.metric!r}, which evaluating workload {config.workload!r} does "
        f"not report; allowed: {', '.join(workload.metrics)}",
    )
    _refuse(
        target.metric in _FALLING if rises else is_share(target.metric),
        f"target.mode is {target.mode!r} with target.metric={target.metric!r}, so that an "
        f"untrained network could reach the target; allowed: {'below' if rises else 'above'!r}",
    )
    try:
        check_target_value("config.target.value", records.Target(**target.to_dict()))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    _refuse(
        config.dataset.fused_decode and not hasattr(workload, "decode_cropped"),
        f"dataset.fused_decode is true, which workload {config.workload!r} does not have; allowed: "
        "false",
    )


def check_devices(config: ConfigDict, data_devices: int) -> None:
    """Checks that `data_devices` devices can share a batch evenly."""
    share, group = config.batch_size // data_devices, config.model.ghost_batch_size
    stores = config.echo.insertion != "none" and config.echo.placement == "device"
    fewer = f"a multiple of {data_devices}, or fewer devices (config.mesh.data)"
    _refuse(
        config.batch_size % data_devices != 0,
        f"batch_size is {config.batch_size}, which {data_devices} devices cannot share evenly; "
        f"allowed: {fewer}",
    )
    _refuse(
        stores and config.echo.streams % data_devices != 0,
        f"echo.streams is {config.echo.streams} with config.echo.placement='device', but each of "
        f"{data_devices} devices keeps whole streams; allowed here: {fewer}",
    )
    _refuse(
        bool(group and share % group),
        f"model.ghost_batch_size is {group}, which does not divide the {share} examples of each "
        "device's batch; allowed: a divisor, so that no ghost batch crosses devices",
    )


def held_streams(config: ConfigDict, held_rows: range) -> range:
    """The streams that fill the rows of each batch that this process holds."""
    rows, held = config.batch_size // config.echo.streams, len(held_rows)
    processes = config.batch_size // held
    _refuse(
        config.echo.policy == "auto" and held * jax.process_count() > config.batch_size,
        f"mesh.model is {config.mesh.model} with config.echo.policy='auto', but several processes "
        "would then hold the same rows, and each decides what to repeat in its own; allowed here: "
        "at most the number of devices of a process",
    )
    _refuse(
        held_rows.start % rows != 0 or held % rows != 0,
        f"echo.streams is {config.echo.streams}, which {processes} processes cannot share evenly; "
        f"allowed: a multiple of {processes}",
    )
    return range(held_rows.start // rows, held_rows.stop // rows)


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
