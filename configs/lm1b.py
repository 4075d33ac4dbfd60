"""A base-size Transformer on LM1B's sentences, and its mini on sentences of Python's own manual."""

from configs import base

SEARCH_SPACE = (
    {"field": "optimizer.learning_rate", "scale": "log", "min": 0.01, "max": 10.0},
    {"field": "optimizer.momentum", "scale": "log_one_minus", "min": 0.001, "max": 0.3},
)

MINI_SEARCH_SPACE = (
    {"field": "optimizer.learning_rate", "scale": "log", "min": 0.01, "max": 1.0},
    {"field": "optimizer.momentum", "scale": "log_one_minus", "min": 0.02, "max": 0.3},
)


def get_config(variant: str = ""):
    """The configuration; `variant` is '' or 'mini'."""
    config = base.get_config()
    config.workload = "lm1b"
    config.dataset.name = "lm1b"
    config.dataset.text = "sentences"
    config.dataset.sequence_length = 64
    config.dataset.vocabulary_size = 32_000
    config.dataset.train_split = "train"
    config.dataset.validation_split = "test[:20%]"
    config.dataset.test_split = "test[20%:]"
    config.batch_size = 1024
    config.optimizer.learning_rate = 0.1
    config.optimizer.schedule.name = "constant"
    config.budget.fresh_examples = 30_000_000
    config.evaluate_every_fresh_examples = 250_000
    config.checkpoint_every_fresh_examples = 2_500_000
    config.target.metric = "loss"
    config.target.value = 3.9
    config.target.mode = "below"
    if variant == "mini":
        config.dataset.name = "python_topics"
        config.dataset.validation_split = "validation"
        config.dataset.test_split = ""
        config.dataset.vocabulary_size = 512
        config.dataset.sequence_length = 64
        config.model.layers = 2
        config.model.dim = 64
        config.model.heads = 4
        config.model.mlp_dim = 256
        config.batch_size = 32
        config.budget.fresh_examples = 32_000
        config.evaluate_every_fresh_examples = 2_000
        config.checkpoint_every_fresh_examples = 8_000
        config.target.value = 3.5
    elif variant:
        raise ValueError(f"configs/lm1b.py has no variant {variant!r}; allowed: mini, or none")
    return config
