"""The forecast recovers known laws, predicts a real optimizer, and says when it does not know."""

import dataclasses
import fractions
import math

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from echo.advice import forecast as forecast_module
from echo.advice.forecast import Forecast, Prior, Run, forecast, fresh_examples_at

FACTORS = (1, 2, 4, 8, 16)
BATCH, TARGET = 32, 0.1


def law_examples(loss, factor, k=1.0, rho=1.8, c=0.2, g=1.2):
    """Fresh examples to a loss: 100 steps and 200 examples at loss 0.2, and a price of repeats."""
    scale = (loss / 0.2) ** -k
    repeats = 1 + c * (32 * factor / BATCH) ** g
    return 200 * scale**rho * repeats + 100 * scale * BATCH / factor


def law_run(factor, until, noise=0.0, seed=0, points=40, **law):
    """A run of `law_examples` whose evaluations are spread evenly up to `until` fresh examples."""
    grid = np.geomspace(3, 1e-3, 4000)
    fresh = np.linspace(until / points, until, points)
    loss = np.exp(np.interp(fresh, law_examples(grid, factor, **law), np.log(grid)))
    loss *= np.exp(noise * np.random.default_rng((seed, factor)).standard_normal(points))
    return Run(factor, fresh, fresh * factor / BATCH, loss)


def pilots(share=0.25, factors=(1, 4, 16), **options):
    until = share * law_examples(TARGET, 1)
    return [law_run(factor, until, **options) for factor in factors]


def test_recovers_a_law_from_a_quarter_of_the_baseline():
    answer = forecast(pilots(), TARGET, batch_size=BATCH)
    for factor in FACTORS:
        cell, truth = answer.cells[factor], law_examples(TARGET, factor)
        assert cell.fresh_examples == pytest.approx(truth, rel=0.25)
        assert cell.fresh_low < truth < cell.fresh_high
    true = {factor: law_examples(TARGET, factor) for factor in FACTORS}
    assert true[answer.factor] <= 1.1 * min(true.values())
    assert sum(cell.best for cell in answer.cells.values()) == pytest.approx(1)


def test_intervals_cover_when_seeds_differ():
    covered = []
    for seed in range(25):
        runs = pilots(noise=0.1, seed=seed)
        cells = forecast(runs, TARGET, batch_size=BATCH).cells
        truth = {factor: law_examples(TARGET, factor) for factor in FACTORS}
        covered += [cells[f].fresh_low <= truth[f] <= cells[f].fresh_high for f in FACTORS]
    assert np.mean(covered) >= 0.9


def plateau_examples(loss, factor):
    """Those of `law_examples`, but a loss between 0.25 and 0.2 takes four times as many steps."""
    below = np.clip(np.log(0.25 / loss), 0, np.log(0.25 / 0.2))
    return law_examples(loss * np.exp(-below * np.log(4) / np.log(0.25 / 0.2)), factor)


def test_a_plateau_carries_over_to_other_factors():
    grid = np.geomspace(3, 0.15, 4000)
    runs = []
    for factor, until in ((4, 0.15), (16, 0.3)):
        fresh = np.geomspace(0.003, 1, 100) * plateau_examples(until, factor)
        loss = np.exp(np.interp(fresh, plateau_examples(grid, factor), np.log(grid)))
        runs.append(Run(factor, fresh, fresh * factor / BATCH, loss))

    def worst(prior):
        cells = forecast(runs, 0.15, batch_size=BATCH, prior=prior).cells
        truth = {factor: plateau_examples(0.15, factor) for factor in FACTORS}
        return max(abs(math.log(cells[e].fresh_examples / truth[e])) for e in FACTORS)

    assert worst(Prior()) < math.log(1.5)
    assert worst(dataclasses.replace(Prior(), bends=0.01)) > math.log(1.8)


def test_a_run_above_the_levels_of_the_others_follows_the_power():
    runs = [law_run(4, law_examples(0.2, 4)), law_run(1, law_examples(1.6, 1))]
    runs.append(law_run(16, law_examples(1.6, 16)))
    answer = forecast(runs, TARGET, batch_size=BATCH)
    for factor in (1, 2, 4):
        truth = law_examples(TARGET, factor)
        assert abs(math.log(answer.cells[factor].fresh_examples / truth)) < math.log(1.7)


