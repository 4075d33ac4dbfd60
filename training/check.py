"""Rules between fields of a configuration. The range of a single field is in configs/base.py."""

import jax
from ml_collections import ConfigDict

from configs import base
from configs.fields import FieldError
from data.throttle import Limits
from pipeline.accounting import horizon_steps, total_steps
from runs import cli, records
from runs.study import check_target_value, is_share
from workloads.interface import Workload

# The longest wait for one record of a throttled upstream that can be intended.
MAX_RECORD_SECONDS = 600

# The field that scales the learning rate at the end of each schedule that decays.
_FINAL_FACTORS = {"linear": "final_factor", "cosine": "final_factor", "two_steps": "step_factor"}

_FALLING = ("loss", "perplexity")  # metrics that training lowers


class ConfigError(cli.InputError):
    """A field's value is not allowed; the message names the field, the value, and what is."""


def check(config: ConfigDict) -> None:
    """Checks every field, and the rules between fields that do not depend on the data set.

    Raises:
        ConfigError: for the first field that is wrong.
    """
    _check_fields(config)
    check_rules(config)


def check_rules(config: ConfigDict) -> None:
    """Checks the rules between fields, each of which is allowed, as far as they do not depend on
    the data set.

    Raises:
        ConfigError: for the first rule that does not hold.
    """
    _check_echo(config)
    _check_upstream(config.upstream)
    _check_streams(config)
    _check_budget(config)


def check_insertion(config: ConfigDict, insertion: str) -> None:
    """Checks that `insertion` is possible with the configured decoding, augmentation, and
    placement.

    Raises:
        ConfigError: it is not.
    """
    if config.dataset.fused_decode and insertion == "before_augmentation":
        raise ConfigError(
            "config.dataset.fused_decode is true with echo.insertion='before_augmentation', so all "
            "copies of an example would have the same crop; allowed here: false"
        )
    on_host = config.echo.placement == "host"
    if config.augment_on == "device" and insertion.startswith("after") and on_host:
        raise ConfigError(
            f"config.augment_on is 'device' with echo.insertion={insertion!r}, but the host "
            "echoes examples that are already augmented; allowed here: 'host', or "
            "config.echo.placement=device"
        )
    if config.augment_on == "host" and insertion == "before_augmentation" and not on_host:
        raise ConfigError(
            "config.augment_on is 'host' with echo.insertion='before_augmentation' and "
            "echo.placement='device', but the copies exist only on the device; allowed here: "
            "'device'"
        )


def check_workload(config: ConfigDict, workload: Workload) -> None:
    """Checks the fields that refer to properties of the workload.

    Raises:
        ConfigError: the workload does not have such a property.
    """
    if config.target.metric not in workload.metrics:
        raise ConfigError(
            f"config.target.metric is {config.target.metric!r}, which evaluating workload "
            f"{config.workload!r} does not report; allowed: {', '.join(workload.metrics)}"
        )
    _check_target(config.target)
    if config.dataset.fused_decode and not hasattr(workload, "decode_cropped"):
        raise ConfigError(
            f"config.dataset.fused_decode is true, which workload {config.workload!r} does not "
            "have; allowed: false"
        )


def check_devices(config: ConfigDict, data_devices: int) -> None:
    """Checks that `data_devices` devices can share a batch evenly.

    Raises:
        ConfigError: they cannot.
    """
    if config.batch_size % data_devices:
        raise ConfigError(
            f"config.batch_size is {config.batch_size}, which {data_devices} devices cannot share "
            f"evenly; allowed: a multiple of {data_devices}, or fewer devices (config.mesh.data)"
        )
    stores = config.echo.insertion != "none" and config.echo.placement == "device"
    if stores and config.echo.streams % data_devices:
        raise ConfigError(
            f"config.echo.streams is {config.echo.streams} with config.echo.placement='device', "
            f"but each of {data_devices} devices keeps whole streams; allowed here: a "
            f"multiple of {data_devices}, or fewer devices (config.mesh.data)"
        )
    share, group = config.batch_size // data_devices, config.model.ghost_batch_size
    if group and share % group:
        raise ConfigError(
            f"config.model.ghost_batch_size is {group}, which does not divide the {share} examples "
            "of each device's batch; allowed: a divisor, so that no ghost batch crosses devices"
        )


