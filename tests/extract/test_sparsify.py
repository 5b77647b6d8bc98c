"""Sparse post-training of a very small model on made-up text."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from corpus import make_tokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from wirescope.cli import sparsifying
from wirescope.data import make_task, read_catalog
from wirescope.extract import ExtractionError, Settings, extract, find_device
from wirescope.extract.accuracy import accuracy
from wirescope.extract.models import load_untapped, vocabulary_of
from wirescope.extract.sparsify import Report, sparsify
from wirescope.extract.training import Constraint, Recipe, Student, Trainer
from wirescope.graphs import InputError

WORDS = ["<pad>", "<unk>", *(f"w{i}" for i in range(20))]
QUICK = Recipe(
    steps=6,
    batch_size=4,
    context=12,
    evaluate_every=2,
    epsilon=5.0,
    learning_rate=0.02,
    gate_rate=2.0,
    cost=3.0,
)


class Told:
    """Listens, and can interrupt."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.plans, self.statuses, self.notes = [], [], []
        self.steps, self.done, self.stop_at = 0, 0, stop_at

    def begin(self, plan, what, total, done):
        self.plans.append(plan)
        self.done = done

    def advance(self, count):
        self.steps += count

    def note(self, message):
        self.notes.append(message)

    def status(self, text):
        self.statuses.append(text)
        if len(self.statuses) == self.stop_at:
            raise KeyboardInterrupt


def save(folder: Path, model) -> Path:
    model.save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def dense(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2,
        n_head=2,
        n_embd=16,
        n_positions=16,
        vocab_size=len(WORDS),
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    return save(tmp_path_factory.mktemp("models") / "dense", GPT2LMHeadModel(config))


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> list[Path]:
    """Two kinds: words that follow each other, and words that are repeated."""
    folder, rng = tmp_path_factory.mktemp("texts"), random.Random(0)
    up = [" ".join(f"w{(first + i) % 20}" for i in range(10)) for first in range(20)]
    again = [" ".join([f"w{rng.randrange(20)}"] * rng.randint(5, 12)) for _ in range(40)]
    (folder / "up.txt").write_text("\n".join(up * 2))
    (folder / "again.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in again))
    return [folder / "up.txt", folder / "again.jsonl"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return GPT2LMHeadModel.from_pretrained(folder).state_dict()


def same(a: Path, b: Path) -> bool:
    one, other = weights(a), weights(b)
    configs = [json.loads((folder / "config.json").read_text())["gate_bias"] for folder in (a, b)]
    return configs[0] == configs[1] and all(torch.equal(one[key], other[key]) for key in one)


def test_slack_is_gone_at_the_end_where_half_of_epsilon_is_aimed_at():
    recipe = Recipe(steps=1_000, epsilon=0.01, slack=0.05)
    allowed = [recipe.allowed_at(step) for step in range(1_001)]
    assert allowed[0] == allowed[600] == pytest.approx(0.055)
    assert allowed[1_000] == pytest.approx(0.005)
    assert all(before > after for before, after in pairwise(allowed[600:]))
    for step, grows in ((0, False), (999, True)):  # 0.04 more is too much only at the end
        constraint = Constraint(recipe, 1)
        before = constraint.logs.clone()
        constraint.update(torch.tensor([0.04]), step)
        assert bool(constraint.logs > before) == grows


def test_a_sparse_twin_is_an_ordinary_folder_with_gates_and_a_report(dense, texts, tmp_path):
    told = Told()
    report = sparsify(model=str(dense), texts=texts, out=tmp_path / "sparse", recipe=QUICK, listener=told)
    assert set(report.losses) == {"up", "again"}
    assert 0 < report.open_gates < 1
    assert all(sparse <= loss + QUICK.epsilon for loss, sparse in report.losses.values())
    assert report.tasks == {}  # no word of the tasks is known
    assert told.steps == 6
    assert "loss" in told.statuses[0]
    assert "% open, multiplier" in told.statuses[0]
    assert [re.match(r"After (\d) steps, on held-out text: \d", note).group(1) for note in told.notes] == [
        *"0246"
    ]
    assert not told.notes[0].endswith("kept.")  # what has not been trained is no sparse twin
    written = json.loads((tmp_path / "sparse/sparsify.json").read_text())
    assert written["open_gates"] == report.open_gates
    config = json.loads((tmp_path / "sparse/config.json").read_text())
    assert config["base_model"] == str(dense)
    assert [len(row) for row in config["gate_bias"]] == [2, 2]
    assert not (tmp_path / "sparse.partial").exists()
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path / "sparse")("w3 w4")["input_ids"] == [5, 6]
    before, after = weights(dense), weights(tmp_path / "sparse")
    assert any(not torch.equal(before[key], after[key]) for key in before)


def test_what_is_reported_is_so_of_the_folder(dense, texts, tmp_path):
    report = sparsify(model=str(dense), texts=texts, out=tmp_path / "sparse", recipe=QUICK)
    loaded = load_untapped(str(tmp_path / "sparse"), device=find_device())
    student = Student(loaded.model, loaded.parts, 0.0).eval()
    student.gates.bias.data.copy_(torch.tensor(loaded.model.config.gate_bias))
    lines = dict.fromkeys(json.loads(line)["text"] for line in texts[1].read_text().splitlines())
    lines = list(lines)[::10]  # the ones that are held out
    total = tokens = 0.0
    with torch.no_grad():
        for line in lines:  # one by one: without padding
            ids = torch.tensor([loaded.tokenizer(line)["input_ids"]])
            logits, _ = student(ids, torch.ones_like(ids, dtype=torch.bool))
            total -= float(logits[0, :-1].log_softmax(-1)[range(len(ids[0]) - 1), ids[0, 1:]].sum())
            tokens += len(ids[0]) - 1
            torch.testing.assert_close(loaded.model(ids, use_cache=False).logits, logits)
    assert report.losses["again"][1] == pytest.approx(total / tokens, abs=1e-5)


def test_a_sparse_twin_is_extracted_and_paired_with_its_dense_model(dense, texts, tmp_path):
    sparsify(model=str(dense), texts=texts, out=tmp_path / "sparse", recipe=QUICK)
    pair = {"clean_ids": [2, 3, 4], "corrupted_ids": [5, 3, 4], "correct_ids": [6], "wrong_ids": [7]}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair))
    for model in (dense, tmp_path / "sparse"):
        extract(
            model=str(model),
            prompts=tmp_path / "pairs.jsonl",
            store=tmp_path / "store",
            settings=Settings(levels=("attention",)),
        )
    runs = read_catalog(tmp_path / "store").runs.values()
    assert {run.base_model for run in runs} == {None, str(dense)}


