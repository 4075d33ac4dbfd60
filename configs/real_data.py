"""Small studies on examples that are read only once: where to echo, and how often.

    python sweep.py --config=configs/real_data.py:photographs --study=insertion --outdir=DIR
    python sweep.py --config=configs/real_data.py:sentences --study=insertion --outdir=DIR
    python sweep.py --config=configs/real_data.py:sentences --study=factor --outdir=DIR

`photographs` is configs/cifar10.py with ResNet-8 of width 8 on `cifar10_jpeg`, CIFAR-10
recompressed as JPEG. `sentences` is configs/lm1b.py with a Transformer of two layers of 64 on
`lm_books`, English sentences with the features of `lm1b`. Both are read from $TFDS_DATA_DIR. The
budget is below one pass over the data, so that, unlike in the minis, every fresh example is new to
the network. Targets are what the default hyperparameters reach late in the budget, which is early
in training.
"""

import dataclasses

import ml_collections

from configs import catalog, cifar10, lm1b

# Buffers and search spaces are those of the minis.
PHOTOGRAPHS = dataclasses.replace(cifar10.MINI_NUMBERS, budget=20_000, trials=6, searches=2)
SENTENCES = dataclasses.replace(lm1b.MINI_NUMBERS, budget=10_000, trials=12, searches=3)


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The configuration; `variant` is 'photographs' or 'sentences'."""
    if variant == "photographs":
        config = cifar10.get_config()
        fields = {
            "dataset.name": "cifar10_jpeg",
            "dataset.validation_split": "train[45000:47000]",
            "dataset.test_split": "",
            "model.depth": 8,
            "model.width": 8,
            "batch_size": PHOTOGRAPHS.batch_size,
            "optimizer.schedule.final_factor": 0.1,
            "budget.fresh_examples": PHOTOGRAPHS.budget,
            "evaluate_every_fresh_examples": 1_000,
            "target.value": 0.4,
        }
    elif variant == "sentences":
        config = lm1b.get_config("mini")
        fields = {
            "dataset.name": "lm_books",
            "dataset.validation_split": "test[:25%]",
            "dataset.sequence_length": 32,
            "dataset.vocabulary_size": 1_000,
            "budget.fresh_examples": SENTENCES.budget,
            "evaluate_every_fresh_examples": 500,
            "target.value": 4.9,
        }
    else:
        raise ValueError(f"no variant {variant!r}; allowed: photographs, sentences")
    config.update_from_flattened_dict(fields)
    return config


def get_search_space(variant: str = ""):
    """The axes that a study searches for each condition."""
    return (cifar10 if variant == "photographs" else lm1b).get_search_space("mini")


def get_studies(variant: str = ""):
    """The studies whose results are in results/studies."""
    if variant == "photographs":
        return {"insertion": catalog.of(PHOTOGRAPHS)["insertion"]}
    studies = catalog.of(SENTENCES)
    return {name: studies[name] for name in ("insertion", "factor")}
