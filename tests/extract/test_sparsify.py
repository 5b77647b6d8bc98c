"""Sparse post-training of a very small model on made-up text."""

import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from corpus import make_tokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from wirescope.cli import sparsifying
from wirescope.cli.stopping import farewell
from wirescope.data import make_task, read_catalog
from wirescope.errors import ExtractionError, InputError
from wirescope.extract import Settings, extract, find_device
from wirescope.extract import constraint as constraint_module
from wirescope.extract import gates as gates_module
from wirescope.extract import sparsify as sparsify_module
from wirescope.extract.accuracy import accuracy
from wirescope.extract.batches import Batches
from wirescope.extract.constraint import Constraint
from wirescope.extract.models import load_untapped, vocabulary_of
from wirescope.extract.predictions import Compared
from wirescope.extract.recipe import Recipe
from wirescope.extract.sparsify import Report, sparsify
from wirescope.extract.student import Student, states_of
from wirescope.extract.training import Trainer

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


def test_a_sparse_twin_is_an_ordinary_folder_with_gates_and_a_report(dense, texts, tmp_path):
    told = Told()
    report = sparsify(model=str(dense), texts=texts, out=tmp_path / "sparse", recipe=QUICK, listener=told)
    assert set(report.losses) == {"up", "again"}
    assert 0 < report.open_gates < 1
    assert all(sparse <= loss + QUICK.epsilon for loss, sparse in report.losses.values())
    assert report.tasks == {}  # no word of the tasks is known
    assert told.steps == 6
    assert "loss" in told.statuses[0]
    assert "% open, price" in told.statuses[0]
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


def test_a_control_is_trained_for_as_long_without_gates(cli, dense, texts, tmp_path):
    recipe = replace(QUICK, control=True, epsilon=0.0)  # which binds nothing
    told = Told()
    report = sparsify(model=str(dense), texts=texts, out=tmp_path / "control", recipe=recipe, listener=told)
    assert (report.open_gates, report.kept_step) == (1, recipe.steps)
    assert all("100.00 % open, price 0.00" in status for status in told.statuses)
    config = json.loads((tmp_path / "control/config.json").read_text())
    assert "gate_bias" not in config
    assert config["base_model"] == str(dense)
    before, after = weights(dense), weights(tmp_path / "control")
    assert any(not torch.equal(before[key], after[key]) for key in before)
    # A twin whose gates are open for good, and cost nothing, is trained in the same steps.
    losses = []
    for name in ("control", "twin"):
        trainer = begun(dense, texts, tmp_path / name, replace(recipe, control=name == "control"))
        if name == "twin":
            trainer._twins.student.gates.bias.data.fill_(math.inf)
        losses.append(torch.stack([trainer._descend(step, 1e-3, 0.0, 0.0).own for step in range(4)]))
    assert (losses[0][0] - losses[0][-1]).abs().nan_to_num().max() > 0.01
    torch.testing.assert_close(losses[0], losses[1], atol=1e-4, rtol=0, equal_nan=True)
    arguments = ["sparsify", "--model", dense, "--out", tmp_path / "a", "--steps", 2, "--context", 12]
    result = cli(*arguments, "--text", texts[0], "--learning-rate", 1e-4, "--batch-size", 4, "--control")
    assert result.status == 0, result.err
    assert "the dense model after 2 more steps without gates, to compare a twin with" in result.err


def test_what_is_reported_is_so_of_the_folder(dense, texts, tmp_path):
    report = sparsify(model=str(dense), texts=texts, out=tmp_path / "sparse", recipe=QUICK)
    loaded = load_untapped(str(tmp_path / "sparse"), device=find_device())
    student = Student(loaded.model, loaded.parts, torch.tensor(loaded.model.config.gate_bias)).eval()
    lines = dict.fromkeys(json.loads(line)["text"] for line in texts[1].read_text().splitlines())
    lines = list(lines)[::10]  # the ones that are held out
    total = tokens = 0.0
    with torch.no_grad():
        for line in lines:  # one by one: without padding
            ids = torch.tensor([loaded.tokenizer(line)["input_ids"]])
            logits = loaded.parts.unembed(student(ids, torch.ones_like(ids, dtype=torch.bool))[0])
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