def test_the_sparsest_model_within_the_constraint_is_kept(dense, texts, tmp_path, monkeypatch):
    # (share, excess) at steps 0, 2, 4, 6
    found = iter([(1.0, 0.0), (0.5, 4.0), (0.2, 6.0), (0.3, 4.9)])
    held_out = Trainer._held_out

    def scripted(self, *, gated):
        losses, share = held_out(self, gated=gated)
        if not gated:
            return losses, share
        share, excess = next(found)
        return {kind: loss + excess for kind, loss in self.dense_losses.items()}, share

    monkeypatch.setattr(Trainer, "_held_out", scripted)
    report = sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=QUICK)
    assert (report.kept_step, report.open_gates) == (6, 0.3)


def test_where_none_meets_the_constraint_it_is_said_and_nothing_written(dense, texts, tmp_path, monkeypatch):
    def scripted(self, *, gated):
        worse = gated * (9 - self._step // 2) if self._step else 0  # but at first, when nothing has been done
        return {"up": 1.0 + worse, "again": 1.0 + 2 * gated}, 0.1

    monkeypatch.setattr(Trainer, "_held_out", scripted)
    message = r"No model met .* after 6 steps, is 6\.000 nats worse .* on up, where 5\.0 are"
    with pytest.raises(ExtractionError, match=message):
        sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=QUICK)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stop_at", [1, 3, 4])
