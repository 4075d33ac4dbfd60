"""Where and how often to echo on examples that are read once: small studies for two cores.

    python sweep.py --config=configs/real_data.py:photographs --study=insertion --outdir=DIR
    python sweep.py --config=configs/real_data.py:sentences --study=insertion --outdir=DIR
    python sweep.py --config=configs/real_data.py:sentences --study=factor --outdir=DIR

`photographs` is configs/cifar10.py with ResNet-8 of width 8 on `cifar10_jpeg`, CIFAR-10
recompressed as JPEG. `sentences` is configs/lm1b.py with a Transformer of two layers of 64 on
`lm_books`, English sentences with the features of `lm1b`. Both are looked for in
$TFDS_DATA_DIR. A budget is less than one pass over the data, so that, unlike in the minis, what is
fresh has never been seen. Targets are what the default hyperparameters reach late in it, which is
early in training.
"""

import dataclasses

from configs import catalog, cifar10, lm1b

# Buffers and search spaces are those of the minis.
PHOTOGRAPHS = dataclasses.replace(cifar10.MINI_NUMBERS, budget=20_000, trials=6, searches=2)
SENTENCES = dataclasses.replace(lm1b.MINI_NUMBERS, budget=10_000, trials=12, searches=3)


def get_config(variant: str = ""):
    """The configuration; `variant` is 'photographs' or 'sentences'."""
    if variant == "photographs":
        config = cifar10.get_config()
        config.dataset.name = "cifar10_jpeg"
        config.dataset.validation_split = "train[45000:47000]"
        config.dataset.test_split = ""
        config.model.depth = 8
        config.model.width = 8
        config.batch_size = PHOTOGRAPHS.batch_size
        config.optimizer.schedule.final_factor = 0.1
        config.budget.fresh_examples = PHOTOGRAPHS.budget
        config.evaluate_every_fresh_examples = 1_000
        config.target.value = 0.4
    elif variant == "sentences":
        config = lm1b.get_config("mini")
        config.dataset.name = "lm_books"
        config.dataset.validation_split = "test[:25%]"
        config.dataset.sequence_length = 32
        config.dataset.vocabulary_size = 1_000
        config.budget.fresh_examples = SENTENCES.budget
        config.evaluate_every_fresh_examples = 500
        config.target.value = 4.9
    else:
        raise ValueError(f"no variant {variant!r}; allowed: photographs, sentences")
    return config


def get_search_space(variant: str = ""):
    """The axes that a study searches for each condition."""
    return (cifar10 if variant == "photographs" else lm1b).get_search_space("mini")


def get_studies(variant: str = ""):
    """The studies that were run of each."""
    if variant == "photographs":
        return {"insertion": catalog.of(PHOTOGRAPHS)["insertion"]}
    of_sentences = catalog.of(SENTENCES)
    return {"insertion": of_sentences["insertion"], "factor": of_sentences["factor"]}
