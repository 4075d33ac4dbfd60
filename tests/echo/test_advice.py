"""The timing model and the advice: against a simulated pipeline, and on measured ones."""

import dataclasses
import functools
import itertools
import threading
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import echo
from echo.advice import profile
from echo.advice.inputs import Input, loader_stages
from echo.advice.model import StageTime, Timing
from echo.advice.recommend import FACTORS, TOLERANCE, conclude, measured, time_text
from echo.spec import EchoSpecError

BATCH = 32


def stage(name, seconds, cpu=0.0, limit=None):
    return StageTime(name, seconds, cpu, seconds if limit is None else limit)


def pipeline(read=1e-6, decode=1e-6, augment=1e-6, transfer=1e-6, step=1e-3, **fields):
    """Stages that take so many seconds per example, with one worker."""
    times = {"read": read, "decode": decode, "augment": augment, "batch": 1e-7}
    stages = tuple(stage(name, seconds) for name, seconds in times.items())
    return timed(stages, (stage("transfer", transfer),), stage("step", step), **fields)


def timed(stages, transfers=(), step=None, **fields):
    parts = (*stages, *transfers, step or stage("step", 1e-3))
    fields = {"batch_size": BATCH, "workers": 1, "cores": 64} | fields
    return Timing(parts, len(stages), **fields)


INSERTIONS = {"before_augmentation": 2, "after_augmentation": 3, "after_batching": 4}


def advice_on(timing):
    return conclude(timing, INSERTIONS)


def recommended(advice):
    return advice.workers, advice.insertion, advice.factor