def test_a_training_that_was_stopped_ends_in_the_same_weights(dense, texts, tmp_path, stop_at):
    def train(out: Path, **options):
        sparsify(model=str(dense), texts=texts, out=out, recipe=replace(QUICK, distill=0.5), **options)

    train(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "stopped", listener=Told(stop_at))
    assert not (tmp_path / "stopped").exists()
    told = Told()
    train(tmp_path / "stopped", listener=told)
    assert told.done == stop_at // 2 * 2 - 2 * (
        stop_at % 2 == 0
    )  # the last that was saved, before it stopped
    assert same(tmp_path / "whole", tmp_path / "stopped")
    reports = [json.loads((tmp_path / name / "sparsify.json").read_text()) for name in ("whole", "stopped")]
    assert reports[0] == reports[1]


def test_another_call_does_not_go_on_with_it(dense, texts, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=QUICK, listener=Told(3))
    with pytest.raises(InputError, match=r"a\.partial' is of a training with another steps"):
        sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=replace(QUICK, steps=8))
    with pytest.raises(InputError, match=r"a\.partial' is of a training with another kinds"):
        sparsify(model=str(dense), texts=texts[:1], out=tmp_path / "a", recipe=QUICK)


def test_each_kind_has_a_multiplier_that_follows_its_own_constraint():
    recipe = Recipe(epsilon=0.1, slack=0.0)
    constraint = Constraint(recipe, 2)
    assert constraint.cost == pytest.approx(recipe.cost)
    assert constraint.weights.tolist() == [1, 1]
    constraint.update(torch.tensor([-3.0, 0.3]), 0)  # much slack in one kind, none in the other
    before = constraint.beyond.clone()
    constraint.update(torch.tensor([-3.0, torch.nan]), 0)  # a kind may not be seen in a step
    assert constraint.beyond[1] == before[1]
    slack, tight = constraint.weights.tolist()
    assert slack < 1 < tight
    assert slack + tight == pytest.approx(2)
    for _ in range(2_000):
        constraint.update(torch.tensor([-3.0, 3.0]), 0)
    assert constraint.cost == pytest.approx(2 / (1 / recipe.least_cost + 1 / recipe.most_cost))
    for _ in range(4_000):
        constraint.update(torch.tensor([-3.0, -3.0]), 0)
    assert constraint.cost == pytest.approx(recipe.most_cost)


def test_the_constraint_is_on_documents_without_noise(dense, texts, tmp_path, monkeypatch):
    seen = {}

    def excesses(chance: float) -> list[torch.Tensor]:
        seen[chance] = []
        monkeypatch.setattr(Constraint, "update", lambda _, excess, __: seen[chance].append(excess))
        monkeypatch.setattr(torch, "rand_like", lambda like: torch.full_like(like, chance))
        recipe = replace(QUICK, steps=2, learning_rate=0.0, gate_rate=0.0, bias=0.0, epsilon=100.0)
        sparsify(model=str(dense), texts=texts, out=tmp_path / str(chance), recipe=recipe)
        return seen[chance]

    # noise that closes every gate that it reaches, and none
    for closed, plain in zip(excesses(0.0), excesses(0.5), strict=True):
        torch.testing.assert_close(closed, plain)
        assert plain.abs().max() > 0.01


def test_what_is_held_out_is_not_trained_on(dense, tmp_path, monkeypatch):
    documents = [f'{{"text": "w{i % 7} w{i % 3}"}}\n' for i in range(60)]
    (tmp_path / "some.jsonl").write_text("".join(documents))
    seen = {}

    def stop(self):
        seen.update(self._kinds)
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        sparsify(model=str(dense), texts=[tmp_path / "some.jsonl"], out=tmp_path / "a", recipe=QUICK)
    text = seen["some"]
    assert len(text.held_out) == len(set(text.held_out)) == 3  # of 21 different ones
    assert not set(text.train) & set(text.held_out)
    assert len(set(text.train)) == 18