def script(monkeypatch, tries: dict[int, tuple[float, float, float]]) -> None:
    """Held-out text then says, by step: the share of open gates, and the excess on `up` and on `again`."""
    held_out = Trainer._held_out

    def scripted(self, *, gated):
        losses, divergences, share = held_out(self, gated=gated)
        if not gated:
            return losses, divergences, share
        share, *excess = tries[self._step]
        losses = {kind: self.dense_losses[kind] + own for kind, own in zip(losses, excess, strict=True)}
        return losses, divergences, share

    monkeypatch.setattr(Trainer, "_held_out", scripted)


def test_the_sparsest_model_within_the_constraint_is_kept(dense, texts, tmp_path, monkeypatch):
    script(monkeypatch, {0: (1.0, 0, 0), 2: (0.5, 4.0, 0), 4: (0.2, 0, 6.0), 6: (0.3, 4.9, 4.9)})
    report = sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=QUICK)
    assert (report.kept_step, report.open_gates) == (6, 0.3)


def test_each_kind_has_a_bound_of_its_own(dense, texts, tmp_path, monkeypatch):
    script(monkeypatch, {0: (1.0, 0, 0), 2: (0.5, 0.9, 6.5), 4: (0.2, 1.1, 6.5), 6: (0.3, 0.9, 7.1)})
    recipe = replace(QUICK, epsilon=1.0, epsilons={"again": 7.0})
    report = sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=recipe)
    assert report.kept_step == 2
    assert report.bounds == {"up": ("loss", 1.0), "again": ("loss", 7.0)}


def test_where_none_meets_the_constraint_the_nearest_waits_for_a_larger_epsilon(
    dense, texts, tmp_path, monkeypatch
):
    script(monkeypatch, {0: (1.0, 0, 0), 2: (0.5, 9.0, 0), 4: (0.4, 6.123, 5.5), 6: (0.3, 7.0, 7.0)})
    message = (
        r"No model met .* after 4 steps with 40\.00 % of the gates open, .* 6\.123 nats a token on up, where 5\.0 are "
        r".*a\.partial': the same call with --epsilon up=6\.2 --epsilon again=5\.5 writes it"
    )
    with pytest.raises(ExtractionError, match=message):
        sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=QUICK)
    assert [file.name for file in tmp_path.iterdir()] == ["a.partial"]
    with pytest.raises(InputError, match="another slack"):
        sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=replace(QUICK, slack=0.3))
    with pytest.raises(ExtractionError, match="No model met"):  # not large enough
        sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=replace(QUICK, epsilon=6.0))
    kept = torch.load(tmp_path / "a.partial/best.pt", weights_only=True)
    told, larger = Told(), replace(QUICK, epsilons={"up": 6.2, "again": 5.5})
    report = sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=larger, listener=told)
    assert (report.kept_step, told.steps) == (4, 0)  # nothing was trained again
    assert report.bounds["up"] == ("loss", 6.2)
    config = json.loads((tmp_path / "a/config.json").read_text())
    assert config["gate_bias"] == kept["gates.bias"].double().tolist()
    name = "transformer.h.0.mlp.c_fc.weight"
    assert torch.equal(weights(tmp_path / "a")[name], kept[f"model.{name}"])
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(("excess", "said"), [(0.01234, "0.013"), (0.05, "0.05"), (6.0, "6"), (123.0, "130")])
def test_the_epsilon_that_is_named_suffices(excess, said):
    assert sparsify_module._rounded_up(excess) == said
    assert float(said) >= excess


