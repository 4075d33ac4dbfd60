"""JPEG decoding and augmentation in images per second, compared with tf.data and PyTorch.

    python -m benchmarks.input_throughput --out=results/input_throughput.md     about 5 minutes
    python -m benchmarks.input_throughput --quick                               a smoke run
    python -m benchmarks.input_throughput --data=coco_mini                      from TFDS_DATA_DIR

All sides read the same encoded files from memory, take the same random crops (precomputed for
tf.data and PyTorch, drawn from keys at run time by this pipeline), resize them bilinearly to 224 x
224, mirror half of them, and return batches of 64 uint8 images, with one worker per core. tf.data
uses `decode_and_crop_jpeg`; the PyTorch side is a DataLoader whose worker processes decode and crop
with Pillow, like torchvision by default. Sides whose packages are not installed are left out.

The images of each side are first compared with a plain crop of the decoded photograph. On a busy
machine, processor time per image is more reliable than images per second.
"""

import argparse
import dataclasses
import importlib.util
import io
import multiprocessing
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import grain
import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import common
from configs import imagenet
from data import sources, splits
from pipeline import build
from workloads import decoding, large_images

BATCH = 64
PACKAGES = ("jax", "grain", "simplejpeg", "opencv-python-headless", "tensorflow-cpu", "torch")
PACKAGES += ("pillow",)
HEIGHT, WIDTH = 480, 640  # of the photographs that are made if no data set is given


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured."""

    files: int = 256
    rounds: int = 7
    seconds: float = 4.0  # per side and round


QUICK = Plan(files=32, rounds=1, seconds=0.2)


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(
        "input_throughput",
        __doc__,
        Plan(),
        QUICK,
        files="distinct files to read",
        rounds="number of rounds",
        seconds="seconds per side and round",
    )
    parser.add_argument("--data", default="", help="a TFDS data set of JPEGs (default: made here)")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(argv)
    plan = common.plan(options, Plan(), QUICK)
    files = load(options.data, plan.files)
    sides = make_sides(files, options.cores)
    common.progress(f"{len(files)} files, {np.mean([len(f) for f in files]) / 1e3:.0f} kB each")
    differences = {name: difference(files, next(iterator)) for name, iterator in sides.items()}
    cpu_ms: dict[str, list[float]] = {name: [] for name in sides}
    measures = {
        name: measure(iterator, plan.seconds, cpu_ms[name]) for name, iterator in sides.items()
    }
    spreads = common.interleaved(measures, plan.rounds)
    common.publish(report(options, plan, files, spreads, cpu_ms, differences), options.out)
    sys.stdout.flush()
    os._exit(0)  # does not wait for the threads of tf.data and PyTorch


def measure(
    iterator: Iterator[np.ndarray], seconds: float, cpu_ms: list[float]
) -> Callable[[], float]:
    """A function that measures images per second and appends the milliseconds of processor time per
    image to `cpu_ms`."""

    def images_per_second() -> float:
        for _ in range(8):  # prefetched while other sides were measured
            next(iterator)
        start, cpu = time.perf_counter(), cpu_seconds()
        speed = common.rate(iterator, BATCH, seconds)
        images = speed * (time.perf_counter() - start)
        cpu_ms.append((cpu_seconds() - cpu) / images * 1e3)
        return speed

    return images_per_second


def cpu_seconds() -> float:
    """Processor time of this process and its worker processes (Linux)."""
    ticks = 0
    for child in multiprocessing.active_children():
        stat = pathlib.Path(f"/proc/{child.pid}/stat")
        if stat.exists():
            ticks += sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def load(name: str, count: int) -> list[bytes]:
    """`count` encoded JPEGs, from a TFDS data set or made from scikit-learn's two photographs."""
    if name:
        opened = [splits.open_source(name, split)[0] for split in ("train", "validation")]
        files = [record["image"] for source in opened for record in source]
        return files[:count]
    return [made_photograph(i) for i in range(count)]


