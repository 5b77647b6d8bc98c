"""Answers of several tokens: their probability is that of all their tokens, and everything is measured by it."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from slow import Change, Kept, ablated, mean_of, wiring_of
from test_circuits import measured
from test_oracles import close, scorer
from wirescope.data import Prompt, read_catalog
from wirescope.errors import InputError
from wirescope.extract import Settings, extract
from wirescope.extract.attribution import Batch, to_array
from wirescope.extract.job import Job
from wirescope.extract.metrics import contexts_of
from wirescope.extract.settings import Deaf
from wirescope.extract.taps import Tape
from wirescope.extract.workers import Workers
from wirescope.graphs import on_a_path
from wirescope.queries import open_store, select

FAMILIES = ("gpt2", "gpt2-gated", "llama", "neox")
"""Learned positions, gates, shared keys, parallel blocks."""
ABLATIONS = ("corrupt", "zero", "mean")


@pytest.fixture(scope="module")
def answered() -> list[Prompt]:
    """Prompts of different lengths, with answers of one to four tokens, some of which begin alike."""
    generator = torch.Generator().manual_seed(8)
    answers = [
        (((3, 5, 2), (3, 6)), ((7,), (8, 1))),
        (((1, 2),), ((4, 9, 11),)),
        (((12,), (13,)), ((14,),)),
        (((15, 16),), ((15, 17), (15, 18, 19, 20), (21,))),
    ]
    made = []
    for (correct, wrong), (length, same) in zip(answers, ((5, 1), (7, 3), (4, 0), (6, 2)), strict=True):
        clean, corrupted = torch.randint(0, 40, (2, length), generator=generator).tolist()
        corrupted[:same] = clean[:same]
        made.append(
            Prompt(
                clean_ids=tuple(clean),
                corrupted_ids=tuple(corrupted),
                correct_answers=correct,
                wrong_answers=wrong,
            )
        )
    return made


class Instead:
    """What the slow model's nodes carry when ablated, in any text that begins with a prompt."""

    def __init__(self, slow, prompts, ablation, metric="logit_diff"):
        self.slow, self.ablation = slow, ablation
        self.mean = {}
        if ablation == "mean":
            texts = [[(*p.clean_ids, *after) for after in contexts_of(p, metric)] for p in prompts]
            seen = [[slow.run(text, prompts[0]) for text in own] for own in texts]
            for what in ("outputs", "z"):
                each = [mean_of(own, what) for own in seen]  # prompts count alike
                longest = [len(next(iter(own.values()))) for own in each]
                self.mean[what] = {
                    node: torch.stack(
                        [
                            torch.stack(
                                [own[node][i] for own, n in zip(each, longest, strict=True) if n > i]
                            ).mean(0)
                            for i in range(max(longest))
                        ]
                    )
                    for node in each[0]
                }

    def runs(self, prompt, answer):
        return [
            self.slow.run((*ids, *answer[:-1]), prompt) for ids in (prompt.clean_ids, prompt.corrupted_ids)
        ]

    def deltas(self, prompt, answer, what):
        return ablated(*self.runs(prompt, answer), self.ablation, what, self.mean.get(what))

    def values(self, prompt, answer, what):
        clean, _ = self.runs(prompt, answer)
        return {
            node: delta + getattr(clean, what)[node]
            for node, delta in self.deltas(prompt, answer, what).items()
        }


def means_of(model, prompts, ablation, metric="logit_diff"):
    if ablation != "mean":
        return None
    alone = Workers(0, 1, model.device)
    shards = [range(2), range(2, len(prompts))]
    return Job(model, prompts, shards, wiring_of(model.shape), metric, None, alone, Deaf()).means


