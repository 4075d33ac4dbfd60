"""Every field of a configuration: its name, its default, and what it means in which unit.

The workload files beside this one start from these defaults. A field that is not listed here does
not exist; `python train.py --help` prints this table.
"""

import ml_collections

FIELDS = (
    ("workload", "cifar10", "what is trained: a name in workloads/ (cifar10, coco)"),
    ("dataset.name", "cifar10", "TFDS name, or digits | digit_scenes (need no download)"),
    ("dataset.data_dir", "", "where TFDS data lies; '' = $TFDS_DATA_DIR, ~/tensorflow_datasets"),
    ("dataset.train_split", "train", "split that is trained on, in TFDS's notation (train[:90%])"),
    ("dataset.validation_split", "test", "split that targets and searches look at"),
    ("dataset.test_split", "", "split for a finished run's best checkpoint; '' = there is none"),
    ("augmentation.pad", 4, "pixels of zero padding around an image before the random crop"),
    ("augmentation.flip", True, "whether images are mirrored at random"),
    ("dataset.max_boxes", 100, "detection: boxes an image has at most; each is padded to as many"),
    (
        "augmentation.canvas_size",
        0,
        "detection: rows and columns that photographs are decoded to, ahead of the random crop; "
        "0 = model.image_size (small crops blur, a buffered example takes less memory)",
    ),
    (
        "augmentation.crop_min_scale",
        1.0,
        "detection: shortest side of a random crop, as a share of the image's; 1 = no crop",
    ),
    (
        "augmentation.colour",
        0.0,
        "detection: strength of random brightness, contrast, saturation and hue; 0 = none",
    ),
    ("model.image_size", 300, "detection: rows and columns of the images that the network takes"),
    ("model.ghost_batch_size", 0, "examples that are normalized together; 0 = the whole batch"),
    ("model.depth", 32, "layers of the ResNet: 6n + 2; of SSD's backbone: 34 | 18"),
    ("model.width", 16, "channels of the ResNet's first stage"),
    ("dtype", "float32", "of activations: float32 | bfloat16; parameters stay float32"),
    ("optimizer.name", "nesterov", "nesterov | momentum (heavy ball)"),
    ("optimizer.learning_rate", 0.1, "peak learning rate"),
    ("optimizer.momentum", 0.9, "in [0, 1)"),
    ("optimizer.weight_decay", 0.0, "L2 penalty's factor on kernels (not on norms and biases)"),
    (
        "optimizer.schedule.name",
        "linear",
        "linear (decays, then stays) | two_steps (two sudden decays) | constant",
    ),
    (
        "optimizer.schedule.warmup_progress",
        0.0,
        "any: share of the run in which the learning rate rises from 0; 0 = no warm-up",
    ),
    ("optimizer.schedule.first_decay_progress", 0.7, "two_steps: share of the run before the first"),
    ("optimizer.schedule.second_decay_progress", 0.9, "two_steps: the same for the second"),
    ("optimizer.schedule.decay_factor", 0.1, "two_steps: learning rate after / before each, [0, 1]"),
    ("optimizer.schedule.final_factor", 0.0, "linear: last learning rate / peak, in [0, 1]"),
    (
        "optimizer.schedule.decay_progress",
        1.0,
        "linear: share of the run after which it gets there",
    ),
    ("batch_size", 128, "examples a step, over all devices and processes"),
    ("budget.fresh_examples", 0, "fresh examples after which the input ends; at least one batch"),
    ("evaluate_every_fresh_examples", 0, "fresh examples between evaluations; 0 = only at the end"),
    (
        "checkpoint_every_fresh_examples",
        0,
        "fresh examples between checkpoints (the best is kept too); 0 = only when told to stop",
    ),
    ("log_every_steps", 100, "steps between training records"),
    ("target.metric", "accuracy", "a metric that the workload's evaluation reports"),
    ("target.value", 0.91, "the run stops when the validation metric gets here"),
    ("target.mode", "above", "above | below: on which side of the value the goal lies"),
    (
        "echo.insertion",
        "none",
        "slot that echoing fills: none | before_augmentation | after_augmentation | after_batching",
    ),
    ("echo.policy", "fixed", "fixed: every fresh item is repeated by the factor"),
    ("echo.factor", 1.0, "echoing factor e >= 1: showings a fresh item, fractions allowed"),
    ("echo.shuffle_buffer", 0, "slots of the shuffle buffer: examples, after batching batches"),
    ("echo.placement", "host", "host: repeated items are kept in host memory"),
    ("echo.streams", 1, "independent sub-streams; any divisor can be the number of devices"),
    ("augment_on", "host", "host (in the input pipeline) | device (in the compiled step)"),
    ("prefetch", 2, "batches made ready ahead of the step; 0 = none"),
    ("mesh.data", 0, "devices that share a batch; 0 = all that there are"),
    ("mesh.model", 1, "devices that share a layer"),
    ("seed.data", 0, "order of examples, augmentation, shuffle buffer: one a search"),
    ("seed.model", 0, "initial parameters: one a trial"),
)

# What may differ between a run and its resumption: it cannot change the numbers.
MAY_CHANGE_ON_RESUME = (
    "dataset.data_dir",
    "log_every_steps",
    "prefetch",
    "mesh.data",
    "mesh.model",
)


def get_config() -> ml_collections.ConfigDict:
    """All fields at their defaults; locked, so that a misspelt field is an error."""
    config = ml_collections.ConfigDict()
    for name, default, _ in FIELDS:
        *parents, leaf = name.split(".")
        node = config
        for parent in parents:
            if parent not in node:
                node[parent] = ml_collections.ConfigDict()
            node = node[parent]
        node[leaf] = default
    return config.lock()
