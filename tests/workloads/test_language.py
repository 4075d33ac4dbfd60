"""Tests of the language workload: its loss by hand, padding, memory, optimizers, whole runs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import train
from configs import coco, common_crawl, lm1b
from data.splits import open_splits
from models.transformer import Transformer
from runs import records
from tests.helpers.runs import SMALL_TEXT, echoing, shrunk
from tests.helpers.tfds_data import write_text
from training import optimizer
from training.evaluate import open_test_split
from training.experiment import held_out_batches, make_experiment
from workloads.language import LanguageModel, positions_at_once, total_cross_entropy
from workloads.networks import Network

SIZES = {"num_layers": 1, "model_dim": 16, "num_heads": 2, "mlp_dim": 24}
TEXTS = ([1, 5, 9, 7, 2], [1, 30, 2], [1, 4, 4, 4, 39, 8, 11, 25, 6], [])


def language_model(length=8, vocab_size=40, **sizes):
    network = Network.of(Transformer, vocab_size=vocab_size, **SIZES | sizes)
    return LanguageModel(length, network)


def batch(workload, texts=TEXTS):
    return workload.decode([{"tokens": np.asarray(t, np.int32)} for t in texts])


@pytest.fixture(scope="module")
def model():
    return nnx.jit(lambda: language_model().model(nnx.Rngs(0)))()


@functools.cache
def compiled(workload):
    """The workload's loss with gradients and its evaluation, as functions of (parameters, data)."""
    graphdef = nnx.graphdef(nnx.eval_shape(lambda: workload.model(nnx.Rngs(0))))

    def loss(parameters, data):
        return workload.loss(nnx.merge(graphdef, parameters, copy=True), data)[0]

    def evaluate(parameters, data, mask_B):
        return workload.evaluate(nnx.merge(graphdef, parameters, copy=True), data, mask_B)

    return jax.jit(jax.value_and_grad(loss)), jax.jit(evaluate)


def loss_and_gradients(workload, model, data):
    return compiled(workload)[0](nnx.state(model), data)


def test_rows_are_padded_and_targets_are_the_next_tokens():
    tokens = batch(language_model())["tokens"]
    assert (tokens.shape, tokens.dtype) == ((4, 9), np.int32)
    assert tokens[1].tolist() == [1, 30, 2, 0, 0, 0, 0, 0, 0]
    assert not tokens[3].any()


def test_the_loss_by_hand(model):
    """-log of the softmax's share of each real next token, in float64, one token at a time."""
    workload = language_model()
    tokens = batch(workload)["tokens"]
    logits_BxLxV = np.asarray(nnx.jit(lambda m, t: m(t))(model, tokens[:, :-1]))
    losses = []
    for text, logits_LxV in zip(TEXTS, logits_BxLxV.astype(np.float64), strict=True):
        for following, logits_V in zip(text[1:], logits_LxV, strict=False):
            losses.append(np.log(np.exp(logits_V).sum()) - logits_V[following])
    loss, _ = loss_and_gradients(workload, model, batch(workload))
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-5)
    assert len(losses) == 4 + 2 + 8


def test_a_model_that_knows_nothing_has_the_logarithm_of_the_vocabulary(model):
    workload = language_model()
    nothing = jax.tree.map(jnp.zeros_like, nnx.state(model))
    outputs = compiled(workload)[1](nothing, batch(workload), np.ones(4, np.float32))
    metrics = workload.summarize([jax.device_get(outputs)])
    assert metrics["loss"] == pytest.approx(np.log(40), rel=1e-6)
    assert metrics["perplexity"] == pytest.approx(40, rel=1e-5)


def test_padding_changes_neither_loss_nor_gradients(model):
    short, long = language_model(8), language_model(13)
    one = loss_and_gradients(short, model, batch(short))
    other = loss_and_gradients(long, model, batch(long, (*TEXTS, [])))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other)


def test_nothing_but_padding_is_a_loss_of_zero(model):
    workload = language_model()
    loss, gradients = loss_and_gradients(workload, model, batch(workload, ([],) * 4))
    assert loss == 0
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))


def test_metrics_are_over_all_tokens_of_a_split(model):
    """Batches with many and few tokens, and rows that only fill a batch up."""
    workload, evaluate = language_model(), compiled(language_model())[1]
    whole = jax.device_get(evaluate(nnx.state(model), batch(workload), np.ones(4, np.float32)))
    experiment = []
    for rows in ((0, 1), (2, 3), ()):
        filled = [TEXTS[row] for row in rows] + [TEXTS[0]] * (4 - len(rows))
        mask_B = np.arange(4) < len(rows)
        outputs = evaluate(nnx.state(model), batch(workload, filled), mask_B.astype(np.float32))
        experiment.append(jax.device_get(outputs))
    assert [part["tokens"] for part in (whole, *experiment)] == [14, 6, 8, 0]
    loss = workload.summarize([whole])["loss"]
    assert workload.summarize(experiment)["loss"] == pytest.approx(loss, rel=1e-6)
    with pytest.raises(ValueError, match="no tokens to predict"):
        workload.summarize(experiment[2:])


