"""The input of photographs, text, and small images: what it delivers, and what limits it.

    python -m benchmarks.input                  reading alone, by condition; about 15 minutes
    python -m benchmarks.input --simulate       `auto`, and 16 workers, on a simulated machine
    python -m benchmarks.input --train          ResNet-50 that waits for JPEGs; a GPU
    taskset -c 0-3 python -m benchmarks.input   on fewer cores; --quick is a smoke run of each

JPEGs of 640 x 480 pixels are made from scikit-learn's two photographs. Every side has them in
memory, cuts random crops of the same distribution, resizes them bilinearly to 224 x 224, and
mirrors half of them, on all cores. tf.data uses `decode_and_crop_jpeg`, PyTorch's DataLoader
Pillow, and Grain our decoder. Sides whose packages are not installed are left out.

Python threads share one interpreter's lock. "us under the lock" is the CPU time per image for which
this process holds it, and "ceiling" the images per second that fill one second of it, on any number
of cores. A small library counts it, if there is a compiler `cc` and Python has a shared libpython.
Images include repeated ones. On a busy machine, CPU times are more reliable than images per second.

With `--train`, nothing slows the input but its own work. "a batch in memory" repeats each batch 64
times, so that it reads almost nothing. Steps per second are not time to a target: a repeated
example is worth less than a fresh one.

With `--simulate`, decoders only sleep: on 16 threads, so long that input is R times slower than a
device whose step takes 40 ms, by itself or of all cores; and on 16 threads or workers, 5 ms per
example.
"""

import contextlib
import ctypes
import dataclasses
import functools
import importlib.util
import io
import itertools
import math
import multiprocessing
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import absl.flags
import cv2
import grain
import jax
import numpy as np
from ml_collections import ConfigDict

import workloads
from benchmarks import common, speedup
from benchmarks.speedup import Condition, Steady
from configs import catalog, cifar10, imagenet, lm1b
from data.sources import ArraySource
from data.splits import open_splits
from echo.threads import usable_cores
from pipeline import build, map_datasets
from pipeline.streams import FixedPolicy
from pipeline.workers import WORKER_CHUNK, Workers
from training import auto_policy
from training.experiment import examples_in_worker
from workloads import decoding

PIXELS = 224
CLASSES = 10
FACTOR = 4
PACKAGES = ("jax", "grain", "simplejpeg", "opencv-python-headless", "tensorflow-cpu", "torch")
STORED, NONE = "a batch in memory", "no echoing"
SMALL = "sentences to tokens", "digits of 8 x 8"
_AHEAD = 8  # batches that a side may have read ahead
ALONE, TF_DATA = "decoding and cropping alone, one core", "tf.data, decode_and_crop_jpeg"

