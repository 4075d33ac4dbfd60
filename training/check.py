"""Checks a configuration before anything is opened or written."""

import jax

import echo
from configs import base
from configs.fields import Field, FieldError
from data.throttle import Limits
from pipeline.accounting import horizon_steps, total_steps
from runs import cli

# Seconds that somebody might wait for one record of a slow upstream.
LONGEST_RECORD = 600


class ConfigError(Exception):
    """A field's value is not allowed; the message names the field, the value and what is."""


def check(config) -> None:
    """Checks every field, and what fields must satisfy together whatever the data set.

    Raises:
        ConfigError: the first field that is wrong.
    """
    for field in base.FIELDS:
        _check_field(config, field)
    _check_echo(config)
    _check_upstream(config.upstream)
    _check_division("echo.streams", config.echo.streams, config.batch_size)
    _check_buffer(config.echo)
    if total_steps(config) < 1:
        raise ConfigError(
            f"config.budget.fresh_examples is {config.budget.fresh_examples}, which gives no batch "
            f"of {config.batch_size}; allowed: at least the batch size"
        )
    _check_horizon(config)


def check_insertion(config, insertion: str) -> None:
    """Checks that an echo stage may stand at `insertion` where this configuration decodes,
    augments and keeps repeated items.

    Raises:
        ConfigError: it may not.
    """
    if config.dataset.fused_decode and insertion == "before_augmentation":
        raise ConfigError(
            "config.dataset.fused_decode is true with echo.insertion='before_augmentation', where "
            "each copy is cropped anew after decoding; allowed here: false"
        )
    on_host = config.echo.placement == "host"
    if config.augment_on == "device" and insertion.startswith("after") and on_host:
        raise ConfigError(
            f"config.augment_on is 'device' with echo.insertion={insertion!r}, which echoes on the "
            "host what is already augmented; allowed here: 'host', or config.echo.placement=device"
        )
    if config.augment_on == "host" and insertion == "before_augmentation" and not on_host:
        raise ConfigError(
            "config.augment_on is 'host' with echo.insertion='before_augmentation' and "
            "echo.placement='device', where the host no longer has the copies that it would "
            "augment; allowed here: 'device'"
        )


def check_devices(config, data_devices: int) -> None:
    """Checks that the batch splits evenly over the devices that share it."""
    if config.batch_size % data_devices:
        raise ConfigError(
            f"config.batch_size is {config.batch_size}, which {data_devices} devices cannot share "
            f"evenly; allowed: a multiple of {data_devices}, or fewer devices (config.mesh.data)"
        )
    if config.echo.placement == "device" and config.echo.streams % data_devices:
        raise ConfigError(
            f"config.echo.streams is {config.echo.streams} with config.echo.placement='device', "
            f"where each of {data_devices} devices keeps its own sub-streams; allowed here: a "
            f"multiple of {data_devices}, or fewer devices (config.mesh.data)"
        )
    share, group = config.batch_size // data_devices, config.model.ghost_batch_size
    if group and share % group:
        raise ConfigError(
            f"config.model.ghost_batch_size is {group}, which does not divide the {share} examples "
            "of each device's batch; allowed: a divisor, so that no ghost batch crosses devices"
        )


def held_streams(config, held_rows: range) -> range:
    """The sub-streams that fill the rows of each batch which this process holds.

    Raises:
        ConfigError: there are too few of them for each process to have its own.
    """
    rows = config.batch_size // config.echo.streams
    if config.echo.policy == "auto" and len(held_rows) * jax.process_count() > config.batch_size:
        raise ConfigError(
            f"config.mesh.model is {config.mesh.model}, which has several processes hold the same "
            "rows, with config.echo.policy='auto', where each process decides for its own; "
            "allowed here: at most the devices of a process"
        )
    if held_rows.start % rows or len(held_rows) % rows:
        processes = config.batch_size // len(held_rows)
        raise ConfigError(
            f"config.echo.streams is {config.echo.streams}, which {processes} processes cannot "
            f"share evenly; allowed: a multiple of {processes}"
        )
    return range(held_rows.start // rows, held_rows.stop // rows)


def _check_field(config, field: Field) -> None:
    """Checks one field, which a configuration file may have set to anything, or taken away."""
    try:
        field.check(cli.get_field(config, field.name))
    except FieldError as error:
        raise ConfigError(str(error)) from error
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"config.{field.name} is missing; start from configs.base.get_config(), which has all "
            "fields"
        ) from error