def simulated(upstream, behind, step, factor, steps=400):
    """Steps per second of three servers in a row, each handing over to the next as it finishes.

    The first makes a fresh batch in `upstream` seconds, the second emits one in `behind`.
    """
    ready = made = emitted = done = 0.0
    fresh, begun = 0, None
    for number in range(steps):
        while fresh * factor <= number:  # error diffusion: floor(fresh * factor) copies so far
            made += upstream
            fresh, ready = fresh + 1, made
        emitted = max(emitted, ready) + behind
        done = max(done, emitted) + step
        if number == steps // 2:
            begun = done
    return (steps - steps // 2 - 1) / (done - begun)


@settings(max_examples=80, deadline=None)
@given(
    upstream=st.floats(0.05, 10),
    behind=st.floats(0.001, 2),
    step=st.floats(0.05, 2),
    factor=st.integers(1, 8),
)
def test_predictions_are_those_of_a_simulated_pipeline(upstream, behind, step, factor):
    stages = stage("read", upstream / BATCH), stage("augment", behind / BATCH)
    timing = timed(stages, step=stage("step", step / BATCH))
    rate = simulated(upstream, behind, step, factor)
    assert 1 / timing.step_seconds(1, factor) == pytest.approx(rate, rel=0.05)


@given(up=st.floats(0.001, 10), down=st.floats(0.001, 10), factor=st.floats(1, 20))
def test_a_worker_gives_the_papers_formula_and_without_one_times_add_up(up, down, factor):
    timing = timed([stage("batch", up / BATCH)], step=stage("step", down / BATCH))
    assert timing.step_seconds(1, factor) == pytest.approx(max(up / factor, down))
    assert timing.ratio(1) == pytest.approx(up / down)
    alone = dataclasses.replace(timing, workers=0, cores=1)
    assert alone.step_seconds(1, factor) == pytest.approx(up / factor + down)
    assert alone.baseline_seconds() == pytest.approx(up + down)
    assert alone.ratio(1) == pytest.approx(up / down)
    assert alone.with_workers(1).baseline_seconds() == pytest.approx(max(up, down))


def test_workers_share_latency_but_neither_a_rate_limit_nor_the_stages_after_echoing():
    timing = pipeline(read=8e-3, augment=2e-3, workers=4)
    assert timing.step_seconds(2, 1) == pytest.approx(BATCH * 8e-3)  # each is its own limit
    latency = dataclasses.replace(timing.parts[0], limit=1e-3)
    timing = dataclasses.replace(timing, parts=(latency, *timing.parts[1:]))
    assert timing.step_seconds(2, 1) == pytest.approx(BATCH * 8e-3 / 4, rel=0.01)
    assert timing.step_seconds(2, 4) == pytest.approx(BATCH * 2e-3, rel=0.01)  # augment, each step
    assert timing.step_seconds(3, 4) == pytest.approx(BATCH * 1e-3, rel=0.01)  # the step


def test_stages_and_a_step_on_the_same_cores_add_up():
    read, step = stage("read", 3e-3, cpu=3e-3, limit=1.5e-3), stage("step", 1e-3, cpu=2e-3)
    timing = timed([read], step=step, workers=2, cores=2)
    for factor in FACTORS:
        shared = (3e-3 / factor + 2e-3) / 2
        assert timing.step_seconds(1, factor) == pytest.approx(BATCH * max(shared, 1e-3))


def on_one_core(timing, step):
    return dataclasses.replace(timing, parts=(*timing.parts[:-1], step), cores=1)


FEW_CORES = on_one_core(pipeline(transfer=1.5e-3), stage("step", 1e-3, cpu=2e-3))
SAVES_CORES = timed([stage("read", 0), stage("decode", 3e-4, cpu=3e-4), *pipeline().parts[2:4]])
SAVES_CORES = on_one_core(SAVES_CORES, stage("step", 9e-4, cpu=1e-3))
TWO_TRANSFERS = timed(pipeline().parts[:4], (stage("pin", 4e-3), stage("copy", 5e-3)))


@pytest.mark.parametrize(
    ("timing", "insertion", "factor", "named"),
    [
        (pipeline(), None, 1, "step"),
        (pipeline(read=1e-3), None, 1, "1.00"),  # R
        (pipeline(read=4e-3), "before_augmentation", 4, "4.00"),  # times as fast
        (pipeline(read=20e-3), "before_augmentation", 8, "20 ms"),
        (pipeline(read=6.87e-3), "before_augmentation", 7, "6.8"),
        (pipeline(read=2.3e-3), "before_augmentation", 3, "2.30"),
        (pipeline(augment=4e-3), "after_augmentation", 4, "Echo after"),
        (pipeline(read=9e-3, augment=3e-3), "after_augmentation", 8, "12.00"),
        (pipeline(decode=4e-3), "before_augmentation", 4, "decode"),
        (pipeline(read=1e-3, augment=1e-3), None, 1, "less than 10%"),  # a thread would do
        (pipeline(transfer=4e-3), None, 1, "transfer is the bottleneck (4 ms"),
        (TWO_TRANSFERS, None, 1, "transfer is the bottleneck (5 ms"),
        (pipeline(read=4e-3, transfer=4e-3), None, 1, "transfer is"),
        (FEW_CORES, None, 1, "step is the bottleneck"),  # its processor time, not the transfer
        (SAVES_CORES, "before_augmentation", 3, "cores are the bottleneck"),
    ],
)
def test_the_recommendation(timing, insertion, factor, named):
    advice = advice_on(timing)
    assert (advice.insertion, advice.factor) == (insertion, factor)
    assert named in advice.reason
    assert ("Repeats are identical" in advice.reason) == (insertion == "after_augmentation")
    assert ("third off" in advice.reason) == (timing.parts[-1].cpu_seconds > 0)  # on the host
    assert advice.reason.replace("_", " ") in " ".join(str(advice).split())


seconds_per_example = st.one_of(st.sampled_from([0.0, 1e-3, 2e-3]), st.floats(1e-6, 1e-2))
a_stage = st.builds(
    stage, st.just(""), seconds_per_example, seconds_per_example, seconds_per_example
)


NAMES = ("read", "decode", "augment", "batch")
ALL_INSERTIONS = {f"after {name}": count for count, name in enumerate(NAMES, 1)}


@settings(max_examples=200, deadline=None)
@given(
    costs=st.lists(a_stage, min_size=4, max_size=4),
    transfers=st.lists(a_stage, max_size=2),
    step=st.builds(stage, st.just("step"), st.floats(1e-6, 1e-2), seconds_per_example),
    workers=st.integers(0, 8),
    cores=st.floats(1, 16),
    allowed=st.lists(st.sampled_from(sorted(ALL_INSERTIONS)), min_size=1, unique=True),
)
def test_the_recommended_cell_is_in_the_table_and_near_the_best(
    costs, transfers, step, workers, cores, allowed
):
    stages = [dataclasses.replace(c, name=n) for c, n in zip(costs, NAMES, strict=True)]
    timing = timed(stages, transfers, step, workers=workers, cores=cores)
    insertions = {name: ALL_INSERTIONS[name] for name in allowed}
    advice = conclude(timing, insertions)
    cells = {n: [timing.step_seconds(n, e) for e in FACTORS] for n in insertions.values()}
    best = min(map(min, cells.values()))
    before = timing.baseline_seconds()

    def equal(seconds, fastest):
        return seconds <= max(fastest, min(fastest * (1 + TOLERANCE), before / (1 + TOLERANCE)))

    if advice.insertion is None:
        overlaps = [equal(own[0], min(own)) for own in cells.values() if equal(min(own), best)]
        assert before <= best * (1 + TOLERANCE) or any(overlaps)
        assert advice.factor == 1
        return
    count = insertions[advice.insertion]
    cell, fastest = cells[count][advice.factor - 1], min(cells[count])
    assert fastest <= best * (1 + TOLERANCE)
    assert cell <= fastest * (1 + TOLERANCE)
    assert cell * (1 + TOLERANCE) <= before * (1 + 1e-9)
    assert max(map(len, str(advice).splitlines())) <= 80
    assert len(str(advice).splitlines()) <= 12
    for other, own in cells.items():
        if other < count:
            assert not any(equal(seconds, best) for seconds in own)
    assert not any(equal(seconds, fastest) for seconds in cells[count][: advice.factor - 1])


@pytest.mark.parametrize(
    ("had", "step", "read", "limit", "max_workers", "expected"),
    [
        (2, 1e-3, 8e-3, 1e-3, 16, (8, None, 1)),
        (2, 1e-3, 8e-3, 2e-3, 16, (4, "here", 2)),
        (2, 1e-3, 8e-3, 4e-3, 16, (2, "here", 4)),  # a rate limit
        (0, 1e-3, 1e-3, 1e-3, 4, (1, None, 1)),  # read while the step runs
        (0, 1e-3, 4e-3, 1e-3, 4, (4, None, 1)),
        (0, 1e-3, 1e-5, 1e-5, 4, (0, None, 1)),
        (0, 1e-3, 5e-4, 5e-4, 0, (0, "here", 3)),  # without workers to add, repeats save reading
    ],
)
def test_a_reader_that_waits_needs_workers_before_echoing(
    had, step, read, limit, max_workers, expected
):
    timing = timed([stage("read", read, 1e-5, limit)], step=stage("step", step), workers=had)
    advice = conclude(timing, {"here": 1}, max_workers)
    assert recommended(advice) == expected
    assert (f"{expected[0]} workers, not {had}" in advice.reason) == (expected[0] > had)
    assert advice.measured == timing


def varying(timing, name, low, seconds, high):
    """`timing` with a stage whose fastest and slowest rounds took `low` and `high`."""
    new = StageTime(name, seconds, 0.0, seconds, low, high)
    parts = tuple(new if part.name == name else part for part in timing.parts)
    return dataclasses.replace(timing, parts=parts)


@pytest.mark.parametrize(
    ("timing", "named"),
    [
        # The step's threads competed with those of the input: R is 0.9, and would be 22.
        (varying(pipeline(read=1.125e-3), "step", 5.06e-5, 1.25e-3, 1.89e-3), "step took 50.6 µs"),
        (varying(pipeline(), "read", 3e-3, 3.5e-3, 4e-3), ""),  # about the same in every round
        (varying(pipeline(), "read", 0.0, 4e-3, 0.0), ""),  # not known
    ],
)
def test_timings_that_vary_so_much_that_the_advice_could_change_are_flagged(timing, named):
    advice = advice_on(timing)
    assert bool(advice.warning) == bool(named)
    assert named in advice.warning
    assert " ".join(str(advice).split()).startswith(advice.warning)


@given(factor=st.floats(1.6, 100), name=st.sampled_from(["read", "decode", "step"]))
def test_a_warning_follows_from_rounds_that_would_change_the_advice(factor, name):
    calm = pipeline(read=2e-3, decode=2e-3)
    (part,) = (part for part in calm.parts if part.name == name)
    varied = varying(calm, name, part.seconds, part.seconds, part.seconds * factor)
    slow = advice_on(calm.changed(part, factor))
    advice = advice_on(varied)
    assert bool(advice.warning) == (recommended(advice) != recommended(slow))


@pytest.mark.parametrize("step", [1.2345e-5, 1.2345e-6])
def test_the_report_fits_80_columns_with_long_names_and_large_numbers(step):
    names = {f"a_stage_with_a_rather_long_name_{n}": n for n in range(1, 6)}
    timing = timed([stage(name, 1.2345e-9) for name in names], step=stage("step", step))
    advice = conclude(timing, names)
    assert max(map(len, f"{advice}\n{advice.tables}".splitlines())) <= 80


def read(call):
    return {"x": np.full((8, 4), call % 256, np.uint8), "label": np.zeros(8, np.int32)}


def join(items):
    return {name: np.concatenate([item[name] for item in items]) for name in items[0]}


def test_each_stage_takes_the_result_of_the_one_before_and_the_step_takes_whole_batches():
    lengths, threads = set(), set()

    def decode(item):
        assert len(item["x"]) == 8
        threads.add(threading.current_thread())
        return item

    source = Input([("read", read), ("decode", decode), ("batch", join)], 32, 8, None, 3, 5)
    advice = measured(source, lambda batch: lengths.add(len(batch["x"])), 2, 0.02)
    assert lengths == {32}
    assert 3 <= len(threads) <= 7  # one, then up to five at once, then one
    assert [part.name for part in advice.timing.parts] == ["read", "decode", "batch", "step"]
    assert advice.insertions == {"after read": 1, "after decode": 2, "after batch": 3}
    for cost in advice.timing.parts:
        assert 0 < cost.low <= cost.seconds <= cost.high
        assert cost.limit <= cost.seconds


def test_stages_and_the_step_may_change_their_arguments():
    def stack(items):
        pixels, labels = (np.stack([item.pop(name) for item in items]) for name in ("x", "label"))
        return {"x": pixels, "label": labels}

    def decode(item):
        item["x"] = np.frombuffer(item.pop("bytes"), np.uint8)
        return item

    def step(batch):
        assert batch.pop("x").shape == (8, 4)

    stages = [("read", lambda i: {"bytes": bytes(4), "label": i}), ("decode", decode)]
    stages.append(("batch", stack))
    echo.advise(stages, step, batch_size=8, workers=2, cores=2, seconds=0.02)


def test_an_error_in_a_stage_ends_all_threads_and_names_the_stage():
    def fails(item):
        if item == 1:  # each of two threads makes at least one call
            raise OSError("damaged")

    before = threading.active_count()
    call = profile.caller("read", fails, itertools.count())
    with pytest.raises(OSError, match="damaged") as raised:
        profile.seconds_at_once(call, 2, 0.01)
    assert "'read', called with 1" in "".join(raised.value.__notes__)
    assert threading.active_count() == before


class Clock:
    """Seconds that pass by a millisecond when they are read, or when a call takes some."""

    def __init__(self, monkeypatch):
        self._lock, self._now = threading.Lock(), 0.0
        clock = types.SimpleNamespace(perf_counter=self.pass_by, process_time=time.process_time)
        monkeypatch.setattr(profile, "time", clock)

    def pass_by(self, seconds=1e-3):
        with self._lock:
            self._now += seconds
            return self._now


@pytest.mark.parametrize(
    ("calls", "warm_up", "expected"),
    [
        ([10.0] * 3, 8, [10.0] * 2),
        ([10.0] + [0.5] * 4, 8, [0.5] * 4),  # the first one compiles
        ([0.01] * 3 + [10.0] * 3, 8, [10.0] * 2),  # read ahead
        ([0.5] + [1e-3] * 1000, 1, [2e-3] * 9),
    ],
)
def test_rounds_end_after_a_few_long_calls(calls, warm_up, expected, monkeypatch):
    clock, left = Clock(monkeypatch), iter(calls)
    rounds = profile.rounds(lambda: clock.pass_by(next(left)), 1.0, warm_up)
    assert [wall for wall, _ in rounds] == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(("computes", "share"), [(True, 4), (False, 1)])
def test_processes_share_what_limits_those_that_wait_and_no_lock(computes, share, monkeypatch):
    clock = Clock(monkeypatch)
    if computes:
        monkeypatch.setattr(profile.time, "process_time", clock.pass_by)
    source = Input([], 8, workers=2, max_workers=4, processes=True)
    cost, _ = profile.stage_time("read", lambda: clock.pass_by(0.1), 1.0, 1, source)
    assert cost.limit == pytest.approx(cost.seconds / share, rel=0.05)


def test_long_calls_behind_a_rate_limit_are_few(monkeypatch):
    clock, called = Clock(monkeypatch), []

    def read(call):
        called.append(call)
        clock.pass_by(10.0)  # one after another, in whatever thread
        return call

    stages = [("read", read), ("batch", list)]
    advice = echo.advise(stages, len, batch_size=4, workers=8, cores=8)
    assert len(called) == 3 + 8  # alone, and by the threads that it has
    time, _, step = advice.measured.parts
    assert (time.seconds, time.limit) == pytest.approx((10.0, 10.0), rel=0.01)
    assert step.seconds < 1


def test_an_iterable_gives_only_r_after_batching_and_is_read_again():
    batches = [(np.zeros((16, 2)), np.zeros(16))] * 3
    advice = echo.advise(batches, len, seconds=0.02)
    assert advice.insertions == {"after batching": 1}
    assert advice.measured.batch_size == 16
    iterator = itertools.repeat(batches[0])
    assert "are gone" in echo.advise(iterator, len, seconds=0.02).warning


def test_the_step_trains_a_copy_of_the_model():
    descend = jax.jit(lambda model, batch: (model - batch.mean(), 1.0), donate_argnums=0)
    models = []

    def in_place(model, batch):
        models.append(model[0])
        model -= batch.mean()

    def successor(model, batch):
        models.append(float(model[0]))
        return descend(model, batch)

    @functools.partial(jax.jit, donate_argnums=0)
    def counted(state, batch):
        return {"model": state["model"] - batch.mean(), "step": state["step"] + 1}

    def of_state(state, batch):  # as in Flax, whose TrainState counts from the number 0
        models.append(float(state["model"][0]))
        return counted(state, batch)

    state = {"model": jnp.ones(3), "step": 0}
    for step, model in ((in_place, np.ones(3)), (successor, jnp.ones(3)), (of_state, state)):
        models.clear()
        echo.advise([np.ones((4, 2))] * 2, step, model=model, seconds=0.02)
        assert models[:3] == [1, 0, -1]  # the steps continue from each other
        np.testing.assert_array_equal(jax.tree.leaves(model)[0], np.ones(3))


STAGES = [("read", read), ("batch", join)]


@pytest.mark.parametrize(
    ("stages", "fields", "named"),
    [
        *((STAGES, {name: -1}, name) for name in ("workers", "cores", "seconds", "batch_size")),
        ([("read", read), ("read", join)], {}, "stages"),
        *((stages, {}, "stages") for stages in (dict(STAGES), 5, "batches", iter(()))),
        ((np.zeros((8, 2)) for _ in range(3)), {}, "stages"),
        (STAGES, {"batch_size": 0}, "batch_size"),
        ([3.0] * 9, {"batch_size": 0}, "batch_size"),  # examples, not batches
    ],
)
def test_stages_that_cannot_be_measured_are_refused(stages, fields, named):
    with pytest.raises(EchoSpecError) as raised:
        echo.advise(stages, len, **{"batch_size": 32, "seconds": 0.02} | fields)
    assert raised.value.field == named


def test_times_have_three_digits_and_no_powers_of_ten():
    seconds = [12.34, 0.9996, 0.9994, 0.99996e-3, 0.9996e-6, 2e-10, 0]
    texts = ["12.3 s", "1 s", "999 ms", "1 ms", "1 µs", "0.2 ns", "0 ns"]
    assert list(map(time_text, seconds)) == texts


@pytest.fixture
def torch_data():
    return pytest.importorskip("torch.utils.data", reason="see requirements-extras.txt")


class Images:
    def __len__(self):
        return 50

    def __getitem__(self, index):
        return index, 2 * index


class Batched(Images):
    """Reads a batch at once, as the data sets of Hugging Face do."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


@pytest.mark.extras
@pytest.mark.parametrize(("data", "names"), [(Images(), ["read", "batch"]), (Batched(), None)])
def test_the_stages_of_a_loader_make_what_it_makes(data, names, torch_data):
    loader = torch_data.DataLoader(data, batch_size=5, num_workers=3, shuffle=True)
    stages = loader_stages(loader)
    assert (stages and [name for name, _ in stages]) == names
    if stages:
        (_, read), _ = stages
        rows = {read(call) for call in range(50)}
        assert rows == {data[index] for index in range(50)}
    assert loader_stages(torch_data.DataLoader(data, batch_size=None)) is None
    with pytest.raises(EchoSpecError, match="batch_size"):
        echo.advise(loader, len, batch_size=16)
    with pytest.raises(EchoSpecError, match="stages"):
        echo.advise(torch_data.DataLoader([]), len)


@pytest.mark.extras
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_tells_its_batch_size_and_workers(workers, torch_data):
    loader = torch_data.DataLoader(Images(), batch_size=8, num_workers=workers)
    advice = echo.advise(loader, len, seconds=0.02)
    assert (advice.measured.batch_size, advice.measured.workers) == (8, workers)
    assert advice.warning.startswith("Unstable") or not advice.warning


@pytest.mark.extras
def test_a_data_set_is_measured_as_a_loader_without_workers(torch_data):
    torch = pytest.importorskip("torch")
    data = torch_data.TensorDataset(torch.arange(50), torch.arange(50))
    advice = echo.advise(data, len, batch_size=8, seconds=0.02)
    assert advice.measured.workers == 0
    assert "DataLoader(dataset, 8)" in str(advice)
    with pytest.raises(EchoSpecError, match="batch_size"):
        echo.advise(data, len)


@pytest.mark.extras
def test_the_step_trains_a_copy_of_a_network_and_its_optimizer(torch_data):
    torch = pytest.importorskip("torch")
    network = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    before, losses = network.weight.detach().clone(), []

    def step(model, batch):
        network, optimizer = model
        optimizer.zero_grad()
        loss = network(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    echo.advise([torch.ones(4, 2)] * 2, step, model=(network, optimizer), seconds=0.02)
    assert torch.equal(network.weight, before)
    assert losses[-1] < losses[0]