@pytest.mark.parametrize("metric", ["logit_diff", "prob_diff"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "neox"])
def test_the_metric_is_what_plain_calls_of_the_model_say(models, make_model, answered, family, metric):
    own, batch = make_model(family), Batch(answered, models[family].parts, metric)

    def log_p(ids, answer):
        """Of the text with the answer, of all its tokens."""
        steps = own(torch.tensor([[*ids, *answer]])).logits[0].detach().log_softmax(-1)
        return sum(steps[len(ids) - 1 + at, token] for at, token in enumerate(answer))

    for ids, name in ((batch.clean, "clean_ids"), (batch.corrupted, "corrupted_ids")):
        expected = []
        for prompt in answered:
            correct, wrong = (
                torch.stack([log_p(getattr(prompt, name), answer) for answer in answers])
                for answers in (prompt.correct_answers, prompt.wrong_answers)
            )
            by_metric = {
                "logit_diff": correct.logsumexp(0) - wrong.logsumexp(0),
                "prob_diff": correct.exp().sum() - wrong.exp().sum(),
            }
            expected.append(float(by_metric[metric]))
        found = to_array(batch.metric(models[family].taps.run(ids, Tape(last=batch.last())).final))
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("metric", ["logit_diff", "prob_diff"])
def test_one_token_answers_have_the_same_metric_among_longer_ones(models, answered, metric):
    model = models["gpt2"]
    among, alone = Batch(answered, model.parts, metric), Batch([answered[2]], model.parts, metric)
    found = [
        to_array(batch.metric(model.taps.run(batch.clean, Tape(last=batch.last())).final))
        for batch in (among, alone)
    ]
    assert found[0][2] == pytest.approx(found[1][0], abs=1e-5)


@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_exact_scores_agree_with_changing_one_unit_at_a_time(models, slow_models, answered, family, ablation):
    model, slow, prompt = models[family], slow_models(family), answered[0]
    wiring, instead = wiring_of(model.shape), Instead(slow, answered, ablation)
    found = scorer(
        model,
        "exact",
        wiring,
        ("edge", "head"),
        ablation=ablation,
        means=means_of(model, answered, ablation),
    )(Batch([prompt], model.parts, "logit_diff"))
    answers = (*prompt.correct_answers, *prompt.wrong_answers)
    outputs, z = (
        {answer: instead.deltas(prompt, answer, what) for answer in answers} for what in ("outputs", "z")
    )
    clean = slow.whole(prompt.clean_ids, prompt)
    assert found.metric_clean[0] == pytest.approx(clean, abs=1e-4)
    assert found.metric_corrupted[0] == pytest.approx(slow.whole(prompt.corrupted_ids, prompt), abs=1e-4)

    def effect(does):
        return slow.whole(prompt.clean_ids, prompt, does) - clean

    names = wiring.edge_names().to_pylist()
    some = list(range(0, len(names), 3))
    expected = []
    for i in some:
        source, slot = names[i].split("->")
        expected.append(effect(lambda a, s=source, t=slot: {"change": Change(t, stream=outputs[a][s])}))
    close(found.edge[0][some], np.array(expected), 2e-4)
    heads = [f"a{layer}.h{head}" for layer in range(2) for head in range(4)]
    expected = [effect(lambda a, head=head: {"change": Change(head, z=z[a][head])}) for head in heads]
    close(found.head[0], np.array(expected), 2e-4)