@pytest.mark.parametrize("stop_at", [1, 3, 4])
def test_a_training_that_was_stopped_ends_in_the_same_weights(dense, texts, tmp_path, stop_at):
    def train(out: Path, **options):
        recipe = replace(QUICK, divergent=("up",), accumulate=2, positions=20, learning_rate=None)
        sparsify(model=str(dense), texts=texts, out=out, recipe=recipe, **options)

    train(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "stopped", listener=Told(stop_at))
    assert not (tmp_path / "stopped").exists()
    told = Told()
    train(tmp_path / "stopped", listener=told)
    assert told.done == stop_at // 2 * 2 - 2 * (
        stop_at % 2 == 0
    )  # the last that was saved, before it stopped
    resumed = [
        note for note in told.notes if note.startswith(f"Resumed after {told.done} of 6 steps, where ")
    ]
    assert len(resumed) == (told.done > 0)
    assert same(tmp_path / "whole", tmp_path / "stopped")
    reports = [json.loads((tmp_path / name / "sparsify.json").read_text()) for name in ("whole", "stopped")]
    assert reports[0] == reports[1]


def test_another_call_does_not_go_on_with_it(dense, texts, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=QUICK, listener=Told(3))
    with pytest.raises(InputError, match=r"a\.partial' is of a training with another steps"):
        sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=replace(QUICK, steps=8))
    with pytest.raises(InputError, match=r"a\.partial' is of a training with another epsilon"):
        sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=replace(QUICK, epsilon=8.0))
    with pytest.raises(InputError, match=r"a\.partial' is of a training with another kinds"):
        sparsify(model=str(dense), texts=texts[:1], out=tmp_path / "a", recipe=QUICK)


def test_the_constraint_is_on_documents_without_noise(dense, texts, tmp_path, monkeypatch):
    seen = {}

    def excesses(chance: float) -> list[torch.Tensor]:
        seen[chance] = []
        monkeypatch.setattr(Constraint, "update", lambda _, excess, __: seen[chance].append(excess))
        monkeypatch.setattr(
            gates_module, "_noise", lambda like, _seed, chance=chance: torch.full_like(like, chance).logit()
        )
        recipe = replace(QUICK, steps=2, learning_rate=0.0, gate_rate=0.0, closed=0.5, epsilon=100.0)
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
    recipe = replace(QUICK, steps=60, evaluate_every=20, batch_size=8, epsilon=0.5, gate_rate=0.1)
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
    recipe = replace(QUICK, lora=2, learning_rate=0.05, closed=0.4)
    report = sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=recipe)
    loaded = [load_untapped(str(folder), device=find_device()).model for folder in (dense, tmp_path / "a")]
    before, after = (model.state_dict() for model in loaded)
    assert before.keys() == after.keys()
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed
    assert all(before[key].dim() == 2 and "embed" not in key and "wte" not in key for key in changed)
    assert report.losses["up"][0] != report.losses["up"][1]
    assert report.tried[0]["divergences"]["up"] < report.divergences["up"]  # from a model without adapters
    plain = sparsify(model=str(dense), texts=texts, out=tmp_path / "b", recipe=replace(QUICK, steps=1))
    assert {kind: loss for kind, (loss, _) in plain.losses.items()} == pytest.approx(
        {kind: loss for kind, (loss, _) in report.losses.items()}, abs=1e-6
    )