def test_training_closes_gates_and_keeps_the_loss(dense, texts, tmp_path):
    recipe = replace(QUICK, steps=60, evaluate_every=20, batch_size=8, epsilon=0.5, gate_rate=0.1, cost=3.0)
    report = sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=recipe)
    assert report.open_gates < 0.6
    assert report.kept_step > 0


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_adapters_are_trained_alone_and_merged(dense, texts, tmp_path, architecture):
    pytest.importorskip("peft")
    if architecture == "llama":
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
        model = LlamaForCausalLM(
            LlamaConfig(vocab_size=len(WORDS), **sizes, bos_token_id=None, eos_token_id=None)
        )
        dense = save(tmp_path / "llama", model)
    recipe = replace(QUICK, lora=2, learning_rate=0.05, bias=0.01)
    report = sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=recipe)
    loaded = [load_untapped(str(folder), device=find_device()).model for folder in (dense, tmp_path / "a")]
    before, after = (model.state_dict() for model in loaded)
    assert before.keys() == after.keys()
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed
    assert all(before[key].dim() == 2 and "embed" not in key and "wte" not in key for key in changed)
    assert report.losses["up"][0] != report.losses["up"][1]


@pytest.mark.slow
def test_two_processes_train_one_model(dense, texts, tmp_path):
    arguments = [
        "sparsify",
        "--model",
        dense,
        "--text",
        texts[0],
        "--text",
        texts[1],
        "--out",
        tmp_path / "a",
    ]
    arguments += ["--steps", 4, "--batch-size", 4, "--context", 12, "--evaluate-every", 2, "--epsilon", 5]
    launch = ["accelerate.commands.launch", "--cpu", "--num_processes", 2, "--num_machines", 1]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "-m", "wirescope.cli"]
    command = [sys.executable, "-m", *map(str, launch), *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("open gates") == 1  # one of them reports
    assert done.stderr.count("Sparse post-training in 4 steps") == 1
    assert json.loads((tmp_path / "a/config.json").read_text())["base_model"] == str(dense)
    assert not (tmp_path / "a.partial").exists()


@pytest.fixture(scope="module")
def literate(tmp_path_factory) -> Path:
    """A random model with a tokenizer that can do all tasks."""
    torch.manual_seed(0)
    tokenizer, folder = make_tokenizer(), tmp_path_factory.mktemp("models") / "literate"
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 64, "vocab_size": len(tokenizer)}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_tasks_are_kinds_of_text_and_judged(literate, tmp_path):
    recipe = replace(QUICK, steps=1, evaluate_every=1, context=64)
    report = sparsify(model=str(literate), tasks=["ioi", "greater-than"], out=tmp_path / "a", recipe=recipe)
    assert set(report.losses) == {"ioi", "greater-than"}
    assert set(report.tasks) == {"greater-than", "ioi", "docstring", "ioi-long"}
    for before, after in report.tasks.values():
        for found in (before, after):
            assert 0 <= found.accuracy <= 1
            assert -1 <= found.prob_diff <= 1


def test_top1_is_of_the_likeliest_token_and_accuracy_of_all_answers(literate):
    loaded = load_untapped(str(literate), device=find_device())
    prompts = make_task("greater-than", vocabulary_of(loaded), 40) + make_task(
        "ioi", vocabulary_of(loaded), 40
    )
    found = accuracy(loaded.parts, prompts)
    guessed, right, difference = 0, 0, 0.0
    for prompt in prompts:  # one by one, with the model's own call
        with torch.no_grad():
            chances = (
                loaded.model(torch.tensor([prompt.clean_ids]), use_cache=False).logits[0, -1].softmax(-1)
            )
        guessed += int(chances.argmax()) in prompt.correct_ids
        more = float(sum(chances[i] for i in prompt.correct_ids) - sum(chances[i] for i in prompt.wrong_ids))
        right += more > 0
        difference += more
    assert found.top1 == pytest.approx(guessed / 80)
    assert found.accuracy == pytest.approx(right / 80)
    assert found.accuracy != found.top1
    assert found.prob_diff == pytest.approx(difference / 80, abs=1e-5)


