"""What must not change a score, and what must."""

import numpy as np
import pytest
import torch
from wirescope.data import Prompt
from wirescope.extract import attribution, edges
from wirescope.extract.attribution import Attributor, Batch, Means
from wirescope.extract.exact import Exact
from wirescope.extract.taps import Tape
from wirescope.graphs import Inputs, Shape, Wiring

LEVELS = ("edge", "head", "attention")
METHODS = ("eap", "eap-ig", "exact")


def score(model, prompts, method="eap-ig", levels=LEVELS, metric="logit_diff", merged=False, **options):
    shape = model.shape
    if merged:
        shape = Shape(shape.layers, shape.heads, shape.kv_heads, shape.parallel, Inputs.MERGED)
    batch = Batch(prompts, model.parts, metric)
    if method == "exact":
        rows = options.pop("rows", 16)
        return Exact(model.taps, Wiring(shape), levels=levels, **options)(batch, rows)
    steps = 3 if method == "eap-ig" else None
    return Attributor(model.taps, Wiring(shape), levels=levels, steps=steps, **options)(batch)


def values(scores) -> list[np.ndarray]:
    """Every number of each prompt, by prompt."""
    return [
        np.concatenate(
            [
                x.ravel()
                for x in (one.edge, one.head, one.attention and one.attention[0].score)
                if x is not None
            ]
        )
        for one in scores.by_prompt()
    ]


def same(ours, theirs, tolerance=2e-5) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert np.abs(b).max() > 1e-3
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max())


@pytest.mark.parametrize("method", ["eap", "eap-ig"])
def test_a_prompt_scores_the_same_alone_and_padded_in_a_batch(family, models, prompts, method):
    together = values(score(models[family], prompts, method))
    alone = [values(score(models[family], [prompt], method))[0] for prompt in prompts]
    same(together, alone)


def test_the_order_of_prompts_does_not_matter(family, models, prompts):
    same(values(score(models[family], prompts[::-1])), values(score(models[family], prompts))[::-1])


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [(edges, "_CHUNK_ROWS", 2), (edges, "_GROUP_SLOTS", 1), (attribution, "_WORTH_SHARING", 10.0)],
)
def test_chunks_groups_and_shared_prefixes_do_not_matter(
    family, models, prompts, module, name, value, monkeypatch
):
    before = values(score(models[family], prompts, levels=("edge", "head")))
    monkeypatch.setattr(edges, "_CHUNK_BYTES", 0)
    monkeypatch.setattr(module, name, value)
    same(values(score(models[family], prompts, levels=("edge", "head"))), before)


@pytest.mark.parametrize("method", ["eap", "eap-ig"])
def test_a_long_common_beginning_is_run_once_and_changes_nothing(family, models, method, monkeypatch):
    beginning = (9, 8, 7, 6, 5, 4)
    prompts = [
        Prompt(
            clean_ids=(*beginning, 1, 2),
            corrupted_ids=(*beginning, 3, 2),
            correct_answers=((1,),),
            wrong_answers=((2,),),
        ),
        Prompt(
            clean_ids=(*beginning, 5),
            corrupted_ids=(*beginning, 6),
            correct_answers=((1,),),
            wrong_answers=((2,),),
        ),
    ]
    passes = []
    run = models[family].taps.run
    monkeypatch.setattr(
        models[family].taps, "run", lambda ids, tape: passes.append(ids.shape[1]) or run(ids, tape)
    )
    shared = values(score(models[family], prompts, method, levels=("edge", "head")))
    assert passes[0] == 6
    assert set(passes[1:]) == {2}
    monkeypatch.setattr(attribution, "_WORTH_SHARING", 10.0)
    same(shared, values(score(models[family], prompts, method, levels=("edge", "head"))), 5e-5)
    assert passes[-1] == 8


def test_levels_scored_together_score_as_on_their_own(family, models, prompts):
    together = score(models[family], prompts)
    for level in LEVELS:
        alone = score(models[family], prompts, levels=(level,))
        if level == "attention":
            for a, b in zip(alone.attention, together.attention, strict=True):
                np.testing.assert_allclose(a.score, b.score, atol=2e-5 * np.abs(b.score).max())
        else:
            a, b = getattr(alone, level), getattr(together, level)
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * np.abs(b).max())