@pytest.mark.parametrize("method", ["eap", "eap-ig-2"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "neox"])
def test_first_order_scores_are_slopes_of_the_metric(models, slow_models, answered, family, method):
    model, slow, prompt = models[family], slow_models(family), answered[0]
    wiring, instead = wiring_of(model.shape), Instead(slow, answered, "corrupt")
    found = scorer(model, method, wiring, ("edge", "head"))(Batch([prompt], model.parts, "logit_diff"))
    answers = (*prompt.correct_answers, *prompt.wrong_answers)
    embed = slow.model.get_input_embeddings()
    outputs, z = (
        {answer: instead.deltas(prompt, answer, what) for answer in answers} for what in ("outputs", "z")
    )

    def inputs(answer, way):
        start, end = (
            embed(torch.tensor([(*ids, *answer[:-1])])) for ids in (prompt.corrupted_ids, prompt.clean_ids)
        )
        return start + way * (end - start)

    def slope(slot, step=0.004, **change):
        ways = [1.0] if method == "eap" else [0.0, 0.5]
        total = 0.0
        for way in ways:
            up, down = (
                slow.whole(
                    prompt.clean_ids,
                    prompt,
                    lambda a, scale=sign * step, way=way: {
                        "change": Change(slot, **{key: scale * of(a) for key, of in change.items()}),
                        "embeddings": inputs(a, way),
                    },
                )
                for sign in (1, -1)
            )
            total += (up - down) / (2 * step) / len(ways)
        return total

    names = wiring.edge_names().to_pylist()
    some = [*range(0, len(names), 9), *(i for i, name in enumerate(names) if name.endswith("->logits"))]
    expected = []
    for i in some:
        source, slot = names[i].split("->")
        expected.append(slope(slot, stream=lambda a, s=source: outputs[a][s]))
    close(found.edge[0][some], np.array(expected), 6e-3)
    heads = [f"a{layer}.h{head}" for layer in range(2) for head in range(4)]
    expected = [slope(head, z=lambda a, head=head: z[a][head]) for head in heads]
    close(found.head[0], np.array(expected), 6e-3)


@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize("level", ["edge", "head"])
@pytest.mark.parametrize("family", FAMILIES)
def test_circuits_do_what_the_slow_model_does(models, slow_models, answered, family, level, ablation):
    """All kept is the model, none kept the ablated one; and random circuits between."""
    model, slow = models[family], slow_models(family)
    wiring, instead = wiring_of(model.shape), Instead(slow, answered, ablation)
    names = wiring.edge_names().to_pylist()
    sources: dict[str, list[str]] = {}
    for name in names:
        source, slot = name.split("->")
        sources.setdefault(slot, []).append(source)
    units = len(names) if level == "edge" else model.shape.layers * model.shape.heads

    def reference(i, mask):
        prompt = answered[i]

        def does(answer):
            if level == "edge":
                edges = {names[edge] for edge in np.flatnonzero(mask)}
                values = instead.values(prompt, answer, "outputs")
                return {"kept": Kept(edges=edges, instead=values, sources=sources)}
            heads = {f"a{unit // 4}.h{unit % 4}" for unit in np.flatnonzero(mask)}
            return {"kept": Kept(heads=heads, instead=instead.values(prompt, answer, "z"))}

        return slow.whole(prompt.clean_ids, prompt, does)

    rng = np.random.default_rng(4)
    rows = [(i, np.full(units, keep)) for keep in (True, False) for i in range(len(answered))]
    for i in (0, 3, 1, 2, 3):
        mask = rng.random(units) < rng.uniform(0.2, 0.9)
        rows.append((i, on_a_path(wiring, mask) if level == "edge" else mask))
    found = measured(model, answered, level, rows, ablation, means_of(model, answered, ablation))
    np.testing.assert_allclose(found, [reference(*row) for row in rows], atol=2e-4)
    whole, none = found[: len(answered)], found[len(answered) : 2 * len(answered)]
    np.testing.assert_allclose(whole, [slow.whole(p.clean_ids, p) for p in answered], atol=1e-4)
    if (level, ablation) == ("edge", "corrupt"):
        np.testing.assert_allclose(none, [slow.whole(p.corrupted_ids, p) for p in answered], atol=1e-4)
    assert np.abs(whole - none).max() > 0.1