def bad(tmp_path: Path, dense: Path, literate: Path, texts: list[Path]) -> dict[str, str]:
    gated = tmp_path / "gated"
    shutil.copytree(dense, gated)
    config = json.loads((gated / "config.json").read_text()) | {"gate_bias": [[0.0, 0.0]] * 2}
    (gated / "config.json").write_text(json.dumps(config))
    bare = tmp_path / "bare"
    shutil.copytree(dense, bare, ignore=shutil.ignore_patterns("tokenizer*"))
    (tmp_path / "there").mkdir()
    (tmp_path / "short.txt").write_text("w1 w2 w3")
    (tmp_path / "one.jsonl").write_text('{"text": "w1 w2 w3"}')
    (tmp_path / "same.jsonl").write_text('{"text": "w1 w2 w3"}\n' * 30)
    (tmp_path / "ioi.jsonl").write_text('{"text": "w1 w2 w3"}\n' * 3)
    (tmp_path / "up.jsonl").write_text('{"text": "w1 w2 w3"}\n' * 3)
    model, text, out = f"--model {dense}", f"--text {texts[0]}", f"--out {tmp_path}/new"
    return {
        f"{model} {out}": "There is nothing to train on: give --text FILE or --task NAME",
        f"{model} {text} --out {tmp_path}/there": "there' is there already: choose another --out, or remove it",
        f"--model {gated} {text} {out}": "is gated already: start from a dense one",
        f"{model} {text} {out} --epsilon -0.1": "--epsilon -0.1 is below 0",
        f"{model} {text} {out} --epsilon nan": "--epsilon nan is below 0",
        f"{model} {text} {out} --steps 0": "--steps is 0: it must be at least 1",
        f"{model} {text} {out} --context 1": "--context 1 leaves nothing to predict",
        f"{model} {text} {out} --lora 0": "--lora 0 is no rank",
        f"{model} {text} {out} --distill -1": "--distill -1.0 is below 0",
        f"{model} {text} {out} --slack -1": "--slack -1.0 is below 0",
        f"{model} --text {tmp_path}/short.txt {out}": "has 3 tokens, fewer than one stretch of 16",
        f"{model} --text {tmp_path}/one.jsonl {out}": "another has to be held out",
        f"{model} --text {tmp_path}/same.jsonl {out}": "another has to be held out",
        f"{model} --text {tmp_path}/none.txt {out}": "There is no text",
        f"{model} {text} --text {tmp_path}/up.jsonl {out}": "Two texts have the same name",
        f"{model} --task ioi {out}": "The task 'ioi' needs five names that are one token each",
        f"{model} --task iio {out}": "There is no task 'iio'",
        f"--model {literate} --text {tmp_path}/ioi.jsonl --task ioi {out}": "is the name of a text and of a task",
        f"--model {bare} {text} {out}": "The model has no tokenizer",
        f"--model {tmp_path}/nowhere {text} {out}": "There is no model folder",
    }


def test_a_wrong_call_gets_one_sentence_and_writes_nothing(cli, dense, literate, texts, tmp_path):
    for call, message in bad(tmp_path, dense, literate, texts).items():
        result = cli("sparsify", *call.split())
        assert (result.status, result.out) == (2, ""), call
        assert message in result.err, call
        assert len(result.err.splitlines()) == 1, call
        assert not (tmp_path / "new").exists()
        assert not (tmp_path / "new.partial").exists()


def test_the_command_prints_a_table_and_goes_on_where_it_was_stopped(cli, dense, texts, tmp_path):
    arguments = ["sparsify", "--model", dense, "--text", texts[0], "--out", tmp_path / "a", "--steps", 2]
    result = cli(*arguments, "--context", 12, "--epsilon", 5)
    assert result.status == 0
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["measure", "dense", "sparse", "at_most"]
    assert {" ".join(line[:2]) for line in lines[2:]} == {"loss, up", "open gates"}
    assert "% of the gates are open" in result.err
    assert "Next: wirescope extract --model" in result.err


@pytest.mark.parametrize(("kept_step", "warned"), [(100, True), (900, False)])
def test_it_is_said_when_the_later_steps_brought_nothing(kept_step, warned, tmp_path, capsys):
    report = Report(1_000, kept_step, 0.01, 0.9, {"up": (1.0, 1.005)}, {})
    sparsifying._conclude(report, tmp_path)
    assert ("No later one is sparser and still within it" in capsys.readouterr().err) == warned