def test_grouped_logits_give_the_plain_loss_and_gradients(model):
    graphdef, parameters = nnx.split(model)
    hidden_BxLxD = jax.random.normal(jax.random.key(0), (4, 8, 16))
    targets_BxL = batch(language_model())["tokens"][:, 1:]
    mask_BxL = (targets_BxL != 0).astype(np.float32)

    def grouped(parameters, hidden_BxLxD, chunk):
        model = nnx.merge(graphdef, parameters, copy=True)
        return total_cross_entropy(model, hidden_BxLxD, targets_BxL, mask_BxL, chunk).sum()

    def plain(parameters, hidden_BxLxD, _):
        logits_BxLxV = nnx.merge(graphdef, parameters, copy=True).logits(hidden_BxLxD)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits_BxLxV, targets_BxL)
        return (losses * mask_BxL).sum()

    def run(function, chunk):
        run = jax.jit(jax.value_and_grad(function, argnums=(0, 1)), static_argnums=2)
        return run(parameters, hidden_BxLxD, chunk)

    expected = run(plain, 8)
    for chunk in (8, 4, 3, 1):  # 3 does not divide the 8 positions
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
            expected,
            run(grouped, chunk),
        )


def test_full_size_logits_are_never_in_memory_at_once():
    sizes = [(1024, 256), (1024, 257), (1024, 127), (1024, 7), (1024, 9), (10**6, 64)]
    # 9 positions are 5 + 5 with one padded, not 8 + 8 with 7
    assert [positions_at_once(*size, 32_000) for size in sizes] == [8, 8, 8, 7, 5, 1]
    assert positions_at_once(32, 64, 512) == 64
    workload = language_model(64, 8000, model_dim=8, num_heads=1, mlp_dim=8)
    model = nnx.eval_shape(lambda: workload.model(nnx.Rngs(0)))
    graphdef, parameters = nnx.split(model)

    def held(chunk):
        def loss(parameters, tokens_BxL):
            model = nnx.merge(graphdef, parameters, copy=True)
            hidden_BxLxD = model.hidden(tokens_BxL)
            ones = jnp.ones(tokens_BxL.shape)
            return total_cross_entropy(model, hidden_BxLxD, tokens_BxL, ones, chunk).sum()

        tokens = jax.ShapeDtypeStruct((8, 64), jnp.int32)
        compiled = jax.jit(jax.grad(loss)).lower(parameters, tokens).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    all_logits = 8 * 64 * 8000 * 4
    assert held(64) > all_logits
    assert held(8) < all_logits / 2


def test_schedules_match_optax_and_the_detectors_steps():
    schedule = lm1b.get_config("mini").optimizer.schedule
    schedule.name, schedule.warmup_progress, schedule.final_factor = "cosine", 0.1, 0.05
    theirs = optax.warmup_cosine_decay_schedule(0.0, 1.0, 20, 200, end_value=0.05)
    for step in range(0, 201, 5):
        ours = optimizer.schedule_factor(schedule, step / 200)
        assert ours == pytest.approx(float(theirs(step)), abs=1e-6)
    schedule.name = "constant"
    assert [optimizer.schedule_factor(schedule, p) for p in (0, 0.05, 0.5)] == [0, 0.5, 1]
    schedule = coco.get_config().optimizer.schedule
    schedule.warmup_progress, schedule.step_factor = 0.1, 0.1
    schedule.first_step_progress, schedule.second_step_progress = 0.6, 0.8
    at = [0.0, 0.05, 0.1, 0.59, 0.6, 0.79, 0.8, 1.0]
    factors = [optimizer.schedule_factor(schedule, progress) for progress in at]
    np.testing.assert_allclose(factors, [0, 0.5, 1, 1, 0.1, 0.1, 0.01, 0.01])


# The shipped minis, shrunk to a run of seconds.
SMALL = SMALL_TEXT | {
    "budget.fresh_examples": 320,
    "evaluate_every_fresh_examples": 160,
    "checkpoint_every_fresh_examples": 0,
}


def test_echoing_at_every_insertion_point(tmp_path):
    buffers = {"before_augmentation": 64, "after_augmentation": 64, "after_batching": 8}
    runs = []
    for insertion, buffer in ({"none": 0} | buffers).items():
        config = shrunk(lm1b, SMALL, echoing(insertion, buffer, factor=2))
        result = train.train(config, tmp_path / insertion)
        assert result["status"] == "exhausted", result
        assert result["fresh_examples"] == 320
        assert result["step"] == (10 if insertion == "none" else 20)
        rows = records.read_metrics(tmp_path / insertion)
        steps, evaluated = (
            [r["loss"] for r in rows if r["split"] == s] for s in ("train", "validation")
        )
        assert steps[0] == pytest.approx(np.log(200), rel=0.2)
        assert evaluated[-1] < evaluated[0]
        runs.append((steps, evaluated))
    # Text has no augmentation, so both insertion points around it give the same batches.
    assert runs[1] == runs[2] != runs[3]


@pytest.mark.parametrize("module", [lm1b, common_crawl])
def test_a_test_split_of_text_is_cut_by_the_vocabulary_of_the_training_split(module, tmp_path):
    texts = [b"echo what a slow pipeline has read %d times" % number for number in range(40)]
    write_text(tmp_path, "tiny", {"train": texts, "validation": texts[:9], "test": texts[5:26]})
    fields = {"dataset__name": "tiny", "dataset__data_dir": str(tmp_path)}
    fields |= {f"dataset__{name}_split": name for name in ("train", "validation", "test")}
    prepared = make_experiment(shrunk(module, SMALL, fields | {"dataset__vocabulary_size": 33}))
    held_out = open_test_split(prepared.config)
    batches = held_out_batches(prepared.config, held_out, prepared.program)
    shown = [data["tokens"][mask == 1] for data, mask in batches]
    train_source, _, _ = open_splits(prepared.config.dataset)
    windows = len(train_source) // 40  # of each text: they are equally long, or nearly so
    first = train_source.__getitems__(range(5 * windows, 5 * windows + windows))
    wanted = prepared.program.task.workload.decode(first)["tokens"]
    np.testing.assert_array_equal(np.concatenate(shown)[:windows], wanted)
    if module is lm1b:
        assert sum(map(len, shown)) == 21
