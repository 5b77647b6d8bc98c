"""How well a model does a task: what is stored of it, said of it, and left unsaid."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from wirescope.data import PAIR, Performance, make_task, pair_lines, performance_of, read_catalog
from wirescope.errors import InputError
from wirescope.extract import Settings, extract, extraction, find_device, load_model, load_vocabulary
from wirescope.extract import accuracy as judging
from wirescope.queries import ask, open_store, select, whole_units

SIZES = ("--sizes", "10,100,3628", "--ranking", "task")


@pytest.fixture(scope="module")
def pairs() -> list[dict]:
    """Twelve prompts that the embedded model gets right."""
    lines = pair_lines(make_task("ioi", load_vocabulary("tiny"), 12)).decode().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture
def write(tmp_path):
    def write(pairs: list[dict]) -> Path:
        file = tmp_path / "pairs.jsonl"
        file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        return file

    return write


def exchanged(pair: dict) -> dict:
    return pair | {"correct": pair["wrong"], "wrong": pair["correct"]}


def performance(store: Path) -> Performance:
    (row,) = ask(open_store(store), "run_summary").to_pylist()
    return Performance.from_row(row)


def test_a_prompt_knows_whether_the_model_is_right_and_the_rank_of_its_answer(tmp_path, pairs, write):
    given = [*pairs[:3], *map(exchanged, pairs[3:6])]
    store = tmp_path / "s"
    extract(
        model="tiny", prompts=write(given), store=store, settings=Settings(levels=("head",), curves=False)
    )
    (file,) = store.glob("prompts/run=*/*.parquet")
    model = load_model("tiny", device=find_device())
    for row in pq.read_table(file, partitioning=None).to_pylist():
        hidden = model.parts.base(torch.tensor([row["clean_ids"]]), use_cache=False).last_hidden_state[0, -1]
        logits = model.parts.unembed(hidden).tolist()
        best = max(logits[i] for i in row["correct_ids"])
        assert row["answer_rank"] == 1 + sum(logit > best for logit in logits)
        assert row["is_right"] == (row["prompt_id"] < 3) == (row["metric_clean"] > 0)


@pytest.mark.parametrize("method", ["eap", "exact"])
@pytest.mark.parametrize("metric", ["logit_diff", "prob_diff"])
def test_all_methods_and_metrics_judge_alike(tmp_path, pairs, write, method, metric):
    given = [pairs[0], exchanged(pairs[1])]
    settings = Settings(levels=("head",), method=method, metric=metric, curves=False)
    extract(model="tiny", prompts=write(given), store=tmp_path / "s", settings=settings)
    rows = select(open_store(tmp_path / "s"), "select is_right from prompts order by prompt_id")
    assert rows["is_right"].to_pylist() == [True, False]


def test_ranks_are_the_same_a_few_logits_at_a_time(pairs, write, monkeypatch):
    model = load_model("tiny", device=find_device())
    prompts = make_task("ioi", model.vocabulary, 5)
    state = torch.randn(5, model.parts.d_model)
    alone = [range(i, i + 1) for i in range(5)]
    found = judging.judge(model.parts, state, prompts, alone)
    monkeypatch.setattr(judging, "_LOGITS_AT_A_TIME", 1)
    for one, other in zip(found, judging.judge(model.parts, state, prompts, alone), strict=True):
        assert torch.equal(one, other)


def test_a_prompt_without_wrong_answers_is_judged_by_the_likeliest_token_and_one_without_any_is_not():
    model = load_model("tiny", device=find_device())
    prompts = make_task("ioi", model.vocabulary, 3)
    state = torch.randn(3, model.parts.d_model)
    best = model.parts.unembed(state).argmax(-1).tolist()
    given = [
        replace(prompts[0], correct_answers=((best[0],),), wrong_answers=()),
        replace(prompts[1], correct_answers=((best[1] - 1,),), wrong_answers=()),
        replace(prompts[2], correct_answers=(), wrong_answers=()),
    ]
    right, rank = judging.judge(model.parts, state, given, [range(i, i + 1) for i in range(3)])
    np.testing.assert_array_equal(right, [1, 0, np.nan])
    assert rank[0] == 1 < rank[1]
    assert rank[2].isnan()


def test_answers_of_several_tokens_are_judged_whole():
    """By their first tokens it would be the other way round."""
    model = load_model("tiny", device=find_device())
    (prompt,) = make_task("ioi", model.vocabulary, 1)
    state = torch.randn(3, model.parts.d_model)
    first, after_a, after_b = model.parts.unembed(state).log_softmax(-1)
    a, b = first.topk(2).indices.tolist()  # a is likelier, but whatever follows it is not
    end_a, end_b = int(after_a.argmin()), int(after_b.argmax())
    given = replace(prompt, correct_answers=((b, end_b),), wrong_answers=((a, end_a),))
    whole = first[b] + after_b[end_b] - first[a] - after_a[end_a]
    assert first[a] > first[b]
    assert whole > 0
    states = state[[0, 2, 1]]  # of the prompt, and behind b and a, in the order of the answers
    right, rank = judging.judge(model.parts, states, [given], [range(3)])
    assert (right.item(), rank.item()) == (1, 2)
    by_first, _ = judging.judge(model.parts, state[:1], [given], [range(1)])
    assert by_first.item() == 0


def test_extract_says_how_well_the_model_does_and_names_sizes(cli, tmp_path, pairs, write):
    call = ("extract", "-m", "tiny", "-p", write(pairs), "-s", tmp_path / "s", *SIZES)
    said = cli(*call).err
    found = performance(tmp_path / "s")
    assert found.accuracy == 1
    assert f"Accuracy 1, top-1 {found.top1:.3g}; logit_diff {found.metric_clean:.3g} clean" in said
    assert "does not do this task" not in said
    assert "ranked by task: about" in said
    assert "Accuracy 1" in cli(*call).err  # also where nothing is left to do


def doubtful(pairs: list[dict], how: str) -> list[dict]:
    return {
        "right and wrong exchanged": [exchanged(pair) for pair in pairs],
        "clean and corrupted exchanged": [
            pair | {"clean": pair["corrupted"], "corrupted": pair["clean"]} for pair in pairs
        ],
        "the same twice": [pair | {"corrupted": pair["clean"]} for pair in pairs],
    }[how]


@pytest.mark.parametrize(
    "how",
    ["right and wrong exchanged", "clean and corrupted exchanged", "the same twice"],
)
def test_where_the_model_does_not_do_the_task_that_is_said_and_no_size_is(cli, tmp_path, pairs, write, how):
    file = write(doubtful(pairs, how))
    said = cli("extract", "-m", "tiny", "-p", file, "-s", tmp_path / "s", *SIZES)
    assert said.status == 0, said.err
    assert "wirescope: the model does not do this task: its" in said.err
    assert "no size is named for edge, corrupt: its" in said.err
    assert "about" not in said.err.split("circuits measured.")[1]


def test_a_space_at_the_end_of_prompts_is_said(cli, tmp_path, pairs, write, monkeypatch):
    """The embedded model's tokenizer drops it, so another one is pretended."""
    file = write([pair | {key: pair[key] + " " for key in ("clean", "corrupted")} for pair in pairs])
    call = ("extract", "-m", "tiny", "-p", file, "-s", tmp_path / "s", "--level", "head", "--no-curves")
    monkeypatch.setattr(extraction, "trailing_spaces", lambda prompts, _: len(prompts))
    assert "12 of 12 prompts end in a space" in cli(*call).err