@pytest.mark.parametrize("metric", ["logit_diff", "prob_diff"])
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_circuits_are_the_same_alone_and_among_others(models, answered, family, metric):
    model, rng = models[family], np.random.default_rng(3)
    wiring = wiring_of(model.shape)
    for method in ("eap", "eap-ig-3"):
        score = scorer(model, method, wiring, ("edge", "head"))
        together = score(Batch(answered, model.parts, metric))
        for i, prompt in enumerate(answered):
            alone = score(Batch([prompt], model.parts, metric))
            scale = max(np.abs(alone.edge).max(), 1e-3)
            np.testing.assert_allclose(together.edge[i], alone.edge[0], atol=2e-4 * scale)
            np.testing.assert_allclose(together.head[i], alone.head[0], atol=2e-4 * scale)
            assert together.metric_clean[i] == pytest.approx(alone.metric_clean[0], abs=1e-5)
    for level, units in (("edge", wiring.n_edges), ("head", 8)):
        rows = []
        for i in (3, 0, 2, 1, 0, 3):
            mask = rng.random(units) < 0.6
            rows.append((i, on_a_path(wiring, mask) if level == "edge" else mask))
        among = measured(model, answered, level, rows, metric=metric)
        by_prompt = [measured(model, [answered[i]], level, [(0, m)], metric=metric)[0] for i, m in rows]
        np.testing.assert_allclose(among, by_prompt, atol=3e-5)


def test_kl_needs_no_answers_and_reads_none(models, answered):
    model, scores = models["gpt2"], []
    for prompts in (answered, [replace(p, correct_answers=(), wrong_answers=()) for p in answered]):
        batch = Batch(prompts, model.parts, "kl")
        assert len(batch.lengths) == len(answered)
        scores.append(scorer(model, "eap-ig-2", wiring_of(model.shape), ("edge", "head"))(batch))
    assert np.array_equal(scores[0].edge, scores[1].edge)
    assert np.abs(scores[0].edge).max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_comes_near(models, make_tapped, answered, dtype):
    half, whole = (
        scorer(model, "eap-ig-2", wiring_of(model.shape), ("edge",))(
            Batch(answered, model.parts, "logit_diff")
        )
        for model in (make_tapped("llama", dtype), models["llama"])
    )
    assert np.corrcoef(half.edge.ravel(), whole.edge.ravel())[0, 1] > 0.98
    np.testing.assert_allclose(half.metric_clean, whole.metric_clean, atol=0.5)


PAIR = {"clean": "When Simon and Martin went to the park, Martin gave a ball to"}
PAIR |= {"corrupted": PAIR["clean"].replace("Martin gave", "Simon gave")}
ANSWERED = PAIR | {"correct": [" Simon Lisa", " Simon"], "wrong": " Martin"}
BARE = PAIR | {"clean": PAIR["clean"].replace("ball", "ring")}


@pytest.fixture
def written(tmp_path):
    def write(*pairs):
        file = tmp_path / "pairs.jsonl"
        file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        return file

    return write


def test_whole_answers_are_in_the_store_and_curves_end_at_the_model(cli, tmp_path, written):
    settings = Settings(levels=("edge", "head"), metric="prob_diff", steps=2, sizes=(1, 5, 4))
    store = tmp_path / "s"
    extract(model="tiny", prompts=written(ANSWERED), store=store, run="a", settings=settings)
    (row,) = select(open_store(store), "select * from prompts").to_pylist()
    simon, lisa = row["correct_answers"][0]
    assert row["correct_answers"] == [[simon, lisa], [simon]]
    assert (row["correct_ids"], row["wrong_ids"]) == ([simon, simon], row["wrong_answers"][0])
    assert (row["correct"], row["wrong"]) == ([" Simon Lisa", " Simon"], [" Martin"])
    shown = cli("sql", "--store", store, "select correct_answers from prompts").out
    assert f"[{simon}, {lisa}], [{simon}]" in shown
    effects = select(open_store(store), "select * from effects").to_pylist()
    assert {effect["m_all"] for effect in effects} == {row["metric_clean"]}
    none = [effect["m_none"] for effect in effects if effect["level"] == "edge"]
    assert none == pytest.approx([row["metric_corrupted"]] * len(none), abs=1e-5)