def held_streams(config: ConfigDict, held_rows: range) -> range:
    """The streams that fill the rows of each batch that this process holds.

    Raises:
        ConfigError: the processes cannot share the streams evenly.
    """
    rows = config.batch_size // config.echo.streams
    if config.echo.policy == "auto" and len(held_rows) * jax.process_count() > config.batch_size:
        raise ConfigError(
            f"config.mesh.model is {config.mesh.model} with config.echo.policy='auto', but several "
            "processes would then hold the same rows, and each decides what to repeat in its own; "
            "allowed here: at most the number of devices of a process"
        )
    if held_rows.start % rows or len(held_rows) % rows:
        processes = config.batch_size // len(held_rows)
        raise ConfigError(
            f"config.echo.streams is {config.echo.streams}, which {processes} processes cannot "
            f"share evenly; allowed: a multiple of {processes}"
        )
    return range(held_rows.start // rows, held_rows.stop // rows)


def check_speed(limits: Limits) -> None:
    """Checks that a record passes a throttled upstream in a sensible time.

    Raises:
        ConfigError: it does not.
    """
    seconds = limits.record_seconds
    if seconds > MAX_RECORD_SECONDS:
        raise ConfigError(
            f"config.upstream lets a record pass in {seconds:.3g} seconds; allowed: "
            f"{MAX_RECORD_SECONDS} seconds at most, by a higher rate or fewer and shorter stalls"
        )


def _check_fields(config: ConfigDict) -> None:
    """Checks single fields: a configuration file can set them to anything, or delete them."""
    for field in base.FIELDS:
        try:
            field.check(cli.get_field(config, field.name))
        except FieldError as error:
            raise ConfigError(str(error)) from error
        except (AttributeError, KeyError, TypeError) as error:
            raise ConfigError(
                f"config.{field.name} is missing; start from configs.base.get_config(), which has "
                "all fields"
            ) from error


def _check_target(target: ConfigDict) -> None:
    wrong = target.metric in _FALLING if target.mode == "above" else is_share(target.metric)
    if wrong:
        other = "below" if target.mode == "above" else "above"
        raise ConfigError(
            f"config.target.mode is {target.mode!r} with target.metric={target.metric!r}, so that "
            f"an untrained network could reach the target; allowed here: {other!r}"
        )
    try:
        check_target_value("config.target.value", records.Target(**target.to_dict()))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _check_echo(config: ConfigDict) -> None:
    settings = config.echo
    if settings.insertion == "none" and settings.factor != 1:
        raise ConfigError(
            f"config.echo.factor is {settings.factor:g} without an insertion point; add "
            "--config.echo.insertion=before_augmentation, after_augmentation, or after_batching"
        )
    if settings.policy == "auto":
        _check_auto(settings, config.batch_size)
    elif settings.replay:
        raise ConfigError(
            f"config.echo.replay is {settings.replay!r} with echo.policy={settings.policy!r}, "
            "which makes no decisions to replay; allowed: '', or echo.policy=auto"
        )
    echoes = settings.insertion != "none" or settings.streams > 1
    if config.dataset.spaced_epochs > 1 and echoes:
        raise ConfigError(
            f"config.dataset.spaced_epochs is {config.dataset.spaced_epochs}, which takes the "
            "place of echoing; allowed only with echo.insertion='none' and echo.streams=1"
        )
    check_insertion(config, settings.insertion)


def _check_auto(settings: ConfigDict, batch_size: int) -> None:
    if settings.insertion == "none":
        raise ConfigError(
            "config.echo.policy is 'auto' with echo.insertion='none', where nothing is repeated; "
            "allowed: 'fixed', or another insertion"
        )
    if settings.factor != 1:
        raise ConfigError(
            f"config.echo.factor is {settings.factor:g} with echo.policy='auto', which chooses "
            "the factor itself; allowed: 1 (the maximum number of copies is config.echo.max_factor)"
        )
    in_batches = settings.insertion == "after_batching"
    if 0 < settings.shuffle_buffer < batch_size and not in_batches and not settings.replay:
        raise ConfigError(
            f"config.echo.shuffle_buffer is {settings.shuffle_buffer} with echo.policy='auto', "
            "which repeats an example at most once in a batch, so that fewer stored examples than "
            f"a batch has would not fill it; allowed: config.batch_size ({batch_size}) or more, or "
            "0 for eight batches"
        )


def _check_upstream(upstream: ConfigDict) -> None:
    if (upstream.stall_seconds > 0) != (upstream.stall_every_seconds > 0):
        raise ConfigError(
            f"config.upstream.stall_seconds is {upstream.stall_seconds:g} with "
            f"config.upstream.stall_every_seconds={upstream.stall_every_seconds:g}; allowed: both "
            "above 0, or both 0"
        )


def _check_streams(config: ConfigDict) -> None:
    settings = config.echo
    if config.batch_size % settings.streams:
        raise ConfigError(
            f"config.echo.streams is {settings.streams}, which does not divide config.batch_size "
            f"{config.batch_size}; allowed: a divisor of the batch size"
        )
    # Before batching the streams share the slots of the buffer, and each needs at least one.
    shared = settings.insertion in ("before_augmentation", "after_augmentation")
    if shared and 0 < settings.shuffle_buffer < settings.streams:
        raise ConfigError(
            f"config.echo.shuffle_buffer is {settings.shuffle_buffer}, the total of "
            f"config.echo.streams={settings.streams} streams, which need a slot each; allowed with "
            f"echo.insertion={settings.insertion!r}: {settings.streams} or more, 0, or fewer "
            "streams"
        )


def _check_budget(config: ConfigDict) -> None:
    schedule, budget = config.optimizer.schedule, config.budget.fresh_examples
    horizon = schedule.horizon_fresh_examples
    if total_steps(config) < 1:
        raise ConfigError(
            f"config.budget.fresh_examples is {budget}, which gives no batch of "
            f"{config.batch_size}; allowed: at least the batch size"
        )
    if horizon_steps(config) < 1:
        raise ConfigError(
            f"config.optimizer.schedule.horizon_fresh_examples is {horizon}, which gives no batch "
            f"of {config.batch_size}; allowed: at least the batch size, or 0 for the budget"
        )
    factor = _FINAL_FACTORS.get(schedule.name)
    if 0 < horizon < budget and factor and not schedule[factor]:
        raise ConfigError(
            f"config.optimizer.schedule.{factor} is 0 with horizon_fresh_examples={horizon}, after "
            f"which the rest of the budget of {budget} would train at a learning rate of 0; "
            f"allowed: a factor above 0, or a horizon of the budget or more (0 = the budget)"
        )