@pytest.mark.slow
def test_two_processes_train_one_model_at_one_pace(dense, texts, tmp_path):
    (tmp_path / "told.py").write_text(
        "import os, runpy\n"
        "from wirescope.extract.constraint import Constraint\n"
        "update = Constraint.update\n"
        "def told(self, excess, step):\n"
        "    update(self, excess, step)\n"
        f"    with open({str(tmp_path)!r} + '/pace-' + os.environ['RANK'], 'a') as file:\n"
        "        print(step, excess.tolist(), self.price, self.weights.tolist(), file=file)\n"
        "Constraint.update = told\n"
        "runpy.run_module('wirescope.cli', run_name='__main__')\n"
    )
    arguments = ["sparsify", "--model", dense, "--out", tmp_path / "a", "--accumulate", 2]
    arguments += [argument for text in texts for argument in ("--text", text)]
    arguments += ["--steps", 4, "--batch-size", 4, "--context", 12, "--evaluate-every", 2, "--epsilon", 5]
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", 2, tmp_path / "told.py"]
    command = [sys.executable, "-m", *map(str, launch), *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("open gates") == 1  # one of them reports
    assert done.stderr.count("Sparse post-training in 4 steps") == 1
    assert done.stderr.count("Learning rate ") == 1
    paces = [(tmp_path / f"pace-{rank}").read_text() for rank in (0, 1)]
    assert paces[0] == paces[1]
    assert len(paces[0].splitlines()) == 4
    assert json.loads((tmp_path / "a/config.json").read_text())["base_model"] == str(dense)
    assert not (tmp_path / "a.partial").exists()


def begun(dense: Path, texts: list[Path], folder: Path, recipe: Recipe, **given) -> Trainer:
    loaded = load_untapped(str(dense), device=find_device())
    kinds = sparsify_module._kinds(texts, (), vocabulary_of(loaded), recipe)
    return Trainer(loaded, kinds, recipe, folder, Told(), **given)


def slopes(trainer: Trainer) -> dict[str, torch.Tensor]:
    named = trainer._twins.student.named_parameters()
    return {name: weight.grad for name, weight in named if weight.grad is not None}


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_parts_of_a_batch_have_the_gradient_of_the_whole(parts, dense, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(gates_module, "_noise", lambda like, _seed: torch.full_like(like, 0.2).logit())
    found = []
    for accumulate in (1, parts):
        recipe = replace(QUICK, batch_size=8, accumulate=accumulate)
        trainer = begun(dense, texts, tmp_path, recipe, divergent=("again",))
        trainer._constraint.weights = torch.tensor([0.5, 1.5])
        done = trainer._descend(3, 0.0, 0.0, 2.0)
        found.append((slopes(trainer), done))
    (whole, one), (cut, other) = found
    assert whole.keys() == cut.keys()
    assert "gates.bias" in whole
    assert "model.transformer.wte.weight" not in whole
    for name, slope in whole.items():
        torch.testing.assert_close(cut[name], slope, atol=1e-6, rtol=1e-5)
    assert other.share == pytest.approx(one.share, abs=1e-6)
    torch.testing.assert_close(other.excess, one.excess, atol=1e-6, rtol=0)


def test_padding_counts_for_nothing(dense, texts, tmp_path, monkeypatch):
    plain, found, seen = Batches._part, [], []
    for padding in (0, 7):

        def padded(self, documents, noisy, padding=padding):
            part = plain(self, documents, noisy)
            seen.append(not part.real.all())
            return replace(part, ids=part.ids.where(part.real, padding))

        monkeypatch.setattr(Batches, "_part", padded)
        trainer = begun(dense, texts, tmp_path, replace(QUICK, batch_size=8))
        done = trainer._descend(0, 0.0, 0.0, 2.0)
        found.append((slopes(trainer), done, trainer._held_out(gated=True)))
    (one, done, held_out), (other, done_other, held_out_other) = found
    for name, slope in one.items():
        torch.testing.assert_close(other[name], slope, atol=0, rtol=0)
    assert done_other.share == done.share
    assert torch.equal(done_other.excess, done.excess)
    assert held_out_other == held_out
    assert seen.count(True) > 4  # there was padding


@torch.no_grad()
def test_what_a_step_sees_is_what_the_finished_model_does(dense, texts, tmp_path):
    trainer = begun(dense, texts, tmp_path, replace(QUICK, batch_size=8, closed=0.5), divergent=("again",))
    plain = load_untapped(str(dense), device=find_device())
    finished = load_untapped(str(dense), device=find_device())
    finished.model.config.gate_bias = trainer._twins.student.gates.biases()
    (part,) = trainer._batches.of_step(5)
    assert part.noisy.tolist() == [False, True] * 4
    own, other, divergence = (torch.zeros(2), torch.zeros(2), torch.zeros(2))
    count = torch.zeros(2)
    for ids, real, kind, noisy in zip(part.ids, part.real, part.kind, part.noisy, strict=True):
        if noisy:
            continue
        document = ids[real][None]
        logs, dense_logs = (
            each.parts.unembed(states_of(each.parts, document))[0, :-1].log_softmax(-1)
            for each in (finished, plain)
        )
        places = range(len(document[0]) - 1), document[0, 1:]
        own[kind] -= logs[places].sum()
        other[kind] -= dense_logs[places].sum()
        divergence[kind] += (dense_logs.exp() * (dense_logs - logs)).sum()
        count[kind] += len(document[0]) - 1
    with torch.enable_grad():
        done = trainer._descend(5, 0.0, 0.0, 1.0)
    torch.testing.assert_close(done.own, own / count)
    torch.testing.assert_close(done.dense, other / count)
    expected = torch.stack([(own - other)[0] / count[0], divergence[1] / count[1]])
    torch.testing.assert_close(done.excess, expected, atol=1e-6, rtol=1e-5)
    assert expected.abs().min() > 1e-3


def test_a_range_test_finds_a_learning_rate_and_leaves_no_trace(dense, texts, tmp_path):
    told = Told()
    recipe = replace(QUICK, learning_rate=None)
    found = sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=recipe, listener=told)
    assert any(
        note.startswith(f"Learning rate {found.learning_rate:.1e}, by a range test") for note in told.notes
    )
    assert 1e-5 < found.learning_rate < 0.02
    given = replace(QUICK, learning_rate=found.learning_rate)
    assert sparsify(model=str(dense), texts=texts, out=tmp_path / "b", recipe=given) == found
    assert same(tmp_path / "a", tmp_path / "b")


def test_passes_in_bfloat16_train_float32_weights_and_are_judged_in_float32(
    dense, texts, tmp_path, monkeypatch
):
    seen, apply = set(), Compared.apply

    def spied(student, *others):
        seen.add((torch.is_grad_enabled(), student.dtype))
        return apply(student, *others)

    monkeypatch.setattr(Compared, "apply", spied)
    report = sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=QUICK, dtype="bfloat16")
    assert seen == {(True, torch.bfloat16), (False, torch.float32)}
    loaded = load_untapped(str(tmp_path / "a"), device=find_device(), dtype="auto")
    assert loaded.model.dtype == torch.float32
    lines = list(dict.fromkeys(texts[0].read_text().split()))  # words; the text is cut into stretches of 12
    ids = loaded.tokenizer(texts[0].read_text())["input_ids"]
    stretches = list(dict.fromkeys(tuple(ids[i : i + 12]) for i in range(0, len(ids) - 11, 12)))[::10]
    total = 0.0
    with torch.no_grad():
        for stretch in stretches:
            own = torch.tensor([stretch])
            logs = loaded.model(own, use_cache=False).logits[0, :-1].log_softmax(-1)
            total -= float(logs[range(11), own[0, 1:]].mean())
    assert lines
    assert report.losses["up"][1] == pytest.approx(total / len(stretches), abs=1e-5)
    changed = sparsify(model=str(dense), texts=texts, out=tmp_path / "b", recipe=QUICK)
    assert changed.losses["up"] != report.losses["up"]


