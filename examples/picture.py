"""The picture of README.md: loss over seconds behind a slow loader, without and with echoing.

    python -m examples.picture --out=results/loss_over_seconds    four minutes

A ResNet-8 on scikit-learn's digits, with a loader that delivers 100 examples per second. Each batch
of 32 takes 320 ms to arrive, many times the step. Both sides read 3,200 fresh examples, with the
same hyperparameters and the three same seeds; echoing emits each four times. Writes OUT.csv, with a
row per evaluation, and OUT.png.
"""

import argparse
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

from matplotlib.figure import Figure

COMMAND = [sys.executable, "train.py", "--config=configs/cifar10.py:mini"]
FIELDS = {
    "upstream.examples_per_second": 100,
    "budget.fresh_examples": 3_200,
    "evaluate_every_fresh_examples": 160,
    "optimizer.learning_rate": 0.03,
    "target.value": 1.01,  # out of reach, so each run uses its budget
}
ECHO = {"echo.insertion": "before_augmentation", "echo.factor": 4, "echo.shuffle_buffer": 256}
SIDES = {"without echo": {}, "with echo, e = 4": ECHO}
COLORS = {"without echo": "#888888", "with echo, e = 4": "#0072b2"}


def record(writer):
    """Trains each side with each seed, and writes a row (side, seed, seconds, loss) per
    evaluation."""
    for seed in range(3):
        for side, echo in SIDES.items():
            fields = FIELDS | echo | {"seed.data": seed, "seed.model": seed}
            flags = [f"--config.{name}={value}" for name, value in fields.items()]
            with tempfile.TemporaryDirectory() as directory:
                subprocess.run([*COMMAND, *flags, f"--workdir={directory}/run"], check=True)
                lines = pathlib.Path(directory, "run", "metrics.jsonl").read_text().splitlines()
            for row in map(json.loads, lines):
                if row["split"] == "validation":
                    writer.writerow([side, seed, f"{row['train_seconds']:.2f}", row["loss"]])


def draw(rows, path):
    figure = Figure(figsize=(6.5, 3), layout="constrained")
    axes = figure.subplots()
    for side, color in COLORS.items():
        for seed in "012":
            points = [
                (float(seconds), float(loss))
                for name, number, seconds, loss in rows
                if (name, number) == (side, seed)
            ]
            axes.plot(*zip(*points, strict=True), color=color, label=side if seed == "0" else None)
    axes.set(xlabel="seconds of training", ylabel="validation loss", xlim=(0, None), ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    if not (table := out.with_suffix(".csv")).exists():
        with table.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["side", "seed", "seconds", "loss"])
            record(writer)
    with table.open(newline="") as file:
        _, *rows = csv.reader(file)
    draw(rows, out.with_suffix(".png"))


if __name__ == "__main__":
    main()
