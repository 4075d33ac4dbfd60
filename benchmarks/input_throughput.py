"""JPEG decoding and augmentation in images per second, compared with tf.data and PyTorch.

    python -m benchmarks.input_throughput --out=results/input_throughput.md     about 5 minutes
    python -m benchmarks.input_throughput --quick                               a smoke run
    python -m benchmarks.input_throughput --data=coco_mini                      from TFDS_DATA_DIR

All sides read the same encoded files from memory, take the same random crops (precomputed for
tf.data and PyTorch, drawn from keys at run time by this pipeline), resize them bilinearly to 224 x
224, mirror half of them, and return batches of 64 uint8 images, with one worker per core, at most
the 16 of this pipeline. tf.data uses `decode_and_crop_jpeg`. nvImageCodec (pip install
nvidia-nvimgcodec-cu12) decodes only the crop, on the host. The PyTorch side is a DataLoader whose
worker processes decode and crop with Pillow, like torchvision by default. Sides whose packages are
not installed are left out.

"decoding alone" decodes whole images in one thread per core and discards them.

The images of each side are first compared with a plain crop of the decoded photograph. On a busy
machine, CPU time per image is more reliable than images per second, and its ratio to that of
decoding alone in the same round more than either.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import importlib.util
import io
import itertools
import multiprocessing
import os
import pathlib
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import common
from configs import imagenet
from data import sources, splits
from pipeline import build, map_datasets
from workloads import decoding, large_images

BATCH = 64
_AHEAD = 8  # batches that a side may have read ahead
PACKAGES = ("jax", "grain", "simplejpeg", "opencv-python-headless", "tensorflow-cpu", "torch")
PACKAGES += ("pillow", "nvidia-nvimgcodec-cu12")
DECODING, TF_DATA = "decoding alone", "tf.data, decode_and_crop_jpeg"
COLORS = "echo, canvas, augmented on the host, colors too"
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
        __spec__.name,
        __doc__,
        Plan(),
        QUICK,
        files="distinct files to read",
        rounds="number of rounds",
        seconds="seconds per side and round",
    )
    parser.add_argument("--data", default="", help="a TFDS data set of JPEGs (default: made here)")
    options = parser.parse_args(argv)
    plan = common.plan(options, Plan(), QUICK)
    files = load(options.data, plan.files)
    sides = make_sides(files, map_datasets.CORES)
    common.progress(f"{len(files)} files, {np.mean([len(f) for f in files]) / 1e3:.0f} kB each")
    differences = {
        name: difference(files, next(iterator)) if name != COLORS else None
        for name, iterator in sides.items()
    }
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


def load(name: str, count: int) -> list[bytes]:
    """`count` encoded JPEGs, from a TFDS data set or made from scikit-learn's two photographs."""
    if name:
        opened = [splits.open_source(name, split)[0] for split in ("train", "validation")]
        files = [record["image"] for source in opened for record in source]
        return files[:count]
    return [made_photograph(i) for i in range(count)]


def made_photograph(number: int) -> bytes:
    """A random crop of one of scikit-learn's photographs as a 640 x 480 JPEG of quality 90."""
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
        DECODING: decoding_alone(files, cores),
        "echo, crop without a canvas": this_pipeline(files, fused_decode=True),
        "echo, canvas, augmented on the host": this_pipeline(files),
        COLORS: this_pipeline(files, color=True),
        "echo, canvas, to be augmented on the device": this_pipeline(files, device=True),
    }
    if importlib.util.find_spec("tensorflow"):
        sides[TF_DATA] = tf_data(files, boxes, cores)
    if importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.nvimgcodec"):
        sides["nvImageCodec, only the crop is decoded"] = nvimagecodec(files, boxes, cores)
    if importlib.util.find_spec("torch"):
        sides["PyTorch DataLoader, Pillow"] = pytorch(files, boxes, cores)
    return sides


def decoding_alone(files: list[bytes], cores: int) -> Iterator[np.ndarray]:
    """Decodes a batch at a time and yields empty images."""
    pool = concurrent.futures.ThreadPoolExecutor(cores)
    shares = [range(core, BATCH, cores) for core in range(cores)]

    def decode(share: range, first: int) -> None:
        for number in share:
            decoding.decode(files[(first + number) % len(files)], 3)

    for first in itertools.count(0, BATCH):
        list(pool.map(functools.partial(decode, first=first), shares))
        yield np.empty((BATCH, 0, 0, 3), np.uint8)


def configuration(
    fused_decode: bool = False, device: bool = False, color: bool = False
) -> ConfigDict:
    config = imagenet.get_config()
    config.batch_size = BATCH
    config.budget.fresh_examples = 10**8
    config.dataset.fused_decode = fused_decode
    config.augment_on = "device" if device else "host"
    config.augmentation.color = color
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
    number_N = np.asarray(map_datasets.record_numbers(np.arange(count), len(files), seed=0))
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


def nvimagecodec(files, drawn, cores: int) -> Iterator[np.ndarray]:
    """Decodes only the crop of a JPEG, on the host. No damage outside of the crop is noticed."""
    from nvidia import nvimgcodec as nv  # pyright: ignore[reportMissingImports]

    number_N, box_Nx4 = drawn
    pool, of_thread = concurrent.futures.ThreadPoolExecutor(cores), threading.local()
    flip_N = np.random.default_rng(0).random(len(number_N)) < 0.5

    def decode(place: int, image: np.ndarray) -> None:
        if not hasattr(of_thread, "decoder"):  # several threads cannot share one
            cpu = [nv.Backend(nv.BackendKind.CPU_ONLY)]
            of_thread.decoder = nv.Decoder(nv.NVIMGCODEC_DEVICE_CPU_ONLY, 1, cpu)
        y, x, height, width = box_Nx4[place].tolist()
        whole = nv.CodeStream(files[number_N[place]])
        crop = whole.get_sub_code_stream(region=nv.Region(y, x, y + height, x + width))
        decoding.resize(np.asarray(of_thread.decoder.decode(crop).cpu()), image.shape[:2], image)
        if flip_N[place]:
            cv2.flip(image, 1, dst=image)

    for first in itertools.cycle(range(0, len(number_N), BATCH)):
        images = np.empty((BATCH, 224, 224, 3), np.uint8)
        list(pool.map(decode, range(first, first + BATCH), images))
        yield images


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

    None if the images are not crops.
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
        cpu = [
            statistics.median(np.divide(cpu_ms[name], cpu_ms[other])[1:]) if other in cpu_ms else 0
            for other in (DECODING, TF_DATA)
        ]  # by round; the first value is from the warm-up
        cells = [f"{statistics.median(cpu_ms[name][1:]):.2f}"]
        cells += [f"{ratio:.2f}" if ratio else "-" for ratio in cpu]
        gray_levels = "-" if differences[name] is None else f"{differences[name]:.1f}"
        rows.append([name, *cells, f"{spread:,.0f}", gray_levels])
    header = ["side", "CPU ms per image", "/ decoding alone", "/ tf.data", "images per second"]
    header.append("gray levels from a plain crop")
    text = [
        "# Decoding and augmenting JPEGs",
        "How much does the input pipeline of photographs add to decoding? Measured by "
        "`python -m benchmarks.input_throughput` on " + common.machine(PACKAGES),
        common.markdown_table(header, rows),
        f"{len(files)} files of {data}, {size:.0f} kB on average; {map_datasets.CORES} workers; "
        f"median (smallest to largest) of {plan.rounds} interleaved rounds of {plan.seconds:g} s. "
        "The ratios compare CPU time within a round.",
    ]
    return "\n\n".join(text)


if __name__ == "__main__":
    common.command(main)