Counts = Generator[tuple[int, int]]  # the images of each batch, and the fresh ones that it admits


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured."""

    size: str = "full"  # of the network and the files
    files: int = 1024
    batch_size: int = 256
    steps: int = 100  # per condition and round of training
    rounds: int = 3
    seconds: float = 3.0  # per side and round
    warm_up: float = 2.0  # seconds before


QUICK = Plan("mini", files=80, batch_size=16, steps=30, rounds=1, seconds=0.2, warm_up=0.1)


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


def endless(plan: Plan, config: ConfigDict, fields: dict[str, Any]) -> ConfigDict:
    """The configuration of a run that does not end by itself."""
    own = {"batch_size": plan.batch_size, "budget.fresh_examples": 10**8}
    return common.overridden(config, own | {"checkpoint_every_fresh_examples": 0} | fields)


def configuration(plan: Plan, data: str | pathlib.Path, fields: dict[str, Any]) -> ConfigDict:
    """The shipped configuration on the files in `data`."""
    config = imagenet.get_config("mini" if plan.size == "mini" else "")
    config.dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    config.dataset.name = f"folder:{data}"
    config.dataset.train_split = "train"
    config.dataset.validation_split = "validation"
    config.dataset.test_split = ""
    return endless(plan, config, fields)


def conditions(plan: Plan, data: str | pathlib.Path) -> list[Condition]:
    buffer, factor = 4 * plan.batch_size, float(FACTOR)
    crops = {"dataset.fused_decode": True}
    before, augmented = (
        catalog.echo(place, factor, buffer)
        for place in ("before_augmentation", "after_augmentation")
    )
    on_device = {"augment_on": "device"}
    stored = {**on_device, "echo.placement": "device"}
    fields = {
        STORED: crops | catalog.echo("after_batching", 64.0, 0),
        NONE: crops,
        f"{NONE}, canvases": {},
        f"e = {FACTOR} after batching": crops | catalog.echo("after_batching", factor, 0),
        f"e = {FACTOR} after augmentation": crops | augmented,
        f"e = {FACTOR} before augmentation": before,
        "... augmented on the device": before | on_device,
        "... stored and augmented on the device": before | stored,
        "auto, stored and augmented on the device": catalog.auto(16, 2 * buffer) | stored,
    }
    return [Condition(name, (configuration(plan, data, own),)) for name, own in fields.items()]


# --- a loop without a network


class Step:
    """The output of a step on a simulated device."""

    def __init__(self, end: float):
        self.end = end

    def is_ready(self) -> bool:
        return time.perf_counter() >= self.end

    def block_until_ready(self) -> "Step":
        time.sleep(max(0.0, self.end - time.perf_counter()))
        return self


def batches_of(
    config: ConfigDict,
    source: Any,
    workload: Any,
    workers: Workers | None = None,
    step_seconds: float = 0.0,
    step: Callable[[float], Any] = Step,
) -> Counts:
    """The batches of a run whose steps take so long; their outputs are those of `step`."""
    held, end, running, admitted = range(config.echo.streams), 0.0, [], 0
    policy = FixedPolicy(config, held)
    if config.echo.policy == "auto":
        policy = auto_policy.of_run(config)
    batches = iter(build.build(config, source, workload, held, policy, workers=workers))
    try:
        for number, batch in enumerate(batches, 1):
            jax.block_until_ready(batch.data)
            end = max(time.perf_counter(), end) + step_seconds
            running.append({"loss": step(end)})
            policy.dispatched(number, batch, running[-1])
            if len(running) > 1:
                policy.awaits(running[0])
                jax.block_until_ready(running.pop(0))
            yield len(batch.index), int(batch.fresh_examples) - admitted
            admitted = int(batch.fresh_examples)
    finally:
        batches.close()


def consumed(batches: Counts, seconds: float, least: int = 2) -> np.ndarray:
    """The batches (at least some), images, and fresh images of so many seconds, and the seconds,
    float64 [4]."""
    totals, start = np.zeros(4), time.perf_counter()
    while totals[0] < least or totals[3] < seconds:
        totals[:3] += (1, *next(batches))
        totals[3] = time.perf_counter() - start
    return totals


# --- reading alone

# The CPU time between taking and releasing the lock, which a process counts if this is preloaded.
_LOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
static _Atomic long held;
static __thread long since;
static void *(*save)(void), (*restore)(void *);
static long cpu(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1000000000L + t.tv_nsec;
}
void *PyEval_SaveThread(void) {
  if (!save) save = dlsym(RTLD_NEXT, "PyEval_SaveThread");
  if (since) held += cpu() - since;
  since = 0;
  return save();
}
void PyEval_RestoreThread(void *state) {
  if (!restore) restore = dlsym(RTLD_NEXT, "PyEval_RestoreThread");
  restore(state);
  since = cpu();
}
double lock_seconds(void) { return held * 1e-9; }
"""
_LIBRARY = "ECHO_LOCK_LIBRARY"


def count_lock_time() -> None:
    """Starts this program over with the library, if it can be compiled; then loads it."""
    if library := os.environ.pop(_LIBRARY, None):
        del os.environ["LD_PRELOAD"]  # not for workers
        lock_seconds.library = ctypes.CDLL(library)
        lock_seconds.library.lock_seconds.restype = ctypes.c_double
        os.unlink(library)
        return
    library = f"{tempfile.mkdtemp()}/lock.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", library, "-ldl"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        subprocess.run(command, input=_LOCK.encode(), check=True)
        again = [sys.executable, "-m", __spec__.name, *sys.argv[1:]]
        os.execve(again[0], again, os.environ | {"LD_PRELOAD": library, _LIBRARY: library})