def test_the_jacobian_of_the_law_has_its_derivatives():
    rng = np.random.default_rng(0)
    knots, levels = np.linspace(0, 1, 6), rng.uniform(-0.5, 1.5, 12)
    segments = forecast_module._segments(levels, 0.45, knots)
    np.testing.assert_allclose(segments.sum(axis=-1), levels - 0.45)
    density = rng.choice(FACTORS, 12) / BATCH
    parameters = 0.5 * rng.standard_normal(11)
    jacobian = forecast_module._law_jacobian(parameters, segments, density)
    numeric = approx_fprime(parameters, lambda p: forecast_module._law(p, segments, density))
    np.testing.assert_allclose(jacobian, numeric, atol=1e-6)


def test_refuses_a_prior_without_bends():
    with pytest.raises(ValueError, match="bends is 0"):
        Prior(bends=0)


def sgd_run(factor, examples, rate, noise, batch_size=8, dimension=24):
    """Averaged SGD on a linear regression that takes `factor` steps on every fresh batch.

    The loss is the exact excess loss of the population.
    """
    rng = np.random.default_rng(0)
    scales = np.arange(1, dimension + 1) ** -0.5
    truth, weights = rng.standard_normal((2, dimension))
    average, fresh, losses = weights.copy(), [], []
    for batch in range(1, examples // batch_size + 1):
        inputs = scales * rng.standard_normal((batch_size, dimension))
        labels = inputs @ truth + noise * rng.standard_normal(batch_size)
        for _ in range(factor):
            weights = weights - rate * inputs.T @ (inputs @ weights - labels) / batch_size
            average += 0.05 * (weights - average)
        if batch % 4 == 0:
            fresh.append(batch * batch_size)
            losses.append(np.sum((scales * (average - truth)) ** 2))
    return Run(factor, fresh, np.array(fresh) * factor / batch_size, losses)


def cut(run, until):
    points = int(np.sum(run.fresh_examples <= until))
    return Run(run.factor, run.fresh_examples[:points], run.steps[:points], run.loss[:points])


def sgd_forecast(target, rate, noise):
    """(forecast from a quarter of the baseline, fresh examples that each factor really takes)."""
    runs = {factor: sgd_run(factor, 2400, rate, noise) for factor in FACTORS}
    true = {factor: fresh_examples_at(run, target) for factor, run in runs.items()}
    pilots = [cut(runs[factor], true[1] / 4) for factor in (1, 4, 16)]
    return forecast(pilots, target, batch_size=8), true


def test_predicts_sgd_that_repeats_its_batches():
    answer, true = sgd_forecast(0.1, rate=0.12, noise=0.5)
    for factor in (1, 2, 4, 8):  # e = 16 reached the target in its pilot
        assert abs(math.log(answer.cells[factor].fresh_examples / true[factor])) < math.log(1.35)
    assert true[answer.factor] == min(true.values())
    assert answer.regret < 1.1
    assert not answer.caveat


def test_doubts_when_repeats_become_harmful_after_the_pilots():
    answer, true = sgd_forecast(0.3, rate=0.3, noise=1.0)
    assert true[16] > 4 * true[8]  # although e = 16 leads until the pilots end
    assert answer.factor != 16 or answer.caveat.startswith("e = 16 may take")


def test_seconds_decide_between_factors():
    upstream = {e: BATCH / e for e in FACTORS}  # a fresh example takes a second, repeats nothing
    limited = {e: max(BATCH / e, BATCH / 2) for e in FACTORS}  # R = 2
    answers = [
        forecast(pilots(), TARGET, batch_size=BATCH, step_seconds=seconds)
        for seconds in (upstream, limited)
    ]
    assert answers[0].factor > answers[1].factor == 2
    for cell in answers[0].cells.values():
        assert cell.seconds == pytest.approx(cell.fresh_examples, rel=1e-6)


def test_a_factor_given_as_a_fraction_is_that_of_its_float():
    fraction = fractions.Fraction(4, 3)
    run = law_run(1, 2 * law_examples(TARGET, 1))  # reaches the target
    run = dataclasses.replace(run, steps=run.fresh_examples * 4 / 3 / BATCH)
    answers = [
        forecast(
            [*pilots(), dataclasses.replace(run, factor=factor)],
            TARGET,
            batch_size=BATCH,
            step_seconds={1: 1.0, factor: 0.75, 4: 0.25},
        )
        for factor in (4 / 3, fraction)
    ]
    assert answers[0] == answers[1]
    assert answers[1].cells[4 / 3].observed


def buffered(run, examples):
    """The run behind a shuffle buffer that holds so many examples, copies included."""
    return dataclasses.replace(run, fresh_examples=run.fresh_examples + examples / run.factor)


def test_a_buffer_delays_each_factor_by_the_fresh_examples_that_it_holds():
    """No step is taken meanwhile: the seconds are those of the input, here of 0.01 per example."""
    given = {"batch_size": BATCH, "step_seconds": dict.fromkeys(FACTORS, 0.5)}
    given["input_seconds"] = 0.01
    plain = forecast(pilots(), TARGET, **given)
    shifted = [buffered(run, 256) for run in pilots()]
    delayed = forecast(shifted, TARGET, **given)
    for factor in FACTORS:  # no pilot has e = 2 or 8
        expected = plain.cells[factor].fresh_examples + 256 / factor
        assert delayed.cells[factor].fresh_examples == pytest.approx(expected, rel=1e-3)
        seconds = plain.cells[factor].seconds + 0.01 * 256 / factor
        assert delayed.cells[factor].seconds == pytest.approx(seconds, rel=1e-3)
    without = forecast(shifted[1:], TARGET, batch_size=BATCH).cells[1]  # no echoing, no buffer
    unshifted = forecast(pilots()[1:], TARGET, batch_size=BATCH).cells[1]
    assert without.fresh_examples == pytest.approx(unshifted.fresh_examples, rel=1e-3)


def test_where_the_input_limits_training_a_fresh_example_takes_its_time_in_the_buffer_too():
    """By default, the input's time follows from the step that waits for it."""
    runs = [buffered(run, 3_000) for run in pilots()]
    of_example = forecast(runs, TARGET, batch_size=BATCH)
    of_batch = {e: BATCH / e for e in FACTORS}  # a fresh example takes a second
    for given in ({}, {"input_seconds": 1.0}):
        answer = forecast(runs, TARGET, batch_size=BATCH, step_seconds=of_batch, **given)
        for factor, cell in answer.cells.items():
            assert cell.seconds == pytest.approx(of_example.cells[factor].seconds, rel=1e-6)


def test_the_target_takes_longer_than_the_longest_run_that_missed_it():
    """Here a run levels off, and a shorter one beside it does not show that."""
    until = law_examples(TARGET, 1)
    level = law_run(4, 3 * until)
    level = dataclasses.replace(level, loss=np.maximum(level.loss, 1.01 * TARGET))
    runs = [law_run(1, until / 4), law_run(4, until / 8), level]
    for order in (runs, runs[::-1]):
        answer = forecast(order, TARGET, batch_size=BATCH)
        assert answer.cells[4].fresh_low >= level.fresh_examples[-1] * (1 - 1e-9)


def test_a_run_that_is_late_stays_late():
    """Also if the factors beside it say otherwise: then no law fits all three."""
    late = law_run(8, 0.15 * law_examples(TARGET, 1))
    late = dataclasses.replace(late, fresh_examples=3 * late.fresh_examples, steps=3 * late.steps)
    assert late.loss.min() > TARGET

    def forecasts(*others):
        answer = forecast([*pilots(share=0.5), *others], TARGET, batch_size=BATCH)
        return answer.cells[4].fresh_examples, answer.cells[8].fresh_examples

    (beside, own), (plain, _) = forecasts(late), forecasts()
    assert own > 1.9 * beside  # the law has them within a tenth of each other
    assert beside < 1.5 * plain


def test_how_late_a_run_is():
    on_time = law_run(4, 0.25 * law_examples(TARGET, 1))
    runs = [law_run(1, on_time.fresh_examples[-1]), on_time, law_run(16, 500)]
    fit = forecast_module.Fit.to(runs, TARGET, BATCH, Prior())

    def deviation(*shares, target=TARGET, of=on_time):
        changed = [
            dataclasses.replace(of, fresh_examples=x * of.fresh_examples, steps=x * of.steps)
            for x in shares
        ]
        return fit.deviation(changed, of.factor, target)

    assert deviation(2.0) > 0.1 > abs(deviation(1.0))
    assert deviation(0.5) < -0.1
    assert deviation(2.0, 1.0) == pytest.approx((deviation(2.0) + deviation(1.0)) / 2)
    shorter = law_run(4, 0.1 * law_examples(TARGET, 1))
    assert 0 < deviation(2.0, of=shorter) < deviation(2.0)  # it has longer to go
    assert deviation(2.0, target=on_time.loss.min()) == 0  # it has arrived
    stuck = np.minimum.accumulate(np.r_[on_time.loss, np.full(40, on_time.loss.min())])
    steps = np.r_[on_time.steps, on_time.steps[-1] + on_time.steps]
    waited = Run(4, steps * BATCH / 4, steps, stuck)
    assert deviation(1.0, of=waited) == pytest.approx(deviation(2.0), rel=0.01)
    assert fit.deviation(runs, 2, TARGET) == 0  # no pilot


def test_an_evaluation_before_the_first_step_is_no_point_of_the_curve():
    """The fresh examples that it has beyond the buffer's are a fraction of a batch."""
    runs = [buffered(run, 256) for run in pilots()]
    steps = np.arange(0, 60, 6)
    losses = np.linspace(2.3, 2.4, 10)  # rising: the first one is the lowest
    fresh = np.ceil(256 / 3 + steps * BATCH / 3)
    cells = [
        forecast([*runs, Run(3, fresh[k:], steps[k:], losses[k:])], TARGET, batch_size=BATCH).cells
        for k in (0, 1)
    ]
    for factor in (1, 4, 16):
        first, later = (cell[factor].fresh_examples for cell in cells)
        assert first == pytest.approx(later, rel=0.35)


def test_a_factor_that_reached_the_target_is_observed():
    runs = [*pilots(), law_run(4, 1.1 * law_examples(TARGET, 4))]
    answer = forecast(runs, TARGET, batch_size=BATCH)
    assert [factor for factor, cell in answer.cells.items() if cell.observed] == [4]
    assert answer.cells[4].fresh_examples == pytest.approx(law_examples(TARGET, 4), rel=0.02)


def test_a_seed_that_missed_the_target_counts_beside_one_that_reached_it():
    """A seed that had not reached the target when the other had makes the forecast later."""
    until = law_examples(TARGET, 4)
    lucky = law_run(4, 1.1 * until)
    slow = law_run(4, 2.0 * until)
    slow = dataclasses.replace(slow, loss=np.maximum(slow.loss, 1.2 * TARGET))
    behind = law_run(4, 0.5 * until)  # as good so far: it says nothing about the end

    def expected(*others):
        runs = [*pilots(factors=(1, 16)), lucky, *others]
        return forecast(runs, TARGET, batch_size=BATCH).cells[4]

    assert expected(behind).fresh_examples == pytest.approx(expected().fresh_examples, rel=0.02)
    assert expected(slow).observed
    assert expected(slow).fresh_examples >= math.sqrt(1.9) * expected().fresh_examples


def test_an_evaluation_before_training_changes_nothing():
    first = law_run(16, 1e5, points=10)
    early = Run(16, [0, *first.fresh_examples], [0, *first.steps], [3.0, *first.loss])
    assert first.loss[0] <= TARGET  # so there is no point to interpolate from
    assert fresh_examples_at(early, TARGET) == fresh_examples_at(first, TARGET)
    answer = forecast([*pilots(factors=(1, 4)), early], TARGET, batch_size=BATCH)
    assert np.isfinite(answer.cells[16].fresh_examples)


def test_the_next_pilot_is_the_best_guess_until_it_has_arrived():
    answer = forecast(pilots(), TARGET, batch_size=BATCH)
    assert answer.next_factor == answer.factor
    everything = [law_run(f, 1.1 * law_examples(TARGET, f)) for f in FACTORS]
    assert forecast(everything, TARGET, batch_size=BATCH).next_factor is None


def resting(factor):
    """A run whose loss has not begun to fall."""
    fresh = np.linspace(50, 500, 10)
    return Run(factor, fresh, fresh * factor / BATCH, np.linspace(1.0, 0.99, 10))


def test_says_when_the_evidence_is_not_enough():
    def caveat(runs, **options):
        answer = forecast(runs, TARGET, batch_size=BATCH, **options)
        assert ("Not enough evidence" in str(answer)) == bool(answer.caveat)
        return answer.caveat

    assert "fewer than two factors" in caveat(pilots(factors=(4,)))
    assert "no pilot repeats as much" in caveat(pilots(factors=(1, 2)), factors=[4])
    assert "may take" in caveat(pilots(share=0.06, noise=0.3))
    hardly_begun = [resting(factor) for factor in (1, 4, 16)]
    assert "beyond the first 50% of the way" in caveat(hardly_begun)
    diverged = law_run(8, 0.5 * law_examples(TARGET, 1))
    diverged.loss[-1] = np.nan
    assert "beyond the first 50% of the way" in caveat([*hardly_begun, diverged])
    assert not caveat(pilots(share=0.5))


def begun(factor, share):
    """A run up to a share of the way to the target."""
    law = {"rho": 0.5, "c": 0.05}
    run = law_run(factor, law_examples(TARGET, factor, **law), points=200, **law)
    points = np.sum(run.loss > TARGET * (run.loss[0] / TARGET) ** (1 - share))
    return Run(factor, run.fresh_examples[:points], run.steps[:points], run.loss[:points])


def test_a_quick_start_is_not_enough_evidence():
    step_seconds = {factor: BATCH / factor * max(1, factor / 6) for factor in FACTORS}
    for share, enough in ((0.45, False), (0.6, True)):
        runs = [begun(factor, share) for factor in (1, 2, 4, 16)]
        answer = forecast(runs, TARGET, batch_size=BATCH, step_seconds=step_seconds)
        assert answer.regret <= forecast_module.MAX_REGRET
        assert ("beyond the first 50% of the way" in answer.caveat) != enough


def test_a_factor_whose_pilot_diverged_is_not_recommended():
    runs = pilots(factors=(1, 4))
    best = forecast(pilots(), TARGET, batch_size=BATCH).factor
    broken = law_run(best, 500)
    broken.loss[-1] = np.nan
    answer = forecast([*[r for r in runs if r.factor != best], broken], TARGET, batch_size=BATCH)
    assert best not in answer.cells
    assert answer.factor != best


def test_prior_can_be_replaced():
    runs = pilots(share=0.02, noise=0.05)
    sure = Prior(mean=(0.0, math.log(200 / 3200), math.log(1.8), math.log(0.2), math.log(1.2)))
    sure = dataclasses.replace(sure, sd=(0.05,) * 5)
    wide, narrow = (
        forecast(runs, TARGET, batch_size=BATCH, prior=prior).cells[8] for prior in (None, sure)
    )
    assert narrow.fresh_high / narrow.fresh_low < 0.7 * wide.fresh_high / wide.fresh_low


GOOD = ([32, 64], [1, 2], [2.0, 1.5])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (([32], [1, 2], [2.0, 1.5]), "fresh_examples 1, steps 2, loss 2"),
        (([[32]], [1], [2.0]), r"shape \(1, 1\)"),
        (([64, 32], [1, 2], [2.0, 1.5]), "fresh_examples decreases"),
        (([32, math.inf], [1, 2], [2.0, 1.5]), "fresh_examples is not finite"),
        (([32, 64], [1, math.nan], [2.0, 1.5]), "steps is not finite"),
        (([32, 64], [1, 2], [2.0, 0.0]), "loss is 0 at a point"),
    ],
)
def test_refuses_arrays_that_are_no_curve(arrays, message):
    Run(1, *GOOD)
    with pytest.raises(ValueError, match=message):
        Run(1, *arrays)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"runs": []}, "runs is empty"),
        ({"factors": []}, "factors is .*at least one number"),
        ({"factors": [0.5]}, "factors is 0.5"),
        ({"step_seconds": {1: 0.1, 4: 0.0}}, "step_seconds is 0.0"),
        ({"step_seconds": {"4": 0.1}}, "a factor in step_seconds is '4'"),
        ({"target": -1.0}, "target is -1.0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"runs": [Run(1, [0], [0], [2.0])]}, "usable points"),
        ({"runs": [Run(1, *GOOD[:2], [2.0, math.inf])], "factors": [1]}, "all factors diverged"),
    ],
)
def test_refuses_wrong_arguments_with_one_sentence(changed, message):
    arguments = {"runs": pilots(), "target": TARGET, "batch_size": BATCH} | changed
    with pytest.raises(ValueError, match=message):
        forecast(**arguments)


