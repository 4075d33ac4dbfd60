"""Validation curves of the runs in results/real_data, and reference values of simple models.

    python -m benchmarks.real_data_curves --out=results/real_data/curves.png
    TFDS_DATA_DIR=... python -m benchmarks.real_data_curves --references

The curves come from the stored records. The references are a linear classifier (logistic regression
on standardized pixels, no augmentation), fitted to the training split of `cifar10_jpeg`, and a
unigram model, which predicts each token by its add-one-smoothed frequency in the training split.
Both are evaluated on the validation split of the stored run.
"""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from sklearn.linear_model import LogisticRegression

import workloads
from benchmarks import common
from configs import base
from data import splits
from runs import records

RECORDS = pathlib.Path(__file__).parents[1] / "results" / "real_data"

# name: (metric, its label, a reference value, the label of the reference)
CURVES = {
    "cifar10_jpeg": ("accuracy", "accuracy", 0.412, "linear"),
    "imagenet_tiny50": ("accuracy", "accuracy", 0.02, "chance"),
    "bccd": ("AP50", "AP at IoU 0.5", None, ""),
    "coco_mini": ("loss", "multibox loss", None, ""),
    "lm_books": ("loss", "cross-entropy per token", 6.23, "unigram"),
    "lm_docs": ("loss", "cross-entropy per token", 6.32, "unigram"),
}


def draw(axes: Any, name: str) -> None:
    """The validation curve of one run, with its reference as a dotted line."""
    metric, label, reference, reference_label = CURVES[name]
    lines = [r for r in records.read_metrics(RECORDS / name) if r["split"] == "validation"]
    fresh = [r["fresh_examples"] / 1000 for r in lines]
    axes.plot(fresh, [r[metric] for r in lines], "o-", markersize=3, color="C0")
    if reference is not None:
        axes.axhline(reference, color="0.5", linewidth=0.8, linestyle=":")
        axes.annotate(
            reference_label,
            (fresh[-1], reference),
            (0, 3),
            textcoords="offset points",
            ha="right",
            color="0.4",
            fontsize=8,
        )
    axes.set(xlabel="fresh examples, in thousands", ylabel=label, xlim=(0, None))


def stored_config(name: str) -> ConfigDict:
    """The configuration of a stored run."""
    stored = json.loads((RECORDS / name / "config.json").read_text())["config"]
    fields = {}
    for field in base.FIELDS:
        value = stored
        for part in field.name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            fields[field.name] = value
    return common.overridden(base.get_config(), fields)


def decoded_splits(config: ConfigDict, name: str) -> Iterator[tuple[list[Any], Any]]:
    """(chunks of the decoded array `name`, dataset info) of the training and validation splits."""
    source, held_out, info = splits.open_data(config)
    workload = workloads.make(config, info)
    for split in (source, held_out):
        chunks = [range(i, min(i + 512, len(split))) for i in range(0, len(split), 512)]
        yield [workload.decode(split.__getitems__(list(chunk)))[name] for chunk in chunks], info


def linear_accuracy(name: str) -> float:
    config = stored_config(name)
    images, labels = (
        [np.concatenate(chunks) for chunks, _ in decoded_splits(config, array)]
        for array in ("image", "label")
    )
    pixels = [x.reshape(len(x), -1).astype(np.float32) for x in images]
    mean, std = pixels[0].mean(0), pixels[0].std(0)
    train, held_out = ((x - mean) / std for x in pixels)
    model = LogisticRegression(C=1e-3, max_iter=40).fit(train, labels[0])
    return float(model.score(held_out, labels[1]))


def unigram_loss(name: str) -> float:
    """Cross-entropy per token in nats."""
    counts = []
    for chunks, info in decoded_splits(stored_config(name), "tokens"):
        targets = np.concatenate([tokens[:, 1:].ravel() for tokens in chunks])
        counts.append(np.bincount(targets[targets > 0], minlength=info.vocabulary_size))
    train, held_out = counts
    probability = (train + 1) / (train + 1).sum()
    return float(-(held_out / held_out.sum() * np.log(probability)).sum())


def main(argv: list[str] | None = None) -> None:
    parser = common.bare_parser(__spec__.name, __doc__)
    parser.add_argument("--out", type=common.page, metavar="FILE", help="draw the curves")
    parser.add_argument("--references", action="store_true", help="print the reference values")
    options = parser.parse_args(argv)
    if not (options.out or options.references):
        parser.error("nothing to do; give --out=FILE, --references, or both")
    if options.out:
        figure = common.drawn_panels({name: name for name in CURVES}, draw, rows=2)
        common.save_figure(figure, options.out)
    if options.references:
        for name in ("lm_books", "lm_docs"):
            print(f"{name}: unigram cross-entropy {unigram_loss(name):.3f}")
        print(f"cifar10_jpeg: linear accuracy {linear_accuracy('cifar10_jpeg'):.3f}")


if __name__ == "__main__":
    common.command(main)
