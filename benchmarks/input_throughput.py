"""Images a second of decoding and augmenting JPEGs: this pipeline beside tf.data and PyTorch.

    python -m benchmarks.input_throughput --out=results/input_throughput.md     about 5 minutes
    python -m benchmarks.input_throughput --quick                               seconds
    python -m benchmarks.input_throughput --data=coco_mini                      of TFDS_DATA_DIR

All sides read the same encoded files from memory, cut out the same random parts (drawn beforehand
for tf.data and PyTorch, from keys while running for ours), resize them bilinearly to 224 x 224,
mirror half of them, and hand over batches of 64 uint8 images, with as many workers as there are
cores. tf.data decodes by `decode_and_crop_jpeg`; PyTorch is a DataLoader whose worker processes
decode and crop with Pillow, as torchvision does by default. Columns appear where those packages are
installed. Each side's images are compared with a plain crop of the decoded photograph first. On a
machine that is busy with other work, processor time an image tells more than images a second.
"""

import importlib.util
import io
import multiprocessing
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import grain
import jax
import numpy as np

from benchmarks import common
from configs import imagenet
from data import sources
from pipeline import build
from workloads import decoding, large_images

BATCH = 64
PACKAGES = ("jax", "grain", "simplejpeg", "opencv-python-headless", "tensorflow-cpu", "torch")
PACKAGES += ("pillow",)
HEIGHT, WIDTH = 480, 640  # photographs made for want of a data set


def main(argv=None) -> int:
    arguments = parse(argv)
    files = load(arguments.data, arguments.files)
    sides = make_sides(files, arguments.cores)
    common.progress(f"{len(files)} files, {np.mean([len(f) for f in files]) / 1e3:.0f} kB each")
    differences = {name: difference(files, next(iterator)) for name, iterator in sides.items()}
    cpu_ms = {name: [] for name in sides}
    measures = {
        name: measure(iterator, arguments.seconds, cpu_ms[name]) for name, iterator in sides.items()
    }
    spreads = common.interleaved(measures, arguments.rounds)
    common.publish(report(arguments, files, spreads, cpu_ms, differences), arguments.out)
    sys.stdout.flush()
    os._exit(0)  # tf.data's and torch's threads may not be waited for


def measure(
    iterator: Iterator[np.ndarray], seconds: float, cpu_ms: list[float]
) -> Callable[[], float]:
    """What measures images a second, and notes the processor time of each image in `cpu_ms`."""

    def images_per_second() -> float:
        for _ in range(8):  # what was made ready while others had their turn
            next(iterator)
        start, cpu = time.perf_counter(), cpu_seconds()
        speed = common.rate(iterator, BATCH, seconds)
        images = speed * (time.perf_counter() - start)
        cpu_ms.append((cpu_seconds() - cpu) / images * 1e3)
        return speed

    return images_per_second


def cpu_seconds() -> float:
    """Processor time of this process and of the worker processes that it has started (Linux)."""
    ticks = 0
    for child in multiprocessing.active_children():
        stat = pathlib.Path(f"/proc/{child.pid}/stat")
        if stat.exists():
            ticks += sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def parse(argv):
    parser = common.arguments("input_throughput", __doc__)
    parser.add_argument("--data", default="", help="a TFDS data set with JPEGs; '' = made here")
    parser.add_argument("--files", type=int, default=256, help="files to read, again and again")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0, help="a side and round")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true", help="one short round, to see it work")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.rounds, arguments.seconds, arguments.files = 1, 0.2, 32
    return arguments


def load(name: str, count: int) -> list[bytes]:
    """`count` encoded JPEGs: of a TFDS data set, or made of scikit-learn's two photographs."""
    if name:
        splits = [sources.open_source(name, split)[0] for split in ("train", "validation")]
        files = [record["image"] for source in splits for record in source]
        return files[:count]
    return [made_photograph(i) for i in range(count)]


