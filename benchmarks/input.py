"""Photographs as input: JPEGs per second beside tf.data and PyTorch, and training on them.

    python -m benchmarks.input --out=results/input.md     about 5 minutes
    python -m benchmarks.input --train                    ResNet-50 that waits for JPEGs; a GPU
    python -m benchmarks.input --train --quick            a smoke run
    python -m benchmarks.input --simulate                 `auto` on a simulated machine; 3 minutes
    taskset -c 0-3 python -m benchmarks.input --train     on fewer cores

Files of 640 x 480 pixels are made from scikit-learn's two photographs. All sides read them from the
operating system's memory, take random crops of the same distribution, resize them bilinearly to
224 x 224, mirror half of them, and return batches of 64 uint8 images, with one worker per core.
tf.data uses `decode_and_crop_jpeg`, the PyTorch DataLoader crops with Pillow in worker processes.
Sides whose packages are not installed are left out. "decoding alone" decodes whole images in one
thread per core and discards them. On a busy machine, CPU time per image is more reliable than
images per second, and its ratio to that of decoding alone in the same round more than either.

With `--train`, nothing slows the input but its own work. "a batch in memory" repeats each batch 64
times, so that it reads almost nothing. Before augmentation, whole canvases are decoded; elsewhere
only the crops are kept (`dataset.fused_decode`). Steps per second are not time to a target: a
repeated example is worth less than a fresh one.

With `--simulate`, the real pipeline reads with 16 threads whose decoder only sleeps, so long that
input is R times slower than a device whose step takes 40 ms. Examples are small: on a real machine,
the threads that read would send large ones.
"""

import concurrent.futures
import dataclasses
import importlib.util
import io
import itertools
import math
import multiprocessing
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import common, speedup
from benchmarks.speedup import Condition, Steady
from configs import catalog, imagenet
from data.sources import ArraySource
from echo.threads import usable_cores
from pipeline import build, map_datasets
from pipeline.streams import FixedPolicy
from training import auto_policy, sharding
from training.experiment import make_experiment
from training.transfer import Transfer
from workloads import decoding

