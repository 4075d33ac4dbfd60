"""Draws the validation curves of the runs recorded here: python -m benchmarks.real_data_curves"""

import pathlib

from matplotlib.figure import Figure

from runs import records

RECORDS = pathlib.Path(__file__).parents[1] / "results" / "real_data"

# name: (metric, how it is called, a level to compare it with, what that is)
CURVES = {
    "cifar10_jpeg": ("accuracy", "accuracy", 0.412, "linear"),
    "imagenet_tiny50": ("accuracy", "accuracy", 0.02, "chance"),
    "bccd": ("AP50", "AP at IoU 0.5", None, ""),
    "coco_mini": ("loss", "multibox loss", None, ""),
    "lm_books": ("loss", "cross-entropy per token", 6.23, "unigram"),
    "lm_docs": ("loss", "cross-entropy per token", 6.32, "unigram"),
}


def main() -> None:
    figure = Figure(figsize=(9, 5), layout="constrained")
    for axes, (name, curve) in zip(figure.subplots(2, 3).flat, CURVES.items(), strict=True):
        metric, label, level, what = curve
        lines = [r for r in records.read_metrics(RECORDS / name) if r["split"] == "validation"]
        fresh = [r["fresh_examples"] / 1000 for r in lines]
        axes.plot(fresh, [r[metric] for r in lines], "o-", markersize=3, color="C0")
        if level is not None:
            axes.axhline(level, color="0.5", linewidth=0.8, linestyle=":")
            axes.annotate(
                what,
                (fresh[-1], level),
                (0, 3),
                textcoords="offset points",
                ha="right",
                color="0.4",
                fontsize=8,
            )
        axes.set_title(name, fontsize=10)
        axes.set(ylabel=label, xlim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
    for axes in figure.axes[3:]:
        axes.set_xlabel("fresh examples, in thousands")
    figure.savefig(RECORDS / "curves.png", dpi=120)


if __name__ == "__main__":
    main()
