"""A base-size Transformer on Common Crawl (C4), one window of a document an example, and its mini.

    python train.py --config=configs/common_crawl.py --workdir=DIR       (c4/en prepared by TFDS)
    python train.py --config=configs/common_crawl.py:mini --workdir=DIR  (no download, 1-2 minutes)
    python sweep.py --config=configs/common_crawl.py --study=demo --outdir=DIR

From the study: Transformer, batch size 1024, Nesterov momentum, constant learning rate, no
augmentation. Recalled, not verified: the base size and the target, a cross-entropy of 3.9 nats a
token. Our choice, since the study does not say: C4's English part for "Common Crawl", windows of
256 tokens (each token of a document is predicted once, its first windows' context is not carried
over; the rest of the last window is padding, in neither loss nor metric), 32,000 unigram pieces,
learning rate and momentum, a budget of 30 million windows, the search ranges, shuffle buffers.

4 % of C4 are trained on, about 15 million documents and 30 million windows, so the budget is one
pass. Which window is example i takes every document's length in tokens; they are counted once and
kept beside the data, in about 26 core-minutes for 4 % and 11 core-hours for all of C4, 4 bytes a
document. `--config.dataset.text=sentences` takes only each document's first window instead: no
counting, at any size.

Insertions, hardware and vocabulary are as in configs/lm1b.py. It has not been run at full size.

Mini: documents made of the docstrings of the standard library's modules, windows of 64, 512 pieces,
2 layers of 64. The validation split's unigram entropy is 5.0 nats; the target of 4.0 is reached
after about half the budget.
"""

from configs import base, studies

# Searched anew for every echoing condition. `log_one_minus` spaces 1 - value evenly in log.
SEARCH_SPACE = (
    {"field": "optimizer.learning_rate", "scale": "log", "min": 0.003, "max": 3.0},
    {"field": "optimizer.momentum", "scale": "log_one_minus", "min": 0.001, "max": 0.3},
)

MINI_SEARCH_SPACE = (
    {"field": "optimizer.learning_rate", "scale": "log", "min": 0.03, "max": 1.0},
    {"field": "optimizer.momentum", "scale": "log_one_minus", "min": 0.03, "max": 0.3},
)


# What the studies take from this workload, see configs/studies.py.
NUMBERS = studies.Numbers(
    batch_sizes=(1024, 4096),
    buffer=100_000,
    buffers=(0, 10_000, 100_000, 1_000_000),
    upstream=500,
    budget=30_000_000,
    never=0.0,
    trials=100,
    searches=5,
    demo=(100, 5),
    augments=False,
)

MINI_NUMBERS = studies.Numbers(
    batch_sizes=(32, 64, 16),
    buffer=256,
    buffers=(0, 64, 256, 1024),
    upstream=100,
    budget=16_000,
    never=0.0,
    trials=16,
    searches=3,
    demo=(4, 2),
    augments=False,
    overrides={"checkpoint_every_fresh_examples": 0},  # trials of a minute start anew
)


def get_config(variant: str = ""):
    """The configuration; `variant` is '' or 'mini'."""
    config = base.get_config()
    config.workload = "common_crawl"
    config.dataset.name = "c4/en"
    config.dataset.text = "documents"
    config.dataset.sequence_length = 256
    config.dataset.train_split = "train[:4%]"
    config.dataset.validation_split = "validation[:10%]"
    config.dataset.test_split = "validation[10%:20%]"
    config.batch_size = 1024
    config.optimizer.learning_rate = 0.1
    config.optimizer.schedule.name = "constant"
    config.budget.fresh_examples = NUMBERS.budget
    config.evaluate_every_fresh_examples = 250_000
    config.checkpoint_every_fresh_examples = 2_500_000
    config.target.metric = "loss"
    config.target.value = 3.9
    config.target.mode = "below"
    if variant == "mini":
        config.dataset.name = "python_docstrings"
        config.dataset.train_split = "train"
        config.dataset.validation_split = "validation"
        config.dataset.test_split = ""
        config.dataset.sequence_length = 64
        config.dataset.vocabulary_size = 512
        config.model.layers = 2
        config.model.dim = 64
        config.model.heads = 4
        config.model.mlp_dim = 256
        config.batch_size = 32
        config.optimizer.learning_rate = 0.3
        config.budget.fresh_examples = MINI_NUMBERS.budget
        config.evaluate_every_fresh_examples = 1_000
        config.checkpoint_every_fresh_examples = 4_000
        config.target.value = 4.0
    elif variant:
        raise ValueError(
            f"configs/common_crawl.py has no variant {variant!r}; allowed: mini, or none"
        )
    return config


def get_search_space(variant: str = ""):
    """The axes that a study searches for each condition."""
    return MINI_SEARCH_SPACE if variant == "mini" else SEARCH_SPACE


def get_studies(variant: str = ""):
    """Studies by name."""
    return studies.of(MINI_NUMBERS if variant == "mini" else NUMBERS)
