"""A small study of how often to echo, on sentences that are read only once.

    python sweep.py --config=configs/real_data.py:sentences --study=factor --outdir=DIR

`sentences` is configs/lm1b.py with a Transformer of two layers of 64 on `lm_books`, English
sentences with the features of `lm1b`, which are read from $TFDS_DATA_DIR. The budget is below one
pass over the data, so that, unlike in the mini, every fresh example is new to the network. The
target is what the default hyperparameters reach late in the budget, which is early in training.
"""

import dataclasses

import ml_collections

from configs import base, catalog, lm1b

# Buffers and search space are those of the mini.
SENTENCES = dataclasses.replace(lm1b.MINI_NUMBERS, budget=10_000, trials=12, searches=3)


FIELDS = lm1b.MINI_FIELDS | {
    "dataset.name": "lm_books",
    "dataset.validation_split": "test[:25%]",
    "dataset.sequence_length": 32,
    "dataset.vocabulary_size": 1_000,
    "budget.fresh_examples": SENTENCES.budget,
    "evaluate_every_fresh_examples": 500,
    "target.value": 4.9,
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The configuration; `variant` is 'sentences'."""
    return base.get_config(base.choose({"sentences": FIELDS}, variant))


def get_search_space(variant: str = ""):
    """The axes that the study searches for each condition."""
    return lm1b.MINI_SEARCH_SPACE


def get_studies(variant: str = ""):
    """The study whose results are in results/studies/sentences_factor."""
    return {"factor": catalog.of(SENTENCES)["factor"]}
