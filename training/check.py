"""Rules between fields of a configuration.

The range of a single field is in configs/base.py.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
from ml_collections import ConfigDict

from configs import base
from data.sources import DatasetInfo
from data.throttle import limits
from echo.device import NOWHERE
from echo.threads import usable_cores
from pipeline.accounting import total_steps
from pipeline.workers import AVAILABLE
from runs import cli, processes, records
from runs.records import check_target_value, is_share, nested
from workloads.interface import Workload

# The longest wait for one record of a throttled upstream that can be intended.
MAX_RECORD_SECONDS = 600

# The field that scales the learning rate at the end of each schedule that decays.
_FINAL_FACTORS = {"linear": "final_factor", "cosine": "final_factor", "two_steps": "step_factor"}

_FALLING = ("loss", "perplexity")  # metrics that training lowers


class ConfigError(cli.InputError):
    """A field's value is not allowed; the message names the field, the value, and what is."""


def _refuse(config: ConfigDict, rules: Sequence[tuple[str, bool, str]]) -> None:
    """Raises ConfigError for the first of `rules` that is broken: (field, broken, allowed)."""
    for name, broken, allowed in rules:
        if broken:
            raise ConfigError(f"config.{name} is {nested(config, name)!r}; allowed: {allowed}")


def check(config: ConfigDict) -> None:
    """Checks every field, and the rules between fields that do not depend on the data set; raises
    ConfigError for the first that is broken, like all functions here."""
    for field in base.FIELDS:  # a configuration file can set them to anything, or delete them
        try:
            field.check(nested(config, field.name))
        except ValueError as error:
            raise ConfigError(str(error)) from error
    check_rules(config)
    if any(config.upstream.values()) and limits(config).record_seconds > MAX_RECORD_SECONDS:
        raise ConfigError(
            f"config.upstream lets a record pass in {limits(config).record_seconds:.3g} seconds; "
            f"allowed: {MAX_RECORD_SECONDS} at most, by a higher rate or fewer and shorter stalls"
        )


def check_rules(config: ConfigDict) -> None:
    """Checks the rules between fields, each of which is allowed, as far as they do not depend on
    the data set."""
    settings, upstream = config.echo, config.upstream
    echoes, auto = settings.insertion != "none", settings.policy == "auto"
    of_examples = echoes and settings.insertion != "after_batching"
    slots, streams, rows = settings.shuffle_buffer, settings.streams, config.batch_size
    schedule, budget = config.optimizer.schedule, config.budget.fresh_examples
    scarce = auto and of_examples and 0 < slots < rows and not settings.replay
    stalls = (upstream.stall_seconds > 0) != (upstream.stall_every_seconds > 0)
    missing, factor = "1, or an echo.insertion, such as before_augmentation", settings.factor
    few = f"0, or echo.streams={streams} or more"
    stored = echoes and settings.placement == "device"
    most = stored and min(slots, budget) // streams >= NOWHERE
    spaced = config.dataset.spaced_epochs > 1 and (echoes or streams > 1)
    of_threads = any(upstream.values()) or config.dataset.damaged == "skip"
    workers = config.loader.workers > 0
    paced = upstream.examples_per_second > 0 or upstream.latency_seconds > 0
    slow_at_nothing = upstream.slow_share > 0 and not paced
    cores = max(2, usable_cores())
    rules = [
        ("loader.workers", config.loader.workers > cores, f"-1 to {cores}, as many as cores"),
        ("loader.workers", workers and not AVAILABLE, "0 or -1; processes need Linux"),
        ("loader.workers", workers and of_threads, "0 or -1 with upstream limits or damaged=skip"),
        ("echo.policy", auto and not echoes, "'fixed', or an echo.insertion to repeat at"),
        ("echo.factor", auto and factor != 1, "1 with echo.policy=auto, which has echo.max_factor"),
        ("echo.factor", not echoes and factor != 1, missing),
        ("echo.shuffle_buffer", scarce, f"0, or batch_size={rows} or more with echo.policy=auto"),
        ("echo.replay", bool(settings.replay) and not auto, "'', or echo.policy=auto"),
        ("dataset.spaced_epochs", spaced, "1, or echo.insertion=none and echo.streams=1"),
        ("upstream.stall_seconds", stalls, "0, or above 0 as stall_every_seconds"),
        ("upstream.slow_share", slow_at_nothing, "0, or a rate or latency in upstream"),
        ("echo.streams", rows % streams != 0, f"a divisor of batch_size={rows}"),
        ("echo.shuffle_buffer", of_examples and 0 < slots < streams, few),
        ("echo.shuffle_buffer", most, f"at most {NOWHERE - 1:,} per stream, kept on devices"),
    ]
    _refuse(config, rules)
    check_insertion(config, settings.insertion)
    horizon, final = schedule.horizon_fresh_examples, _FINAL_FACTORS.get(schedule.name)
    stops = 0 < horizon < budget and final is not None and schedule[final] == 0
    name, one = "optimizer.schedule.horizon_fresh_examples", f"a batch of {rows} examples or more"
    rules = [
        ("budget.fresh_examples", total_steps(config) < 1, one),
        (name, total_steps(config, horizon) < 1, f"0 for the budget, or {one}"),
        # after the horizon, the rest of the budget would train at a rate of 0
        (name, stops, f"0, at least the budget, or a {final} above 0"),
    ]
    _refuse(config, rules)