def test_the_same_call_goes_on_and_another_choice_of_tokens_is_another_call(tmp_path, written):
    file, scores = written(ANSWERED), Settings(curves=False, method="eap")
    for fresh in (1, 0):
        done = extract(model="tiny", prompts=file, store=tmp_path / "s", run="a", settings=scores)
        assert done.fresh == fresh
    with pytest.raises(InputError, match="first_token"):
        extract(
            model="tiny",
            prompts=file,
            store=tmp_path / "s",
            run="a",
            settings=replace(scores, first_token=True),
        )


def test_the_first_token_alone_is_scored_as_that_token_would_be(tmp_path, written):
    one = ANSWERED | {"correct": " Simon"}
    for name, pair, first in (("cut", ANSWERED, True), ("one", one, False)):
        settings = Settings(levels=("edge", "attention"), curves=False, method="eap", first_token=first)
        extract(model="tiny", prompts=written(pair), store=tmp_path / "s", run=name, settings=settings)
    runs = read_catalog(tmp_path / "s").runs
    assert [runs[name].first_token for name in ("cut", "one")] == [True, False]
    cut, alone = (
        select(
            open_store(tmp_path / "s"), f"select score from edge_scores where run = '{name}' order by edge_id"
        )
        for name in ("cut", "one")
    )
    assert cut.equals(alone)


def test_every_command_copes_with_a_run_without_answers(cli, tmp_path, written):
    store, out = tmp_path / "s", tmp_path / "out"
    out.mkdir()
    call = ("extract", "--model", "tiny", "--prompts", written(PAIR, BARE), "--store", store, "--run", "a")
    levels = ("--level", "edge", "--level", "head", "--level", "attention")
    made = cli(*call, "--metric", "kl", "--steps", 2, "--sizes", "1,5", *levels)
    assert made.status == 0
    (row,) = select(open_store(store), "select * from prompts where prompt_id = 0").to_pylist()
    empty = {
        "correct": [],
        "wrong": [],
        "correct_ids": [],
        "wrong_ids": [],
        "correct_answers": [],
        "wrong_answers": [],
    }
    assert {key: row[key] for key in empty} == empty
    one = ("--store", store, "--run", "a")
    both = ("--store", store, "--runs", "a")
    for command in (
        ("runs", "--store", store),
        ("top", *one, "--k", 5),
        ("top", *one, "--k", 5, "--level", "attention", "--prompt", 0),
        ("sql", "--store", store, "select * from prompts", "--format", "csv"),
        ("diagram", *both, "--k", 5, "--out", out / "a.svg"),
        ("diagram", *both, "--k", 5, "--level", "attention", "--prompt", 0, "--out", out / "b.svg"),
        ("curve", *both, "--out", out / "c.svg"),
        ("explore", *both, "--out", out / "d.html"),
        ("stats", *both, "--k", 5),
    ):
        done = cli(*command)
        assert done.status == 0, (command, done.err)


def test_a_metric_that_needs_answers_says_so(cli, tmp_path, written):
    file = written(ANSWERED, PAIR | {"correct": [" Simon"]}, PAIR)
    done = cli("extract", "--model", "tiny", "--prompts", file, "--store", tmp_path / "s")
    assert done.status == 2
    assert f"Line 2 of '{file}' has no wrong answer, and the metric logit_diff needs one" in done.err
    assert f"Line 3 of '{file}' has no correct answer, and the metric logit_diff needs one" in done.err
    assert not (tmp_path / "s").exists()


def test_prompts_come_from_standard_input(cli, monkeypatch, tmp_path):
    text = json.dumps([ANSWERED])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    done = cli("extract", "--model", "tiny", "--prompts", "-", "--store", tmp_path / "s", "--no-curves")
    assert done.status == 0
    assert read_catalog(tmp_path / "s").run("tiny-stdin").prompts == 1
