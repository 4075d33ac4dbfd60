"""`echo.watch`: the same batches, and the truth about a loop whose times are known."""

import gc
import io
import json
import weakref

import numpy as np
import pytest

import echo
from echo import waiting


class Clock:
    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    return clock


class Loader:
    """Takes `seconds` per batch; one that reads `ahead` has up to two ready when it is asked."""

    num_workers = None

    def __init__(self, clock, n, seconds, ahead=False):
        self.clock, self.n, self.seconds, self.ahead = clock, n, seconds, ahead

    def __len__(self):
        return self.n

    def __iter__(self):
        ready_at = self.clock.now + self.seconds
        for i in range(self.n):
            if self.ahead:
                ready_at = max(ready_at, self.clock.now - self.seconds)
                self.clock.now = max(self.clock.now, ready_at)
                ready_at += self.seconds
            else:
                self.clock.now += self.seconds
            yield np.full(4, i)


def trained(loader, clock, step, replay=0, pause_every=0):
    """Watches a loop whose steps take `step`; returns the report, and the batches that came."""
    watched, seen = echo.watch(loader, replay=replay), []
    for batch in watched:
        seen.append(int(batch[0]))
        clock.now += step
        if pause_every and len(seen) % pause_every == 0:
            clock.now += 1000 * step
    return watched.report, seen


@pytest.mark.parametrize("ratio", [0.5, 2, 4, 8])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_replay_tells_the_ratio(clock, ratio, ahead):
    loader = Loader(clock, 1000, 0.01 * ratio, ahead)
    report, seen = trained(loader, clock, 0.01, replay=16)
    first = [number for i, number in enumerate(seen) if number not in seen[:i]]
    assert first == list(range(1000))
    assert len(seen) == 1000 + report.repeated
    slower = max(ratio, 1) if ahead else ratio + 1
    assert report.waited == pytest.approx(1 - 1 / slower, abs=0.01)
    if report.waited:  # otherwise a loader that reads ahead shows only that it is fast enough
        assert report.ratio == (pytest.approx(ratio, rel=0.02),) * 2
        assert report.factor == max(1, round(ratio))


@pytest.mark.parametrize("ahead", [False, True])
def test_without_a_replay_nothing_changes_and_the_ratio_has_a_range(clock, ahead):
    loader = Loader(clock, 200, 0.04, ahead)
    report, seen = trained(loader, clock, 0.01, pause_every=40)
    assert seen == list(range(200))
    low, high = report.ratio
    assert low - 0.01 <= 4 <= high + 0.01
    # evaluations do not count
    assert report.seconds == pytest.approx((0.04 if ahead else 0.05) * report.steps, rel=0.01)
    assert json.loads(report.to_json())["waited"] == report.waited


@pytest.mark.parametrize("ratio", [0.5, 2, 8])
def test_a_replay_sees_the_step_of_a_device_that_computes_behind_the_loop(
    clock, ratio, monkeypatch
):
    done_at = 0.0  # the device's last step

    def synchronized():
        clock.now = max(clock.now, done_at)

    monkeypatch.setattr(waiting, "_synchronize", synchronized)
    watched = echo.watch(Loader(clock, 200, 0.01 * ratio, ahead=True), replay=16)
    for _ in watched:
        done_at = max(clock.now, done_at) + 0.01
        clock.now = max(clock.now + 1e-4, done_at - 0.05)  # it takes five steps ahead
    assert watched.report.step_seconds == (pytest.approx(0.01, rel=0.03),) * 2
    if ratio > 1:
        assert watched.report.ratio == (pytest.approx(ratio, rel=0.05),) * 2


@pytest.mark.parametrize("steps", [50, 101])
def test_a_loop_that_ends_or_is_left_shows_its_box_and_releases_the_loader(clock, capsys, steps):
    watched = echo.watch(loader := Loader(clock, 100, 0.04))
    for _ in zip(range(steps), watched, strict=False):
        clock.now += 0.01
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) <= 6
    assert "80%" in lines[0]
    alive = weakref.ref(loader)
    del loader, watched
    gc.collect()
    assert alive() is None


def test_a_loop_outlives_its_terminal(clock, monkeypatch):
    with io.StringIO() as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
    assert trained(Loader(clock, 100, 0.04), clock, 6)[1] == [*range(100)]  # some boxes are due


@pytest.mark.parametrize(
    ("ratio", "ahead", "workers", "idle", "named"),
    [
        (0.8, False, 0, 4, "num_workers=1."),  # then it keeps up
        (2.9, False, 0, 4, "num_workers=3:"),
        (2.9, False, 0, 2, "num_workers=2:"),
        (1.2, True, 2, 4, "num_workers=3:"),
        (1.2, True, 2, 0, "Little"),
        (2.9, True, 2, 9, "num_workers=6:"),
    ],
)
def test_the_box_says_what_to_do(clock, monkeypatch, ratio, ahead, workers, idle, named):
    monkeypatch.setattr(waiting.Watched, "idle_cores", idle)
    loader = Loader(clock, 1000, 0.01 * ratio, ahead)
    loader.num_workers = workers
    for replay in (16, 0):
        box = str(trained(loader, clock, 0.01, replay)[0])
        assert named in box
        assert ("factor 3" in box) == (ratio > 2)


def test_all_else_is_that_of_the_loader(clock):
    loader = Loader(clock, 7, 0.0)
    loader.state_dict, loader.num_workers = lambda: {"position": 3}, 2
    watched = echo.watch(loader)
    assert (len(watched), watched.num_workers, watched.state_dict()) == (7, 2, {"position": 3})
    with pytest.raises(TypeError, match="int"):
        echo.watch(3)
    with pytest.raises(echo.EchoSpecError, match="replay"):
        echo.watch(loader, replay=-1)