def lock_seconds() -> float:
    """CPU time that this process has held the interpreter's lock; nan if nothing counts it."""
    library = getattr(lock_seconds, "library", None)
    return library.lock_seconds() or math.nan if library else math.nan


def children() -> list[str]:
    """The numbers of this process's worker processes (Linux)."""
    files = pathlib.Path("/proc/self/task").glob("*/children")
    return [child for file in files for child in file.read_text().split()]


def cpu_seconds(processes: list[str]) -> tuple[float, float]:
    """CPU time of this process and of those."""
    ticks = 0
    for process in processes:
        with contextlib.suppress(OSError), open(f"/proc/{process}/stat") as file:
            ticks += sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
    return time.process_time(), ticks / os.sysconf("SC_CLK_TCK")


def wait_until_idle(processes: list[str]) -> None:
    """Waits until no side reads ahead any more, for up to 10 s."""
    for _ in range(100):
        before = sum(cpu_seconds(processes))
        time.sleep(0.1)
        if sum(cpu_seconds(processes)) - before < 0.005:
            return


def alone(workload: Any, files: list[bytes]) -> Counts:
    """Decodes and crops as the pipeline does, in a loop on one core."""
    n = WORKER_CHUNK
    for start in itertools.count(0, n):
        index_n = np.arange(start, start + n)
        records = [{"image": files[i], "label": 0} for i in index_n % len(files)]
        workload.decode_cropped(records, 0, index_n, np.zeros(n, np.int64))
        yield n, n


def tf_data(files: list[bytes], boxes_Nx4: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    encoded, number_N = tf.constant(files), np.arange(len(boxes_Nx4)) % len(files)

    def decode(number, box):
        crop = tf.image.decode_and_crop_jpeg(encoded[number], box, channels=3)
        image = tf.image.resize(crop, (PIXELS, PIXELS), method="bilinear")
        return tf.cast(tf.round(tf.image.random_flip_left_right(image)), tf.uint8)

    data = tf.data.Dataset.from_tensor_slices((number_N, boxes_Nx4)).repeat()
    data = data.map(decode, num_parallel_calls=usable_cores()).batch(batch_size).prefetch(2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = usable_cores()
    return data.with_options(options).as_numpy_iterator()


class Crops:
    """Random access to crops, resized and mirrored: with Pillow, or with our decoder."""

    def __init__(self, files: list[bytes], boxes_Nx4: np.ndarray, pillow: bool):
        self._files, self._boxes_Nx4, self._pillow = files, boxes_Nx4, pillow

    def __len__(self) -> int:
        return len(self._boxes_Nx4)

    def __getitem__(self, index: int) -> np.ndarray:
        from PIL import Image

        file, box = self._files[index % len(self._files)], self._boxes_Nx4[index].tolist()
        if self._pillow:
            y, x, height, width = box
            image = Image.open(io.BytesIO(file)).convert("RGB").crop((x, y, x + width, y + height))
            pixels = np.array(image.resize((PIXELS, PIXELS), Image.Resampling.BILINEAR))
        else:
            pixels = decoding.decode_at(file, (PIXELS, PIXELS), 3, box=box)
        return cv2.flip(pixels, 1) if random.random() < 0.5 else pixels


def pytorch(crops: Crops, rows: int, cores: int) -> Iterator[np.ndarray]:
    import torch  # pyright: ignore[reportMissingImports]

    spawn = "spawn"  # forking a process with JAX's threads may hang
    loader = torch.utils.data.DataLoader(
        crops, rows, num_workers=cores, persistent_workers=True, multiprocessing_context=spawn
    )
    while True:
        yield from (images.numpy() for images in loader)


def grain_alone(crops: Crops, batch_size: int, processes: int) -> Iterator[np.ndarray]:
    examples = grain.MapDataset.source(crops).repeat()
    threads = grain.ReadOptions(num_threads=usable_cores(), prefetch_buffer_size=2 * batch_size)
    batches = examples.to_iter_dataset(None if processes else threads).batch(batch_size)
    if processes:
        absl.flags.FLAGS.mark_as_parsed()  # Grain reads some
        batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=processes))
    yield from batches