def test_a_model_of_random_weights_does_not_do_the_task(cli, tmp_path, tiny):
    said = cli("extract", "-m", tiny / "model", "-p", tiny / "prompts.jsonl", "-s", tmp_path / "s").err
    assert "does not do this task" in said
    assert ": about" not in said


def test_other_ablations_are_judged_by_their_own_effect(cli, tmp_path, pairs, write):
    """A prompt that is its own corruption has no effect to explain, but what the heads do at all can be."""
    file = write(doubtful(pairs, "the same twice"))
    zero = ("--ablation", "zero", "--sizes", "1,2,4,8,16,32,48")
    said = cli("extract", "-m", "tiny", "-p", file, "-s", tmp_path / "s", *zero, "--level", "head").err
    assert "does not do this task" not in said
    assert "0.9 of the effect, head, zero, ranked by task: about" in said


def test_figures_say_that_a_model_does_not_do_the_task_and_compare_nothing(cli, tmp_path, pairs, write):
    file, store = write([exchanged(pair) for pair in pairs]), tmp_path / "s"
    for model in PAIR:
        cli("extract", "-m", model, "-p", file, "-s", store, *SIZES, "--run", model)
    drawn = cli("curve", "-s", store, "--ranking", "task", "-o", tmp_path / "c.svg")
    caption = (tmp_path / "c.caption.txt").read_text()
    for said in (drawn.err, caption):
        assert "tiny does not do this task: its accuracy is 0, and its effect is negative" in said
    assert "times fewer as interpolated" not in caption
    assert 'id="bar"' not in (tmp_path / "c.svg").read_text()
    cli("diagram", "-s", store, "--runs", "tiny", "-k", 100, "-o", tmp_path / "d.svg")
    assert "tiny does not do this task" in (tmp_path / "d.caption.txt").read_text()