@pytest.mark.parametrize(
    ("fresh", "steps"),
    [
        ([1280, 2560], [40, 80]),  # copies counted
        ([10, 20], [40, 80]),  # batches counted
        ([320, 640], [40_000, 80_000]),  # another batch size
    ],
)
def test_refuses_examples_that_do_not_fit_the_steps(fresh, steps):
    losses = [2.0, 1.9]
    forecast([Run(4, [320, 640], [40, 80], losses)], TARGET, batch_size=32)
    forecast([Run(4, [10_320, 10_640], [40, 80], losses)], TARGET, batch_size=32)  # a buffer
    # a buffer of 3,200: here, fresh examples happen to be outputs
    forecast([Run(2, [3_200, 3_216], [100, 101], losses)], TARGET, batch_size=32)
    with pytest.raises(ValueError, match=r"fresh_examples ends at .* count an example once"):
        forecast([Run(4, fresh, steps, losses)], TARGET, batch_size=32)


def test_doubts_an_accuracy_in_place_of_a_loss():
    fresh = np.arange(100, 1_100, 100)
    accuracy = np.linspace(0.1, 0.8, 10)
    runs = [Run(e, fresh, fresh * e / 32, accuracy) for e in (4, 16)]
    answer = forecast(runs, 0.95, batch_size=32)
    assert "every pilot had reached the target at its first evaluation" in answer.caveat
    assert "Not enough evidence" in str(answer)