def test_one_input_a_head_scores_the_sum_of_q_k_and_v(family, models, prompts):
    split = score(models[family], prompts, levels=("edge",)).edge
    merged = score(models[family], prompts, levels=("edge",), merged=True).edge
    shape = models[family].shape
    fine = Wiring(shape)
    coarse = Wiring(Shape(shape.layers, shape.heads, shape.kv_heads, shape.parallel, Inputs.MERGED))
    names = [name.partition("<")[0] for name in fine.edge_names().to_pylist()]
    summed = np.zeros_like(merged)
    np.add.at(summed, (slice(None), coarse.edge_ids(names)), split)
    np.testing.assert_allclose(merged, summed, rtol=0, atol=2e-5 * np.abs(summed).max())


@pytest.mark.parametrize("method", METHODS)
def test_identical_prompts_score_exactly_zero(family, models, prompts, method):
    twins = [
        Prompt(
            clean_ids=p.clean_ids,
            corrupted_ids=p.clean_ids,
            correct_answers=p.correct_answers,
            wrong_answers=p.wrong_answers,
        )
        for p in (prompts[:1] if method == "exact" else prompts)
    ]
    found = score(models[family], twins, method)
    assert np.array_equal(found.metric_clean, found.metric_corrupted)
    for numbers in values(found):
        assert not numbers.any()


def test_zero_and_corrupt_are_means_of_a_kind(family, models, prompts):
    """Ablating to a mean that is zero, or that is the corrupted run, is what `zero` and `corrupt` do."""
    model, prompt = models[family], prompts[:1]
    tape = model.taps.run(Batch(prompt, model.parts, "logit_diff").corrupted, Tape())
    corrupted = Means(tape.input[0], [z[0] for z in tape.z], [m[0] for m in tape.mlp])
    nothing = Means(
        torch.zeros_like(corrupted.input),
        [torch.zeros_like(z) for z in corrupted.z],
        [torch.zeros_like(m) for m in corrupted.mlp],
    )
    for ablation, means in (("corrupt", corrupted), ("zero", nothing)):
        direct = values(score(model, prompt, "eap", ("edge", "head"), ablation=ablation))
        by_mean = values(score(model, prompt, "eap", ("edge", "head"), ablation="mean", means=means))
        same(by_mean, direct)


def test_how_many_units_run_at_a_time_does_not_matter_to_exact(models, prompts):
    few, many = (values(score(models["llama"], prompts[:1], "exact", rows=rows)) for rows in (3, 1000))
    same(few, many)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", ["eap", "eap-ig"])
def test_a_model_in_half_precision_has_scores_in_single(family, models, make_tapped, prompts, dtype, method):
    whole = score(models[family], prompts, method, levels=("edge", "head"))
    half = score(make_tapped(family, dtype), prompts, method, levels=("edge", "head"))
    assert half.edge.dtype == np.float32
    assert (half.edge != torch.tensor(half.edge).to(dtype).float().numpy()).any()
    if "gated" not in family:  # a rounded logit may open another gate
        assert np.corrcoef(half.edge.ravel(), whole.edge.ravel())[0, 1] > 0.98
        assert np.corrcoef(half.head.ravel(), whole.head.ravel())[0, 1] > 0.98


@pytest.mark.parametrize("method", METHODS)
def test_scoring_leaves_the_weights_alone(models, prompts, method):
    model = models["gpt2"]
    weights = {key: value.clone() for key, value in model.parts.base.state_dict().items()}
    score(model, prompts[:1], method)
    for key, value in model.parts.base.state_dict().items():
        assert torch.equal(value, weights[key])
        assert value.grad is None
    assert not any(weight.requires_grad for weight in model.parts.base.parameters())


def test_gates_are_kept_with_the_attention_weights(models, prompts):
    found = score(models["llama-gated"], prompts[:2]).attention
    gates = np.concatenate([one.gate.ravel() for one in found])
    assert set(np.unique(gates)) == {0.0, 1.0}
    assert all((one.gate == 1).all() for one in score(models["llama"], prompts[:2]).attention)
    for one, prompt in zip(found, prompts, strict=False):
        query, _ = np.tril_indices(len(prompt.clean_ids))
        sums = np.stack([one.weight[..., query == i].sum(-1) for i in range(len(prompt.clean_ids))])
        np.testing.assert_allclose(sums, 1, atol=1e-5)  # a pattern before its gate