def make_sides(plan: Plan, data: pathlib.Path) -> dict[str, Callable[[], Counts]]:
    """Functions that start endless iterators, by side. Those of other libraries start once."""
    files = [path.read_bytes() for path in sorted((data / "train").rglob("*.jpg"))]
    rows, cores = plan.batch_size, usable_cores()
    pools: dict[Any, Workers] = {}  # of conditions whose examples are equal

    def by_workers(config: ConfigDict, source: Any, workload: Any) -> Counts:
        equal = config.dataset.name, config.dataset.fused_decode, config.augment_on
        if equal not in pools:
            make = functools.partial(examples_in_worker, config.to_dict(), ())
            pools[equal] = Workers(make, cores)
        return batches_of(config, source, workload, pools[equal])

    configs = {c.label: c.config for c in conditions(plan, data) if c.label != STORED}
    for label, other in zip(SMALL, (lm1b, cifar10), strict=True):
        configs[label] = endless(plan, other.get_config("mini"), {})
    sides: dict[str, Callable[[], Counts]] = {}
    for label, config in configs.items():
        source, _, info = open_splits(config.dataset)
        workload: Any = workloads.make(config, info)
        sides[f"{label}: threads"] = functools.partial(batches_of, config, source, workload)
        sides[f"{label}: workers"] = functools.partial(by_workers, config, source, workload)
        if label == NONE:
            sides[ALONE] = functools.partial(alone, workload, files)
            index_N = np.arange(64 * rows, dtype=np.uint32)
            sizes_Nx2 = np.tile(np.asarray(decoding.header(files[0])[0]), (len(index_N), 1))
            boxes_Nx4 = np.asarray(workload.random_boxes(0, sizes_Nx2, index_N, 0 * index_N))
    crops = functools.partial(Crops, files, boxes_Nx4)
    others = {"Grain alone, threads": grain_alone(crops(False), rows, 0)}
    others["Grain alone, mp_prefetch"] = grain_alone(crops(False), rows, cores)
    if importlib.util.find_spec("tensorflow"):
        others[TF_DATA] = tf_data(files, boxes_Nx4, rows)
    if importlib.util.find_spec("torch"):
        others["PyTorch DataLoader, Pillow"] = pytorch(crops(True), rows, cores)
    for name, batches in others.items():
        counts = ((len(batch), len(batch)) for batch in batches)
        sides[name] = lambda counts=counts: (count for count in counts)  # may be closed
    return sides


RATE, FRESH, CPU, LOCK = "images/s", "fresh/s", "CPU ms per fresh image", "us under the lock"
CEILING, BESIDE_TF, BESIDE_ALONE = "ceiling, images/s", "/ tf.data", "workers' CPU / alone"
READING = {RATE: 0, FRESH: 0, BESIDE_TF: 2, CPU: 2, BESIDE_ALONE: 2, LOCK: 0, CEILING: 0}
WORKERS = "CPU ms of workers"


def measured(batches: Any, plan: Plan) -> dict[str, float]:
    """What a side does, by column."""

    def used() -> np.ndarray:
        wait_until_idle(processes)  # as many images are read ahead as at the other call
        return np.array([*cpu_seconds(processes), lock_seconds()])

    consumed(batches, plan.warm_up)
    processes = children()
    before = used()
    ahead = consumed(batches, 0, _AHEAD)
    totals = consumed(batches, plan.seconds)
    own, theirs, locked = used() - before
    batches.close()
    (_, images, fresh, _), (_, rate, fresh_rate, _) = ahead + totals, totals / totals[3]
    cpu = {CPU: 1e3 * (own + theirs) / fresh, WORKERS: 1e3 * theirs / fresh}
    lock = {LOCK: 1e6 * locked / images, CEILING: images / locked}
    return {RATE: rate, FRESH: fresh_rate} | cpu | lock