BATCH = 64
PIXELS = 224
CLASSES = 10
FACTOR = 4  # with --train
PACKAGES = ("jax", "grain", "simplejpeg", "opencv-python-headless", "tensorflow-cpu", "torch")
DECODING, TF_DATA = "decoding alone", "tf.data, decode_and_crop_jpeg"
STORED, NONE = "a batch in memory", "no echoing"
_AHEAD = 8  # batches that a side may have read ahead


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured."""

    size: str = "full"  # of the network and the files
    files: int = 1024
    batch_size: int = 256  # of training
    steps: int = 100  # per condition and round of training
    rounds: int = 3
    seconds: float = 1.5  # per side and round


QUICK = Plan(size="mini", files=80, batch_size=16, steps=30, rounds=1, seconds=0.2)


def made_photograph(number: int, width: int = 640) -> bytes:
    """A random crop of one of scikit-learn's photographs as a JPEG of quality 90, 4:3."""
    import simplejpeg
    from sklearn.datasets import load_sample_image

    rng = np.random.default_rng(number)
    photograph = load_sample_image(("china.jpg", "flower.jpg")[number % 2])  # 427 x 640
    share = rng.uniform(0.7, 1.0)
    high, wide = int(427 * share), int(569 * share)
    y, x = rng.integers(0, 427 - high + 1), rng.integers(0, 640 - wide + 1)
    crop = photograph[y : y + high, x : x + wide]
    crop = cv2.resize(crop, (width, width * 3 // 4), interpolation=cv2.INTER_CUBIC)
    return simplejpeg.encode_jpeg(crop, quality=90, colorsubsampling="420")


def write_files(plan: Plan, root: pathlib.Path) -> None:
    """Writes photographs to `root`/SPLIT/CLASS/NUMBER.jpg."""
    for number in range(plan.files + CLASSES):
        split = "train" if number < plan.files else "validation"
        path = root / split / f"{number % CLASSES}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made_photograph(number, 64 if plan.size == "mini" else 640))


def configuration(plan: Plan, data: str | pathlib.Path, fields: dict[str, Any]) -> ConfigDict:
    """The shipped configuration on the files in `data`, for a run that does not end by itself."""
    config = imagenet.get_config("mini" if plan.size == "mini" else "")
    config.dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    config.dataset.name = f"folder:{data}"
    config.dataset.train_split = "train"
    config.dataset.validation_split = "validation"
    config.dataset.test_split = ""
    config.batch_size = plan.batch_size
    config.budget.fresh_examples = 10**8
    config.checkpoint_every_fresh_examples = 0
    return common.overridden(config, fields)


# --- reading alone


def decoding_alone(files: list[bytes], cores: int) -> Iterator[np.ndarray]:
    """Decodes a batch at a time and yields empty images."""
    pool = concurrent.futures.ThreadPoolExecutor(cores)
    numbers = itertools.cycle(range(len(files)))

    def decode(share: list[int]) -> None:
        for number in share:
            decoding.decode(files[number], 3)

    while True:
        batch = [next(numbers) for _ in range(BATCH)]
        list(pool.map(decode, [batch[core::cores] for core in range(cores)]))
        yield np.empty((BATCH, 0, 0, 3), np.uint8)


def this_pipeline(data: pathlib.Path, **fields: Any) -> Iterator[np.ndarray]:
    """The pipeline of the ImageNet configuration, without echoing."""
    named = {name.replace("__", "."): value for name, value in fields.items()}
    config = configuration(Plan(batch_size=BATCH), data, named)
    return (batch.data["image"] for batch in make_experiment(config).batches)


def drawn_boxes(count: int, height: int, width: int) -> np.ndarray:
    """Crops as (y, x, height, width) [N, 4] of 8% to 100% of the area with aspect ratios from 3/4
    to 4/3, as in Szegedy et al. 2014."""
    rng, boxes = np.random.default_rng(0), []
    while len(boxes) < count:
        area = rng.uniform(0.08, 1.0) * height * width
        aspect = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        high, wide = round(np.sqrt(area / aspect)), round(np.sqrt(area * aspect))
        if high <= height and wide <= width:
            y, x = rng.integers(height - high + 1), rng.integers(width - wide + 1)
            boxes.append((y, x, high, wide))
    return np.array(boxes, np.int32)


def tf_data(files: list[bytes], boxes_Nx4: np.ndarray, cores: int) -> Iterator[np.ndarray]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    encoded, number_N = tf.constant(files), np.arange(len(boxes_Nx4)) % len(files)

    def decode(number, box):
        crop = tf.image.decode_and_crop_jpeg(encoded[number], box, channels=3)
        image = tf.image.resize(crop, (PIXELS, PIXELS), method="bilinear")
        return tf.cast(tf.round(tf.image.random_flip_left_right(image)), tf.uint8)

    data = tf.data.Dataset.from_tensor_slices((number_N, boxes_Nx4)).repeat()
    data = data.map(decode, num_parallel_calls=cores).batch(BATCH).prefetch(2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = cores
    return data.with_options(options).as_numpy_iterator()


class PillowCrops:
    """A map-style data set for torch's DataLoader that crops, resizes, and mirrors with Pillow."""

    def __init__(self, files: list[bytes], boxes_Nx4: np.ndarray):
        self._files, self._boxes_Nx4 = files, boxes_Nx4
        self._rng = np.random.default_rng()

    def __len__(self) -> int:
        return len(self._boxes_Nx4)

    def __getitem__(self, index: int) -> np.ndarray:
        from PIL import Image

        y, x, height, width = self._boxes_Nx4[index].tolist()
        file = io.BytesIO(self._files[index % len(self._files)])
        image = Image.open(file).convert("RGB").crop((x, y, x + width, y + height))
        image = image.resize((PIXELS, PIXELS), Image.Resampling.BILINEAR)
        if self._rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.array(image)  # PyTorch requires a writable array


def pytorch(files: list[bytes], boxes_Nx4: np.ndarray, cores: int) -> Iterator[np.ndarray]:
    import torch  # pyright: ignore[reportMissingImports]

    loader = torch.utils.data.DataLoader(
        PillowCrops(files, boxes_Nx4),
        batch_size=BATCH,
        num_workers=cores,
        persistent_workers=True,
        multiprocessing_context="spawn",  # forking a process with JAX's threads may hang
    )
    while True:
        yield from (images.numpy() for images in loader)


def make_sides(data: pathlib.Path, cores: int) -> dict[str, Iterator[np.ndarray]]:
    """Endless iterators of image batches, uint8 [B, 224, 224, 3], by side."""
    files = [path.read_bytes() for path in sorted((data / "train").rglob("*.jpg"))]
    boxes_Nx4 = drawn_boxes(64 * BATCH, *decoding.size(files[0]))
    sides = {
        DECODING: decoding_alone(files, cores),
        "echo, crop without a canvas": this_pipeline(data, dataset__fused_decode=True),
        "echo, canvas, augmented on the host": this_pipeline(data),
        "echo, the same with colors": this_pipeline(data, augmentation__color=True),
        "echo, canvas, for the device": this_pipeline(data, augment_on="device"),
    }
    if importlib.util.find_spec("tensorflow"):
        sides[TF_DATA] = tf_data(files, boxes_Nx4, cores)
    if importlib.util.find_spec("torch"):
        sides["PyTorch DataLoader, Pillow"] = pytorch(files, boxes_Nx4, cores)
    return sides


def measured(
    iterator: Iterator[np.ndarray], seconds: float, cpu_ms: list[float]
) -> Callable[[], float]:
    """A function that measures images per second and appends the milliseconds of CPU time per
    image to `cpu_ms`."""

    def images_per_second() -> float:
        wait_until_idle()
        cpu = cpu_seconds()
        for _ in range(_AHEAD):
            next(iterator)
        start = time.perf_counter()
        speed = common.rate(iterator, BATCH, seconds)
        images = _AHEAD * BATCH + speed * (time.perf_counter() - start)
        wait_until_idle()  # as many images are read ahead as at the start
        cpu_ms.append((cpu_seconds() - cpu) / images * 1e3)
        return speed

    return images_per_second


def wait_until_idle() -> None:
    """Waits until no side reads ahead any more, for up to 10 s."""
    for _ in range(100):
        before = cpu_seconds()
        time.sleep(0.1)
        if cpu_seconds() - before < 0.005:
            return


def cpu_seconds() -> float:
    """CPU time of this process and its worker processes (Linux)."""
    ticks = 0
    for child in multiprocessing.active_children():
        stat = pathlib.Path(f"/proc/{child.pid}/stat")
        if stat.exists():
            ticks += sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def reading_table(spreads: common.Spreads, cpu_ms: dict[str, list[float]]) -> str:
    """CPU milliseconds by side; the first round is the warm-up."""
    rows = []
    for name, spread in spreads.items():
        ratios = []
        for other in (DECODING, TF_DATA):
            ratios.append("-")
            if other in cpu_ms:
                by_round = np.divide(cpu_ms[name], cpu_ms[other])[1:]
                ratios[-1] = f"{np.median(by_round):.2f}"
        cpu = f"{statistics.median(cpu_ms[name][1:]):.2f}"
        rows.append([name, cpu, *ratios, f"{spread:,.0f}"])
    header = ["side", "CPU ms per image", "/ decoding alone", "/ tf.data", "images per second"]
    return common.markdown_table(header, rows)


def read(plan: Plan, data: pathlib.Path) -> str:
    sides = make_sides(data, usable_cores())
    cpu_ms: dict[str, list[float]] = {name: [] for name in sides}
    measures = {
        name: measured(iterator, plan.seconds, cpu_ms[name]) for name, iterator in sides.items()
    }
    return reading_table(common.interleaved(measures, plan.rounds), cpu_ms)


# --- training


def conditions(plan: Plan, data: str | pathlib.Path) -> list[Condition]:
    buffer, factor = 4 * plan.batch_size, float(FACTOR)
    crops = {"dataset.fused_decode": True}
    before = catalog.echo("before_augmentation", factor, buffer)
    on_device = {"augment_on": "device"}
    stored = {**on_device, "echo.placement": "device"}
    fields = {
        STORED: crops | catalog.echo("after_batching", 64.0, 0),
        NONE: crops,
        f"e = {FACTOR} after batching": crops | catalog.echo("after_batching", factor, 0),
        f"e = {FACTOR} after augmentation": crops
        | catalog.echo("after_augmentation", factor, buffer),
        f"e = {FACTOR} before augmentation": before,
        "... augmented on the device": before | on_device,
        "... stored and augmented on the device": before | stored,
        "auto, stored and augmented on the device": catalog.auto(16, 2 * buffer) | stored,
    }
    return [Condition(name, (configuration(plan, data, own),)) for name, own in fields.items()]


def training_table(plan: Plan, rounds: list[dict[str, Steady]]) -> str:
    rows = []
    for name in rounds[0]:
        images = [r[name].steps * plan.batch_size for r in rounds]
        fresh = [r[name].fresh_examples for r in rounds]
        shares, gains = ([r[name].steps / r[o].steps for r in rounds] for o in (STORED, NONE))
        speed, new, share, gain = (common.Spread(tuple(v)) for v in (images, fresh, shares, gains))
        rows.append(
            [
                name,
                f"{speed:,.0f}",
                f"{max(new.median, 0):,.0f}",
                f"{share.median:.2f}",
                f"{gain:.2f}",
            ]
        )
    header = ["", "images per second", "fresh ones", f"of {STORED}", f"times {NONE}"]
    return common.markdown_table(header, rows)


def train(plan: Plan, data: pathlib.Path) -> str:
    chosen, rounds = conditions(plan, data), []
    for number in range(plan.rounds):
        order = random.Random(number).sample(chosen, len(chosen))
        paces = {c.label: speedup.steady(c, 1, plan.steps, {}) for c in order}
        rounds.append({condition.label: paces[condition.label] for condition in chosen})
        common.progress(f"round {number + 1} of {plan.rounds}: {rounds[-1]}")
    return training_table(plan, rounds)


# --- a simulated machine

THREADS, STEP_SECONDS, RATIOS = 16, 0.040, (1.5, 2.5, 6.0)
READER, AUTO = "no echoing", "auto"
WARM_UP_SECONDS = 2.0


class Step:
    """The output of a step on the simulated device."""

    def __init__(self, end: float):
        self.end = end

    def is_ready(self) -> bool:
        return time.perf_counter() >= self.end

    def block_until_ready(self) -> "Step":
        time.sleep(max(0.0, self.end - time.perf_counter()))
        return self


@dataclasses.dataclass(frozen=True)
class Sleeping:
    """A workload whose decoder takes this time per example, and no processor."""

    seconds: float

    def decode(self, records: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        time.sleep(self.seconds * len(records))
        return {"label": np.asarray([record["label"] for record in records], np.int32)}


def simulated(plan: Plan, ratio: float, fields: dict[str, Any]) -> Steady:
    """Steps and fresh examples per second of a loop on the simulated machine."""
    stored = {"augment_on": "device", "echo.placement": "device"}
    config = configuration(plan, "anywhere", stored | fields)
    workload = Sleeping(ratio * THREADS * STEP_SECONDS / plan.batch_size)
    source = ArraySource(label=np.arange(10**6))
    held, mesh, policy = range(1), sharding.make_mesh(1, 1), None
    if config.echo.policy == "auto":
        policy = auto_policy.of_run(config)
    policy = policy or FixedPolicy(config, held)
    batches = iter(build.build(config, source, workload, held, policy))
    transfer = Transfer(mesh, stores=config.echo.insertion != "none")
    begin, end, seen, running = time.perf_counter() + WARM_UP_SECONDS, 0.0, [], []
    for number, batch in enumerate(batches, 1):
        jax.block_until_ready(transfer.put(batch))
        now = time.perf_counter()
        end = max(now, end) + STEP_SECONDS
        running.append({"loss": Step(end)})
        policy.dispatched(number, batch, running[-1])
        if len(running) > 1:
            policy.awaits(running[0])
            jax.block_until_ready(running.pop(0))
        if now > begin:
            seen.append((now, batch.fresh_examples))
        if now > begin + plan.seconds and len(seen) > 1:
            break
    batches.close()
    (start, first), (stop, last) = seen[0], seen[-1]
    return Steady((len(seen) - 1) / (stop - start), (last - first) / (stop - start))


def simulate(plan: Plan) -> str:
    """Shares of the device's and of the reader's time, by R and condition."""
    build.CORES = map_datasets.CORES = THREADS
    rows = []
    buffer = 4 * plan.batch_size
    for ratio in RATIOS:
        factor = math.ceil(ratio)
        best = f"e = {factor}, stored on the device"
        fields = {
            READER: {},
            best: catalog.echo("before_augmentation", float(factor), buffer),
            AUTO: catalog.auto(16, 2 * buffer),
        }
        rounds: list[dict[str, Steady]] = []
        for number in range(plan.rounds):
            order = random.Random(number).sample(list(fields), len(fields))
            rounds.append({name: simulated(plan, ratio, fields[name]) for name in order})
            common.progress(f"R = {ratio:g}: round {number + 1} of {plan.rounds}")
        for name in fields:
            busy = [r[name].steps * STEP_SECONDS for r in rounds]
            steps = [r[name].steps / r[best].steps for r in rounds]
            fresh = [r[name].fresh_examples / r[READER].fresh_examples for r in rounds]
            spreads = (common.Spread(tuple(values)) for values in (busy, steps, fresh))
            rows.append([f"{ratio:g}", name, *(f"{spread:.2f}" for spread in spreads)])
    header = ["R", "", "device busy", "steps, of the fixed factor's", "fresh, of no echoing's"]
    return common.markdown_table(header, rows)


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(
        __spec__.name,
        __doc__,
        Plan(),
        QUICK,
        files="distinct files",
        batch_size="images per batch of training",
        steps="steps per condition and round of training",
        rounds="number of rounds",
        seconds="seconds per side and round",
    )
    parser.add_argument("--train", action="store_true", help="train instead of only reading")
    parser.add_argument("--simulate", action="store_true", help="train on a simulated machine")
    options = parser.parse_args(argv)
    plan = common.plan(options, Plan(), QUICK)
    with tempfile.TemporaryDirectory() as directory:
        data = pathlib.Path(directory)
        if options.simulate:
            table = simulate(plan)
        else:
            write_files(plan, data)
            table = train(plan, data) if options.train else read(plan, data)
    flag = " --simulate" if options.simulate else " --train" * options.train
    text = [
        "# Photographs as input",
        f"Measured by `python -m benchmarks.input{flag}` on "
        f"{jax.devices()[0].device_kind}, {common.machine(PACKAGES)} Median (smallest to largest) "
        f"of {plan.rounds} rounds, {plan.files} files.",
        table,
    ]
    common.publish("\n\n".join(text), options.out)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
    os._exit(0)  # does not wait for the threads of tf.data and PyTorch