def test_of_kl_the_effect_grows_with_what_is_lost(tmp_path, pairs, write):
    settings = Settings(metric="kl", levels=("head",), curves=False)
    extract(model="tiny", prompts=write(pairs), store=tmp_path / "s", settings=settings)
    found = performance(tmp_path / "s")
    assert found.metric_clean == pytest.approx(0, abs=1e-6)
    assert found.effect == pytest.approx(found.metric_corrupted) != 0
    assert found.effect > 0
    assert found.accuracy == 1
    assert found.doubts() == []


def test_sql_and_numpy_agree_also_on_a_run_of_an_older_schema(tmp_path, pairs, write, as_version_1):
    given, store = write([*pairs[:3], *map(exchanged, pairs[3:5])]), tmp_path / "s"
    settings = Settings(levels=("head",), curves=False)
    outcome = extract(model="tiny", prompts=given, store=store, settings=settings)
    assert vars(performance(store)) == pytest.approx(vars(outcome.performance))
    assert outcome.performance.accuracy == pytest.approx(0.6)
    as_version_1(store, outcome.run)
    (part,) = store.glob("prompts/run=*/*.parquet")
    rows = pq.read_table(part, partitioning=None)
    assert "is_right" not in rows.column_names
    older = performance_of(rows, "logit_diff")
    assert (older.accuracy, older.top1) == (outcome.performance.accuracy, None)
    assert vars(performance(store)) == pytest.approx(vars(older))
    assert extract(model="tiny", prompts=given, store=store, settings=settings).performance == older


def test_only_correct_takes_the_prompts_that_the_model_gets_right(cli, tmp_path, pairs, write):
    mixed = [exchanged(pair) if i % 3 == 0 else pair for i, pair in enumerate(pairs)]
    store = tmp_path / "s"
    call = ("extract", "-m", "tiny", "-p", write(mixed), "-s", store, "--only-correct", *SIZES)
    said = cli(*call).err
    assert "Of 12 prompts the model gets 8 right; they alone are taken." in said
    assert "8 prompts scored" in said
    rows = select(open_store(store), "select prompt_id, clean, is_right from prompts order by prompt_id")
    assert rows["prompt_id"].to_pylist() == list(range(8))
    assert rows["clean"].to_pylist() == [pair["clean"] for i, pair in enumerate(pairs) if i % 3]
    assert all(rows["is_right"].to_pylist())
    record = read_catalog(store).run("tiny-pairs")
    assert (record.only_correct, record.prompts, record.prompts_tried) == (True, 8, 12)
    assert "nothing was written" in cli(*call).err
    other = cli(*[word for word in call if word != "--only-correct"])
    assert other.status == 2
    assert "of another call already (not the same: prompts, prompts_hash, only_correct" in other.err
    assert cli(*call, "--plan").status == 0


def test_only_correct_is_refused_where_nothing_is_right(tmp_path, pairs, write):
    file = write([exchanged(pair) for pair in pairs])
    with pytest.raises(
        InputError, match="Of 12 prompts the model gets none right, and --only-correct leaves"
    ):
        extract(model="tiny", prompts=file, store=tmp_path / "s", settings=Settings(only_correct=True))
    assert not (tmp_path / "s").exists()


def test_a_size_in_words_is_the_whole_number_that_suffices(cli, tmp_path, pairs, write):
    store = tmp_path / "s"
    said = cli("extract", "-m", "tiny-sparse", "-p", write(pairs), "-s", store, "--level", "head").err
    rows = ask(open_store(store), "reach", run="tiny-sparse-pairs").to_pylist()
    assert any(row["k"] % 1 < 0.5 for row in rows)  # which rounding would round down
    for row in rows:
        assert f"ranked by {row['ranking']}: about {whole_units(row['k']):,} of 48\n" in said
        assert row["k"] <= whole_units(row["k"]) < row["k"] + 1