Rounds = list[dict[str, dict[str, float]]]  # values by row and column, of each round


def table(rounds: Rounds, digits: dict[str, int], spread: bool = True) -> str:
    """Medians of the rounds, and smallest to largest, in columns with so many digits."""
    rows = []
    for name in rounds[0]:
        rows.append([name])
        for column, n in digits.items():
            values = common.Spread(tuple(r[name].get(column, math.nan) for r in rounds))
            text = f"{values:,.{n}f}" if spread else f"{values.median:,.{n}f}"
            rows[-1].append("-" if math.isnan(values.low) else text)
    return common.markdown_table(["", *digits], rows)


def read(plan: Plan, data: pathlib.Path) -> str:
    sides, rounds = make_sides(plan, data), []
    for number in range(plan.rounds):
        values: dict[str, dict[str, float]] = {name: {} for name in sides}
        for name in random.Random(number).sample(list(sides), len(sides)):
            values[name] = measured(sides[name](), plan)
            common.progress(f"round {number + 1}: {name}: {values[name][RATE]:,.0f} images/s")
        for name, own in values.items():
            if TF_DATA in sides and not name.startswith(SMALL):
                own[BESIDE_TF] = own[RATE] / values[TF_DATA][RATE]
            if name == f"{NONE}: workers":
                own[BESIDE_ALONE] = own[WORKERS] / values[ALONE][CPU]
        rounds.append(values)
    return table(rounds, READING, spread=False)


# --- training

TRAINING = {RATE: 0, FRESH: 0, f"of {STORED}": 2, f"times {NONE}": 2}


def train(plan: Plan, data: pathlib.Path) -> str:
    chosen, rounds = conditions(plan, data), []
    for number in range(plan.rounds):
        order = random.Random(number).sample(chosen, len(chosen))
        paces = {c.label: speedup.steady(c, 1, plan.steps, {}) for c in order}
        rounds.append({c.label: compared(plan, paces, c.label) for c in chosen})
        common.progress(f"round {number + 1} of {plan.rounds}: {rounds[-1]}")
    return table(rounds, TRAINING)


def compared(plan: Plan, paces: dict[str, Steady], name: str) -> dict[str, float]:
    pace = paces[name]
    ratios = (pace.steps / paces[other].steps for other in (STORED, NONE))
    values = pace.steps * plan.batch_size, max(0.0, pace.fresh_examples), *ratios
    return dict(zip(TRAINING, values, strict=True))


# --- a simulated machine

THREADS, STEP_SECONDS, RATIOS, DECODING_SECONDS = 16, 0.040, (1.5, 2.5, 6.0), 0.005
AUTO = "auto"
SHARES = {"device busy": 2, "steps, of the fixed factor's": 2, "fresh, of no echoing's": 2}