def made_photograph(number: int) -> bytes:
    """A random part of one of scikit-learn's photographs at 640 x 480 pixels, quality 90."""
    import cv2
    import simplejpeg
    from sklearn.datasets import load_sample_image

    rng = np.random.default_rng(number)
    photograph = load_sample_image(("china.jpg", "flower.jpg")[number % 2])  # 427 x 640
    share = rng.uniform(0.7, 1.0)
    height, width = int(427 * share), int(569 * share)
    y, x = rng.integers(0, 427 - height + 1), rng.integers(0, 640 - width + 1)
    part = photograph[y : y + height, x : x + width]
    part = cv2.resize(part, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    return simplejpeg.encode_jpeg(part, quality=90, colorsubsampling="420")


def make_sides(files: list[bytes], cores: int) -> dict[str, Iterator[np.ndarray]]:
    """An endless iterator of image batches, uint8 [B, 224, 224, 3], for each side."""
    boxes = drawn_boxes(files, 64 * BATCH)
    sides = {
        "ours, crop without a canvas": ours(files, fused_decode=True),
        "ours, canvas, augmented on the host": ours(files),
        "ours, canvas, left for the device to augment": ours(files, device=True),
    }
    if importlib.util.find_spec("tensorflow"):
        sides["tf.data, decode_and_crop_jpeg"] = tf_data(files, boxes, cores)
    if importlib.util.find_spec("torch"):
        sides["PyTorch DataLoader, Pillow"] = pytorch(files, boxes, cores)
    return sides


def configuration(fused_decode: bool = False, device: bool = False):
    config = imagenet.get_config()
    config.batch_size = BATCH
    config.budget.fresh_examples = 10**8
    config.dataset.fused_decode = fused_decode
    config.augment_on = "device" if device else "host"
    return config


def workload(config) -> large_images.LargeImageClassification:
    info = sources.DatasetInfo("benchmark", "", "", 1000, None, 3)
    return large_images.LargeImageClassification.from_config(config, info)


def ours(files: list[bytes], **options) -> Iterator[np.ndarray]:
    """The pipeline of the ImageNet configuration, without echoing."""
    config = configuration(**options)
    source = sources.ArraySource(
        image=np.asarray(files, object), label=np.zeros(len(files), np.int64)
    )
    batches = iter(build.build(config, source, workload(config)))
    return (batch.data["image"] for batch in batches)


def drawn_boxes(files: list[bytes], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Which file each of the first fresh examples is, and its crop, (y, x, height, width)."""
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
    """A map-style data set for torch's DataLoader: crop, resize and mirror with Pillow."""

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
        return np.array(image)  # torch wants arrays that it could write to


def pytorch(files, drawn, cores: int) -> Iterator[np.ndarray]:
    import torch

    loader = torch.utils.data.DataLoader(
        PillowCrops(files, drawn),
        batch_size=BATCH,
        num_workers=cores,
        persistent_workers=True,
        multiprocessing_context="spawn",  # a fork of a process with JAX's threads may hang
    )

    def endless():
        while True:
            yield from (images.numpy() for images in loader)

    return endless()


def difference(files: list[bytes], images_BxHxWxC: np.ndarray) -> float | None:
    """Mean difference of a side's first batch from plain crops, in grey levels; None where the
    images are still canvases."""
    if images_BxHxWxC.shape[1] != 224:
        return None
    number_N, box_Nx4 = drawn_boxes(files, BATCH)
    found = []
    for number, (y, x, h, w), image in zip(number_N, box_Nx4, images_BxHxWxC, strict=True):
        part = decoding.decode(files[number], 3)[y : y + h, x : x + w]
        wanted = decoding.resize(part, (224, 224)).astype(int)
        found.append(min(abs(wanted - image).mean(), abs(wanted[:, ::-1] - image).mean()))
    return float(np.mean(found))


def report(arguments, files, spreads: dict[str, common.Spread], cpu_ms, differences) -> str:
    data = arguments.data or "640 x 480 JPEGs made of scikit-learn's two photographs"
    size = np.mean([len(file) for file in files]) / 1e3
    rows = []
    for name, spread in spreads.items():
        ratios = [
            f"{spread.median / spreads[other].median:.2f}x" if other in spreads else "-"
            for other in ("tf.data, decode_and_crop_jpeg", "PyTorch DataLoader, Pillow")
        ]
        apart = "-" if differences[name] is None else f"{differences[name]:.1f}"
        speed = f"{spread.median:,.0f} ({spread.low:,.0f} to {spread.high:,.0f})"
        cpu = f"{statistics.median(cpu_ms[name][1:]):.2f}"  # the first round does not count
        rows.append([name, speed, *ratios, cpu, apart])
    header = ["side", "images a second", "/ tf.data", "/ PyTorch", "CPU ms an image"]
    header.append("grey levels from a plain crop")
    return "\n".join(
        [
            f"{len(files)} files of {data}, {size:.0f} kB on average; {arguments.cores} workers; "
            f"median (smallest to largest) of {arguments.rounds} rounds of {arguments.seconds:g} s "
            "in turns.",
            "",
            common.markdown_table(header, rows),
            "",
            common.machine(PACKAGES),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