def check_insertion(config: ConfigDict, insertion: str) -> None:
    """Checks that `insertion` is possible with the configured decoding, augmentation, and
    placement."""
    on_host, before = config.echo.placement == "host", insertion == "before_augmentation"
    on_device, fused = config.augment_on == "device", config.dataset.fused_decode
    augmented = on_device and on_host and insertion.startswith("after")
    stratified = config.echo.copies == "stratified" and (not before or config.dataset.text)
    absent = not on_device and not on_host and before  # the copies are on the devices
    whole, where = "False, or all copies have the same crop", "'host', or echo.placement=device"
    rules = [
        ("dataset.fused_decode", fused and before, f"{whole} with echo.{insertion=}"),
        ("echo.copies", stratified, "'independent', or images and echoing before augmentation"),
        ("augment_on", augmented, f"{where}, with echo.{insertion=}"),
        ("augment_on", absent, "'device', or echo.placement=host"),
    ]
    _refuse(config, rules)


def check_workload(config: ConfigDict, workload: Workload) -> None:
    """Checks the fields that refer to properties of the workload."""
    target, metric, known = config.target, config.target.metric, workload.metrics
    way = "below" if metric in _FALLING else "above" if is_share(metric) else target.mode
    mode = f"{way!r} for {metric}, or an untrained network reaches the target"
    fused = config.dataset.fused_decode and not hasattr(workload, "decode_cropped")
    rules = [
        ("target.metric", metric not in known, ", ".join(known)),
        ("target.mode", target.mode != way, mode),
        ("dataset.fused_decode", fused, f"False with workload={config.workload!r}"),
    ]
    _refuse(config, rules)
    try:
        check_target_value("config.target.value", records.Target(**target.to_dict()))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def check_devices(config: ConfigDict, data_devices: int) -> None:
    """Checks that `data_devices` devices can share a batch evenly, and that each keeps whole
    streams, or none."""
    share, group = config.batch_size // data_devices, config.model.ghost_batch_size
    stores = config.echo.insertion != "none" and config.echo.placement == "device"
    split = stores and config.echo.streams % data_devices != 0
    ghosts = group > 0 and share % group != 0
    allowed = f"a multiple of {data_devices} devices, or fewer of them (config.mesh.data)"
    rules = [
        ("batch_size", config.batch_size % data_devices != 0, allowed),
        ("echo.streams", split, f"with echo.placement=device {allowed}"),
        ("model.ghost_batch_size", ghosts, f"a divisor of the {share} examples of a device"),
    ]
    _refuse(config, rules)


def held_streams(config: ConfigDict, held_rows: range) -> range:
    """The streams that fill the rows of each batch that this process holds."""
    rows, held = config.batch_size // config.echo.streams, len(held_rows)
    auto = config.echo.policy == "auto" and jax.process_count() > 1
    split = held_rows.start % rows != 0 or held % rows != 0
    rules = [
        ("echo.policy", auto, "'fixed' in several processes, which would have to decide alike"),
        ("echo.streams", split, f"a multiple of the {config.batch_size // held} processes"),
    ]
    _refuse(config, rules)
    return range(held_rows.start // rows, held_rows.stop // rows)


def check_processes(
    config: ConfigDict, info: DatasetInfo, examples: Mapping[str, int] | None = None
) -> None:
    """Checks that the processes of this run have the same configuration and data; else they would
    wait for one another forever, or mix different orders of the examples.

    Args:
        examples: the number of examples by split.
    """
    names = [field.name for field in base.FIELDS if field.name not in base.OF_A_MACHINE]
    values = {f"config.{name}": nested(config, name) for name in names}
    values |= {f"the data set's {name}": value for name, value in dataclasses.asdict(info).items()}
    values |= {f"the number of {split} examples": n for split, n in (examples or {}).items()}
    first, *others = processes.gather(values)
    for name in (name for other in others for name in first if other.get(name) != first[name]):
        raise ConfigError(f"{name} differs between the processes of this run; give all the same")
