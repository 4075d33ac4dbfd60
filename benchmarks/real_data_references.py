"""What simple models reach on the same data: a linear classifier, and token frequencies.

    TFDS_DATA_DIR=... python -m benchmarks.real_data_references

The linear classifier (logistic regression on standardized pixels, no augmentation) is fitted to the
training split of `cifar10_jpeg`. The unigram model predicts each token by its frequency in the
training split, plus one; it is judged on the validation tokens of the runs recorded here.
"""

import json
import pathlib

import numpy as np
from sklearn.linear_model import LogisticRegression

import workloads
from configs import base
from data.splits import open_data
from runs import cli

RECORDS = pathlib.Path(__file__).parents[1] / "results" / "real_data"


def recorded_config(name: str):
    """The configuration of a run that is recorded here."""
    config = base.get_config()
    fields = json.loads((RECORDS / name / "config.json").read_text())["config"]
    for field in base.FIELDS:
        value = fields
        for part in field.name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            cli.set_field(config, field.name, value, base.FIELDS)
    return config


def decoded(config, name: str):
    """All of the training and the validation split's arrays of one name."""
    source, held_out, info = open_data(config)
    workload = workloads.make(config, info)
    for split in (source, held_out):
        chunks = [range(i, min(i + 512, len(split))) for i in range(0, len(split), 512)]
        yield [workload.decode(split.__getitems__(list(chunk)))[name] for chunk in chunks], info


def linear_accuracy(name: str) -> float:
    config = recorded_config(name)
    images, labels = (
        [np.concatenate(x) for x, _ in decoded(config, k)] for k in ("image", "label")
    )
    pixels = [x.reshape(len(x), -1).astype(np.float32) for x in images]
    mean, std = pixels[0].mean(0), pixels[0].std(0)
    train, held_out = ((x - mean) / std for x in pixels)
    model = LogisticRegression(C=1e-3, max_iter=40).fit(train, labels[0])
    return model.score(held_out, labels[1])


def unigram_loss(name: str) -> float:
    """Cross-entropy a token in nats."""
    counts = []
    for chunks, info in decoded(recorded_config(name), "tokens"):
        predicted = np.concatenate([tokens[:, 1:].ravel() for tokens in chunks])
        counts.append(np.bincount(predicted[predicted > 0], minlength=info.vocabulary_size))
    train, held_out = counts
    probability = (train + 1) / (train + 1).sum()
    return float(-(held_out / held_out.sum() * np.log(probability)).sum())


if __name__ == "__main__":
    for name in ("lm_books", "lm_docs"):
        print(f"{name}: unigram cross-entropy {unigram_loss(name):.3f}")
    print(f"cifar10_jpeg: linear accuracy {linear_accuracy('cifar10_jpeg'):.3f}")