class Sleeping:
    """A workload whose decoder takes this time per example, and no processor."""

    def __init__(self, seconds: float, image: tuple[int, ...] = ()):
        self._seconds, self._image = seconds, image

    def decode(self, records: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        time.sleep(self._seconds * len(records))
        labels = np.asarray([record["label"] for record in records], np.int32)
        return {"label": labels, "image": np.zeros((len(records), *self._image), np.uint8)}


CROPS = Sleeping(DECODING_SECONDS, (PIXELS, PIXELS, 3))


def sleeping_examples(key: Any) -> map_datasets.Examples:
    """In a worker process: the examples of a stream."""
    source, order = ArraySource(label=np.arange(10**6)), map_datasets.FreshOrder(10**8)
    return map_datasets.Examples(source, 0, order, lambda records, *_: CROPS.decode(records))


def simulated(
    plan: Plan,
    workload: Sleeping,
    fields: dict[str, Any],
    workers: Workers | None = None,
    step_seconds: float = 0.0,
    step: Callable[[float], Any] = Step,
) -> np.ndarray:
    """Steps and fresh examples per second of a loop on the simulated machine."""
    stored = {"augment_on": "device", "echo.placement": "device"}
    config = configuration(plan, "anywhere", stored | fields)
    source = ArraySource(label=np.arange(10**6))
    batches = batches_of(config, source, workload, workers, step_seconds, step)
    consumed(batches, plan.warm_up)
    totals = consumed(batches, plan.seconds)
    batches.close()
    return totals[[0, 2]] / totals[3]


def simulate(plan: Plan) -> str:
    """Shares of the device's and of the reader's time, and the speed of decoders that sleep."""
    from benchmarks import input as module  # the name by which workers find the function

    build.CORES = map_datasets.CORES = THREADS
    rounds: Rounds = [{} for _ in range(plan.rounds)]
    asleep: Rounds = [{} for _ in range(plan.rounds)]
    buffer, share = 4 * plan.batch_size, f"of {THREADS / DECODING_SECONDS:,.0f}"
    product = jax.jit(lambda n: jax.lax.fori_loop(0, n, lambda _, x: x @ x, jax.numpy.eye(256)))
    jax.block_until_ready(product(1))
    start = time.perf_counter()
    jax.block_until_ready(product(200))
    times = math.ceil(200 * STEP_SECONDS / (time.perf_counter() - start))
    steps = {"": Step, ", step on the cores": lambda end: product(times)}
    kinds = itertools.product(steps.items(), RATIOS, enumerate(rounds))
    for (where, step), ratio, (number, values) in kinds:
        factor = math.ceil(ratio)
        workload = Sleeping(ratio * THREADS * STEP_SECONDS / plan.batch_size)
        best = f"e = {factor}, stored on the device"
        echoed = catalog.echo("before_augmentation", float(factor), buffer)
        fields = {NONE: {}, best: echoed, AUTO: catalog.auto(16, 2 * buffer)}
        order = random.Random(number).sample(list(fields), len(fields))
        given = {"step_seconds": STEP_SECONDS, "step": step}
        paces = {name: simulated(plan, workload, fields[name], **given) for name in order}
        for name in fields:
            pace, fresh = paces[name]
            shares = pace * STEP_SECONDS, pace / paces[best][0], fresh / paces[NONE][1]
            values[f"R = {ratio:g}, {name}{where}"] = dict(zip(SHARES, shares, strict=True))
        common.progress(f"R = {ratio:g}: round {number + 1} of {plan.rounds}")
    pools = {"threads": None, "workers": Workers(module.sleeping_examples, THREADS)}
    for (kind, pool), values in itertools.product(pools.items(), asleep):
        speed = simulated(plan, CROPS, {}, pool)[1]
        row = f"{THREADS} {kind}, decoding sleeps 5 ms"
        values[row] = {RATE: speed, share: speed * DECODING_SECONDS / THREADS}
    return f"{table(rounds, SHARES)}\n\n{table(asleep, {RATE: 0, share: 2})}"


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(
        __spec__.name,
        __doc__,
        Plan(),
        QUICK,
        files="distinct files",
        batch_size="images per batch",
        steps="steps per condition and round of training",
        rounds="number of rounds",
        seconds="seconds per side and round",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--train", action="store_true", help="train instead of only reading")
    group.add_argument("--simulate", action="store_true", help="train on a simulated machine")
    options = parser.parse_args(argv)
    plan = common.plan(options, Plan(), QUICK)
    with tempfile.TemporaryDirectory() as directory:
        data = pathlib.Path(directory)
        if options.simulate:
            text = simulate(plan)
        else:
            write_files(plan, data)
            text = train(plan, data) if options.train else read(plan, data)
    flag = " --simulate" if options.simulate else " --train" * options.train
    machine = f"{jax.devices()[0].device_kind}, {common.machine(PACKAGES)}"
    measured_on = f"Measured by `python -m benchmarks.input{flag}` on {machine} Medians"
    head = f"# Photographs as input\n\n{measured_on} of {plan.rounds} rounds, {plan.files} files."
    print(f"{head}\n\n{text}")
    sys.stdout.flush()


if __name__ == "__main__":
    count_lock_time()
    main()
    for process in multiprocessing.active_children():  # Grain's would stay
        process.kill()
    os._exit(0)  # does not wait for the threads of tf.data and PyTorch