def made_photograph(number: int) -> bytes:
    """A random crop of one of scikit-learn's photographs as a 640 x 480 JPEG of quality 90."""
    import cv2
    import simplejpeg
    from sklearn.datasets import load_sample_image

    rng = np.random.default_rng(number)
    photograph = load_sample_image(("china.jpg", "flower.jpg")[number % 2])  # 427 x 640
    share = rng.uniform(0.7, 1.0)
    height, width = int(427 * share), int(569 * share)
    y, x = rng.integers(0, 427 - height + 1), rng.integers(0, 640 - width + 1)
    crop = photograph[y : y + height, x : x + width]
    crop = cv2.resize(crop, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    return simplejpeg.encode_jpeg(crop, quality=90, colorsubsampling="420")


def make_sides(files: list[bytes], cores: int) -> dict[str, Iterator[np.ndarray]]:
    """Endless iterators of image batches, uint8 [B, 224, 224, 3], by side."""
    boxes = drawn_boxes(files, 64 * BATCH)
    sides = {
        "echo, crop without a canvas": this_pipeline(files, fused_decode=True),
        "echo, canvas, augmented on the host": this_pipeline(files),
        "echo, canvas, to be augmented on the device": this_pipeline(files, device=True),
    }
    if importlib.util.find_spec("tensorflow"):
        sides["tf.data, decode_and_crop_jpeg"] = tf_data(files, boxes, cores)
    if importlib.util.find_spec("torch"):
        sides["PyTorch DataLoader, Pillow"] = pytorch(files, boxes, cores)
    return sides


def configuration(fused_decode: bool = False, device: bool = False) -> ConfigDict:
    config = imagenet.get_config()
    config.batch_size = BATCH
    config.budget.fresh_examples = 10**8
    config.dataset.fused_decode = fused_decode
    config.augment_on = "device" if device else "host"
    return config


def workload(config: ConfigDict) -> large_images.LargeImageClassification:
    info = sources.DatasetInfo("benchmark", "", "", 1000, None, 3)
    return large_images.LargeImageClassification.from_config(config, info)


def this_pipeline(files: list[bytes], **options) -> Iterator[np.ndarray]:
    """The pipeline of the ImageNet configuration, without echoing."""
    config = configuration(**options)
    source = sources.ArraySource(
        image=np.asarray(files, object), label=np.zeros(len(files), np.int64)
    )
    batches = iter(build.build(config, source, workload(config)))
    return map(_images, batches)


def _images(batch: Any) -> np.ndarray:
    return batch.data["image"]


def drawn_boxes(files: list[bytes], count: int) -> tuple[np.ndarray, np.ndarray]:
    """(file numbers [N], crops as (y, x, height, width) [N, 4]) of the first fresh examples."""
    order = grain.MapDataset.range(len(files)).shuffle(seed=0).repeat()
    number_N = np.asarray([order[i] for i in range(count)])
    sizes = np.asarray([decoding.size(file) for file in files], np.int32)[number_N]
    index_N = np.arange(count, dtype=np.uint32)
    draw = jax.jit(workload(configuration()).random_boxes)
    return number_N, np.asarray(draw(np.uint32(0), sizes, index_N, np.zeros_like(index_N)))


def tf_data(files, drawn, cores: int) -> Iterator[np.ndarray]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    number_N, box_Nx4 = drawn
    encoded = tf.constant(files)

    def decode(number, box):
        crop = tf.image.decode_and_crop_jpeg(encoded[number], box, channels=3)
        image = tf.image.resize(crop, (224, 224), method="bilinear")
        image = tf.image.random_flip_left_right(image)
        return tf.cast(tf.round(image), tf.uint8)

    data = tf.data.Dataset.from_tensor_slices((number_N, box_Nx4)).repeat()
    data = data.map(decode, num_parallel_calls=cores).batch(BATCH).prefetch(2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = cores
    return data.with_options(options).as_numpy_iterator()


class PillowCrops:
    """A map-style data set for torch's DataLoader that crops, resizes, and mirrors with Pillow."""

    def __init__(self, files, drawn):
        self._files, (self._number_N, self._box_Nx4) = files, drawn
        self._rng = np.random.default_rng()

    def __len__(self) -> int:
        return len(self._number_N)

    def __getitem__(self, index: int) -> np.ndarray:
        from PIL import Image

        y, x, height, width = self._box_Nx4[index].tolist()
        photograph = Image.open(io.BytesIO(self._files[self._number_N[index]])).convert("RGB")
        image = photograph.crop((x, y, x + width, y + height))
        image = image.resize((224, 224), Image.Resampling.BILINEAR)
        if self._rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.array(image)  # PyTorch requires a writable array


def pytorch(files, drawn, cores: int) -> Iterator[np.ndarray]:
    import torch  # pyright: ignore[reportMissingImports]

    loader = torch.utils.data.DataLoader(
        PillowCrops(files, drawn),
        batch_size=BATCH,
        num_workers=cores,
        persistent_workers=True,
        multiprocessing_context="spawn",  # forking a process with JAX's threads may hang
    )

    def endless():
        while True:
            yield from (images.numpy() for images in loader)

    return endless()


def difference(files: list[bytes], images_BxHxWxC: np.ndarray) -> float | None:
    """Mean absolute difference of a side's first batch from plain crops, in gray levels.

    None if the images are still canvases.
    """
    if images_BxHxWxC.shape[1] != 224:
        return None
    number_N, box_Nx4 = drawn_boxes(files, BATCH)
    differences = []
    for number, (y, x, h, w), image in zip(number_N, box_Nx4, images_BxHxWxC, strict=True):
        crop = decoding.decode(files[number], 3)[y : y + h, x : x + w]
        expected = decoding.resize(crop, (224, 224)).astype(int)
        mirrored = expected[:, ::-1]
        differences.append(min(abs(expected - image).mean(), abs(mirrored - image).mean()))
    return float(np.mean(differences))


def report(
    options: argparse.Namespace,
    plan: Plan,
    files: list[bytes],
    spreads: dict[str, common.Spread],
    cpu_ms: dict[str, list[float]],
    differences: dict[str, float | None],
) -> str:
    """The report as Markdown."""
    data = options.data or "640 x 480 JPEGs made from scikit-learn's two photographs"
    size = np.mean([len(file) for file in files]) / 1e3
    rows = []
    for name, spread in spreads.items():
        ratios = [
            f"{spread.median / spreads[other].median:.2f}x" if other in spreads else "-"
            for other in ("tf.data, decode_and_crop_jpeg", "PyTorch DataLoader, Pillow")
        ]
        gray_levels = "-" if differences[name] is None else f"{differences[name]:.1f}"
        cpu = f"{statistics.median(cpu_ms[name][1:]):.2f}"  # the first value is from the warm-up
        rows.append([name, f"{spread:,.0f}", *ratios, cpu, gray_levels])
    header = ["side", "images per second", "/ tf.data", "/ PyTorch", "CPU ms per image"]
    header.append("gray levels from a plain crop")
    about = (
        f"{len(files)} files of {data}, {size:.0f} kB on average; {options.cores} workers; "
        f"median (smallest to largest) of {plan.rounds} interleaved rounds of {plan.seconds:g} s."
    )
    return "\n\n".join([about, common.markdown_table(header, rows), common.machine(PACKAGES)])


if __name__ == "__main__":
    main()