def _check_echo(config) -> None:
    try:
        echo.EchoSpec(
            insertion=config.echo.insertion,
            factor=config.echo.factor,
            shuffle_buffer=config.echo.shuffle_buffer,
            seed=config.seed.data,
            placement=config.echo.placement,
        )
    except echo.EchoSpecError as error:
        raise ConfigError(f"config.echo.{error}") from error
    _check_policy(config.echo)
    echoes = config.echo.insertion != "none" or config.echo.streams > 1
    if config.dataset.spaced_epochs > 1 and echoes:
        raise ConfigError(
            f"config.dataset.spaced_epochs is {config.dataset.spaced_epochs}, which takes the "
            "place of echoing; allowed with echo.insertion='none' and echo.streams=1 alone"
        )
    check_insertion(config, config.echo.insertion)


def _check_policy(settings) -> None:
    if settings.policy != "auto":
        if settings.replay:
            raise ConfigError(
                f"config.echo.replay is {settings.replay!r} with echo.policy={settings.policy!r}, "
                "which decides nothing; allowed: '', or echo.policy=auto"
            )
        return
    if settings.insertion == "none":
        raise ConfigError(
            "config.echo.policy is 'auto' with echo.insertion='none', where nothing is repeated; "
            "allowed: 'fixed', or another insertion"
        )
    if settings.factor != 1:
        raise ConfigError(
            f"config.echo.factor is {settings.factor:g} with echo.policy='auto', which chooses how "
            "often to repeat; allowed: 1 (the most showings are config.echo.max_factor)"
        )
    if settings.shuffle_buffer < 1:
        raise ConfigError(
            f"config.echo.shuffle_buffer is {settings.shuffle_buffer} with echo.policy='auto', "
            "which repeats what is stored there; allowed: 1 or more, best several batches"
        )


# What the learning rate is multiplied by at the end of each schedule that decays.
_LAST_FACTORS = {"linear": "final_factor", "cosine": "final_factor", "two_steps": "step_factor"}


def _check_horizon(config) -> None:
    schedule, budget = config.optimizer.schedule, config.budget.fresh_examples
    horizon = schedule.horizon_fresh_examples
    if horizon_steps(config) < 1:
        raise ConfigError(
            f"config.optimizer.schedule.horizon_fresh_examples is {horizon}, which gives no batch "
            f"of {config.batch_size}; allowed: at least the batch size, or 0 for the budget"
        )
    last = _LAST_FACTORS.get(schedule.name)
    if 0 < horizon < budget and last and not schedule[last]:
        raise ConfigError(
            f"config.optimizer.schedule.{last} is 0 with horizon_fresh_examples={horizon}, after "
            f"which the rest of the budget of {budget} would train at a learning rate of 0; "
            f"allowed: a factor above 0, or a horizon of the budget or more (0 = the budget)"
        )


def _check_buffer(settings) -> None:
    """Before batching the streams share the buffer's slots, of which each needs at least one."""
    shared = settings.insertion in ("before_augmentation", "after_augmentation")
    if shared and 0 < settings.shuffle_buffer < settings.streams:
        raise ConfigError(
            f"config.echo.shuffle_buffer is {settings.shuffle_buffer}, the total of "
            f"config.echo.streams={settings.streams} streams, which need a slot each; allowed with "
            f"echo.insertion={settings.insertion!r}: {settings.streams} or more, "
            + ("or fewer streams" if settings.policy == "auto" else "0, or fewer streams")
        )


def _check_upstream(upstream) -> None:
    if (upstream.stall_seconds > 0) != (upstream.stall_every_seconds > 0):
        raise ConfigError(
            f"config.upstream.stall_seconds is {upstream.stall_seconds:g} with "
            f"config.upstream.stall_every_seconds={upstream.stall_every_seconds:g}; allowed: both "
            "above 0, or both 0"
        )


def check_speed(limits: Limits, record_bytes: int) -> None:
    """Checks that a record of so many bytes passes the limits on the upstream in a time that
    somebody might wait for.

    Raises:
        ConfigError: it does not.
    """
    seconds = limits.seconds_of(record_bytes)
    if seconds > LONGEST_RECORD:
        raise ConfigError(
            f"config.upstream lets a record of {record_bytes:,} bytes pass in {seconds:.3g} "
            f"seconds; allowed: {LONGEST_RECORD} seconds at most, by higher limits or fewer and "
            "shorter stalls"
        )


def _check_division(name: str, parts: int, batch_size: int) -> None:
    if batch_size % parts:
        raise ConfigError(
            f"config.{name} is {parts}, which does not divide config.batch_size {batch_size}; "
            "allowed: a divisor of the batch size"
        )