def test_weights_that_are_being_ruined_stop_the_training(dense, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(constraint_module, "_PATIENCE", 5)
    recipe = replace(QUICK, steps=300, learning_rate=0.9, epsilon=0.01, slack=0.05, evaluate_every=20)
    told = Told()
    with pytest.raises(ExtractionError) as caught:
        sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=recipe, listener=told)
    said = re.match(
        r"Stopped after (\d+) steps: the excess on (up|again) is [\d.]+ nats a token and grows, though open gates have "
        r"cost nothing for \d+ steps\. .* --learning-rate, which is 9\.0e-01, or raise --batch-size, which is 4\.$",
        str(caught.value),
    )
    assert said
    assert int(said.group(1)) < 100
    assert not (tmp_path / "a").exists()


def test_numbers_that_are_none_stop_the_training(dense, texts, tmp_path, monkeypatch):
    plain = Student.forward

    def broken(self, ids, real, noisy=None):
        states, is_open = plain(self, ids, real, noisy)
        return (states if noisy is None else states * torch.nan), is_open

    monkeypatch.setattr(Student, "forward", broken)
    with pytest.raises(
        ExtractionError, match="Stopped after 1 steps: the excess on up is no number any more"
    ):
        sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=QUICK)


def test_a_control_is_stopped_only_by_numbers_that_are_none(dense, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(constraint_module, "_PATIENCE", 5)
    wild = replace(
        QUICK, control=True, steps=100, learning_rate=0.9, epsilon=0.01, slack=0.05, evaluate_every=20
    )
    told = Told()
    report = sparsify(model=str(dense), texts=texts, out=tmp_path / "a", recipe=wild, listener=told)
    assert report.kept_step == 100
    assert not [note for note in told.notes if "have cost nothing" in note]
    descend = Trainer._descend

    def broken(self, *given):
        return replace(descend(self, *given), excess=torch.tensor([math.inf, 0.0]))

    monkeypatch.setattr(Trainer, "_descend", broken)
    message = (
        r"the excess on up is no number any more\. The weights are ruined: .* and train the twin likewise\.$"
    )
    with pytest.raises(ExtractionError, match=message):
        sparsify(model=str(dense), texts=texts, out=tmp_path / "b", recipe=wild)


def test_what_is_said_of_a_training_that_is_stopped_is_so(cli, dense, texts, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(sparsifying.Bar, "status", lambda _bar, _text: said.append(farewell()))
    arguments = ["sparsify", "--model", dense, "--out", tmp_path / "a", "--steps", 4, "--evaluate-every", 2]
    arguments += [
        "--text",
        texts[0],
        "--context",
        12,
        "--learning-rate",
        1e-4,
        "--batch-size",
        4,
        "--epsilon",
        5,
    ]
    assert cli(*arguments).status == 0
    anew = "Stopped. There was no look at held-out text yet: the same command begins anew."
    on = "Stopped. The same command goes on from the last look at held-out text, which"
    assert said == [anew, anew, *[f"{on} '{tmp_path}/a.partial' keeps."] * 2]


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
    assert report.bounds == {"ioi": ("divergence", 5.0), "greater-than": ("divergence", 5.0)}
    assert report.tried[-1]["excess"] == report.divergences
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
        f"{model} {text} {out} --epsilon -0.1": "--epsilon -0.1 is no number from 0",
        f"{model} {text} {out} --epsilon nan": "--epsilon nan is no number from 0",
        f"{model} {text} {out} --epsilon up=-1": "--epsilon up=-1.0 is no number from 0",
        f"{model} {text} {out} --epsilon up=": "--epsilon up= is no number of nats: write 0.01, or KIND=0.01",
        f"{model} {text} {out} --epsilon much": "--epsilon much is no number of nats",
        f"{model} {text} {out} --epsilon down=0.1": "--epsilon names 'down', but the kinds of text are up",
        f"{model} {text} {out} --divergence down": "--divergence names 'down', but the kinds of text are up",
        f"{model} {text} {out} --accumulate 0": "--accumulate is 0: it must be at least 1",
        f"{model} {text} {out} --positions 0": "--positions is 0: it must be at least 1",
        f"{model} {text} {out} --learning-rate 3": "--learning-rate 3.0 is no learning rate",
        f"{model} {text} {out} --control": "A control is trained at the learning rate of its twin: give",
        f"{model} {text} {out} --gate-rate nan": "--gate-rate is nan: it must be a number from 0",
        f"{model} {text} {out} --dtype float16": "'float16' is not a dtype of sparse post-training",
        f"{model} {text} {out} --steps 0": "--steps is 0: it must be at least 1",
        f"{model} {text} {out} --context 1": "--context 1 leaves nothing to predict",
        f"{model} {text} {out} --lora 0": "--lora 0 is no rank",
        f"{model} {text} {out} --distill -1": "--distill is -1.0: it must be a number from 0",
        f"{model} {text} {out} --slack -1": "--slack is -1.0: it must be a number from 0",
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


def test_the_command_prints_a_table_with_the_bound_of_each_kind(cli, dense, texts, tmp_path):
    arguments = ["sparsify", "--model", dense, "--out", tmp_path / "a", "--steps", 2, "--context", 12]
    arguments += ["--text", texts[0], "--text", texts[1], "--learning-rate", 1e-4, "--batch-size", 4]
    result = cli(*arguments, "--epsilon", 5, "--epsilon", "again=7", "--divergence", "again")
    assert result.status == 0, result.err
    lines = {line[:19].strip(): line[19:].split() for line in result.out.splitlines()}
    assert lines["measure"] == ["dense", "sparse", "at_most"]
    assert lines.keys() - {"measure"} - {name for name in lines if name.startswith("─")} == {
        "loss, up",
        "loss, again",
        "divergence, again",
        "open gates",
    }
    assert float(lines["loss, up"][2]) == pytest.approx(float(lines["loss, up"][0]) + 5, abs=0.01)
    assert lines["loss, again"][2] == "-"  # which is not what is bounded
    assert [lines["divergence, again"][i] for i in (0, 2)] == ["0", "7"]
    assert "% of the gates are open" in result.err
    assert f"Its course is drawn in '{tmp_path}/a/sparsify.svg'." in result.err
    assert "again (divergence)" in (tmp_path / "a/sparsify.svg").read_text()
    assert "Next: wirescope extract --model" in result.err


def test_the_course_of_a_training_that_failed_is_drawn_as_well(cli, dense, texts, tmp_path):
    arguments = ["sparsify", "--model", dense, "--out", tmp_path / "a", "--steps", 2, "--context", 12]
    arguments += ["--text", texts[0], "--divergence", "up", "--learning-rate", 0.5, "--batch-size", 4]
    result = cli(*arguments, "--epsilon", 0)
    assert (result.status, result.out) == (1, "")
    assert "No model met the constraint" in result.err
    assert f"Its course is drawn in '{tmp_path}/a.partial/sparsify.svg'." in result.err
    larger = re.search(r"--epsilon up=\S+", result.err).group().split()
    done = cli(*arguments, *larger)
    assert done.status == 0, done.err
    assert (tmp_path / "a/sparsify.svg").is_file()


def report_of(**given) -> Report:
    usual = {
        "steps": 1_000,
        "kept_step": 900,
        "learning_rate": 1e-4,
        "control": False,
        "open_gates": 0.01,
        "losses": {"up": (1.0, 1.005)},
        "divergences": {"up": 0.004},
        "bounds": {"up": ("loss", 0.01)},
        "tried": [],
        "tasks": {},
    }
    return Report(**usual | given)


@pytest.mark.parametrize(("kept_step", "warned"), [(100, True), (900, False)])
def test_it_is_said_when_the_later_steps_brought_nothing(kept_step, warned, tmp_path, capsys):
    sparsifying._conclude(report_of(kept_step=kept_step), tmp_path)
    assert ("No later one is sparser and still within it" in capsys.readouterr().err) == warned


@pytest.mark.parametrize(
    ("sparse", "bounded", "warned"), [(0.7, "loss", True), (0.95, "loss", False), (0.7, "divergence", False)]
)
def test_it_is_said_when_a_text_was_learnt_and_its_bound_binds_nothing(
    sparse, bounded, warned, tmp_path, capsys
):
    report = report_of(losses={"up": (1.0, sparse)}, bounds={"up": (bounded, 0.01)})
    sparsifying._conclude(report, tmp_path)
    assert ("--divergence up bounds the divergence" in capsys.readouterr().err) == warned
