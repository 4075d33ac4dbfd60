"""A base-size Transformer on LM1B, one sentence per example, and its mini on the Python manual.

    python train.py --config=configs/lm1b.py --workdir=DIR            (LM1B prepared by TFDS)
    python train.py --config=configs/lm1b.py:mini --workdir=DIR       (no download, one minute)
    python sweep.py --config=configs/lm1b.py --study=factor --outdir=DIR

From the paper: Transformer, batch size 1024 (also 4096: --config.batch_size=4096), Nesterov
momentum, constant learning rate, no augmentation. From memory, not verified: the base size (6
layers of 512, 8 heads, 2048) and the target, a cross-entropy of 3.9 nats per token, which depends
on the vocabulary. Our choice: 32,000 unigram pieces, 64 tokens per example (longer sentences are
truncated; loss and metrics ignore padding), learning rate and momentum, a budget of one pass over
the 30 million sentences, 20% of the held-out sentences for validation, the search ranges, and the
shuffle buffers. There is no clipping, weight decay, or dropout.

Without augmentation, echo.insertion=before_augmentation and after_augmentation give the same
batches; studies use the first. Full size (35 million parameters) has not been run here;
docs/scaling.md has its cost. The vocabulary is trained once and cached next to the data.

The mini has 512 pieces and 2 layers of 64. Its validation split has a unigram entropy of 5.0 nats.
It reaches the target of 3.65 after about half its budget; much longer runs overfit the 2,180
sentences.
"""

import functools

from configs import base, catalog

SEARCH_SPACE = {"learning_rate": (0.003, 3.0), "one_minus_momentum": (0.001, 0.3)}
MINI_SEARCH_SPACE = {"learning_rate": (0.03, 1.0), "one_minus_momentum": (0.03, 0.3)}

NUMBERS = catalog.Numbers(
    batch_sizes=(1024, 4096),
    buffer=100_000,
    buffers=(0, 10_000, 100_000, 1_000_000),
    upstream=500,
    budget=30_000_000,
    never=0.0,
    trials=100,
    searches=5,
    augments=False,
    decays=False,
    overrides={},
)

MINI_NUMBERS = catalog.Numbers(
    batch_sizes=(32, 64, 16),
    upstream=100,
    budget=16_000,
    never=0.0,
    demo={"trials": 4, "searches": 2},
    augments=False,
    decays=False,
)

FIELDS = {
    "workload": "lm1b",
    "dataset.name": "lm1b",
    "dataset.text": "sentences",
    "dataset.sequence_length": 64,
    "dataset.train_split": "train",
    "dataset.validation_split": "test[:20%]",
    "dataset.test_split": "test[20%:]",
    "batch_size": 1024,
    "optimizer.learning_rate": 0.1,
    "optimizer.schedule.name": "constant",
    "budget.fresh_examples": NUMBERS.budget,
    "evaluate_every_fresh_examples": 250_000,
    "checkpoint_every_fresh_examples": 2_500_000,
    "target.metric": "loss",
    "target.value": 3.9,
    "target.mode": "below",
}
MINI_FIELDS = FIELDS | {
    "dataset.name": "python_topics",
    "dataset.validation_split": "validation",
    "dataset.test_split": "",
    "dataset.vocabulary_size": 512,
    "model.layers": 2,
    "model.dim": 64,
    "model.heads": 4,
    "model.mlp_dim": 256,
    "batch_size": 32,
    "optimizer.learning_rate": 0.3,
    "budget.fresh_examples": MINI_NUMBERS.budget,
    "evaluate_every_fresh_examples": 320,
    "checkpoint_every_fresh_examples": 4_000,
    "target.value": 3.65,
}

SEARCHES = {"": (SEARCH_SPACE, NUMBERS), "mini": (MINI_SEARCH_SPACE, MINI_NUMBERS)}

get_config = functools.partial(base.get_variant, {"": FIELDS, "mini": MINI_FIELDS})
get_search_space = functools.partial(catalog.get_search_space, SEARCHES)
get_studies = functools.partial(catalog.get_studies, SEARCHES)