def test_iterators_are_read_once():
    runs = pilots()
    given = (
        Run(run.factor, iter(run.fresh_examples), map(float, run.steps), (x for x in run.loss))
        for run in runs
    )
    answer = forecast(given, TARGET, batch_size=BATCH, factors=iter(FACTORS))
    assert answer == forecast(runs, TARGET, batch_size=BATCH)


def test_the_report_has_a_line_for_each_factor():
    answer = forecast(pilots(), TARGET, batch_size=BATCH)
    assert isinstance(answer, Forecast)
    lines = str(answer).splitlines()
    assert [float(line.split()[0]) for line in lines[1 : 1 + len(FACTORS)]] == list(FACTORS)
    assert sum(line.endswith("*") for line in lines) == 1


def test_a_larger_factor_keeps_up_with_the_one_that_is_extended():
    """It shows what repeats cost; and on a plateau, which it leaves first, it looks hopeless."""
    long = law_run(1, 0.5 * law_examples(TARGET, 1))

    def resting(factor, share):
        fresh = np.linspace(32, share * long.fresh_examples[-1], 4)
        return Run(factor, fresh, fresh * factor / BATCH, [3.0, 0.26, 0.255, 0.25])

    def extended(*others):
        runs = [long, *others]
        factors = {run.factor for run in runs}
        answer = forecast(runs, TARGET, batch_size=BATCH, factors=factors)
        return answer.factor, answer.next_factor

    assert extended(resting(16, 0.6)) == (1, 16)
    assert extended(resting(16, 1.1))[1] != 16
    # two seeds have taken these seconds together
    assert extended(resting(16, 0.6), resting(16, 0.6))[1] != 16
    assert extended(resting(16, 0.3), resting(8, 0.6))[1] == 16  # the shortest comes first
    assert extended(resting(16, 0.6), resting(8, 0.3))[1] == 8


def test_a_smaller_factor_may_stay_behind():
    short, long = law_run(1, 0.1 * law_examples(TARGET, 1)), law_run(4, law_examples(0.11, 4))
    answer = forecast([short, long], TARGET, batch_size=BATCH)
    assert (answer.factor, answer.next_factor) == (4, 4)


@pytest.mark.parametrize("drop", [0.003, 0.01, 0.02])
def test_a_plateau_is_no_clear_answer(drop):
    """The law then predicts more fresh examples than a float can hold."""
    evaluations = np.arange(1, 6)
    runs = [
        Run(e, evaluations * 8 * BATCH / e, evaluations * 8, 2.3 - drop * evaluations)
        for e in (4, 16)
    ]
    answer = forecast(runs, 0.02, batch_size=BATCH)
    assert answer.caveat
    assert "> 1e12 times" in forecast_module._caveat(pilots(), TARGET, set(), 4, 1e300)
    assert answer.next_factor is not None
    assert "> 1e12" in str(answer)
    cells = answer.cells.values()
    assert all(math.isfinite(number) for cell in cells for number in dataclasses.astuple(cell))
