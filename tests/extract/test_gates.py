"""Gates: open they change nothing, in training they are drawn, in evaluation they are hard."""

import math

import pytest
import torch
from wirescope.extract import FAMILIES, find_device
from wirescope.extract.gates import FirstBiases, Gates
from wirescope.extract.models import prepared
from wirescope.extract.student import Student, states_of

IDS = torch.tensor([[5, 9, 3, 7, 1, 2], [4, 4, 8, 0, 0, 0]])
REAL = torch.tensor([[True] * 6, [True] * 3 + [False] * 3])


@pytest.fixture
def loaded(make_model):
    def get(name: str):
        model = make_model(name)
        return prepared(model, name, FAMILIES[model.config.model_type], find_device())

    return get


def filled(parts, bias: float) -> torch.Tensor:
    return torch.full((parts.shape.layers, parts.shape.heads), bias)


def share(gates: Gates) -> torch.Tensor:
    is_open, pairs = gates.counts()
    return is_open / pairs


def begun(gates: Gates, real: torch.Tensor = REAL) -> Gates:
    gates.begin(real, torch.ones(len(real), dtype=torch.bool))
    return gates


def test_open_gates_give_the_dense_models_own_logits(family, loaded):
    if family.endswith("gated"):
        pytest.skip("has gates of its own")
    dense, plain = loaded(family), loaded(family)
    dense.model.config.gate_bias = [[math.inf] * dense.parts.shape.heads] * dense.parts.shape.layers
    with torch.no_grad():
        own = plain.model(IDS, use_cache=False).logits
        torch.testing.assert_close(dense.model(IDS, use_cache=False).logits, own, atol=1e-5, rtol=0)
        for bias in (1e6, math.inf):
            student = Student(plain.model, plain.parts, filled(plain.parts, bias)).eval()
            states, is_open = student(IDS, REAL)
            torch.testing.assert_close(plain.parts.unembed(states)[REAL], own[REAL], atol=1e-5, rtol=0)
            assert is_open == 1


@pytest.mark.parametrize("name", ["gpt2", "llama", "olmo", "neox"])
def test_a_student_in_evaluation_is_the_model_that_its_config_makes(name, loaded):
    loaded_model = loaded(name)
    student = Student(loaded_model.model, loaded_model.parts, filled(loaded_model.parts, 0.0)).eval()
    torch.nn.init.uniform_(student.gates.bias, -0.5, 0.5)
    with torch.no_grad():
        states, is_open = student(IDS, REAL)
        loaded_model.model.config.gate_bias = student.gates.biases()
        torch.testing.assert_close(states_of(loaded_model.parts, IDS)[REAL], states[REAL], atol=1e-5, rtol=0)
    assert 0 < is_open < 1


def test_a_closed_gate_takes_its_share_away_without_renormalising(loaded):
    closed = loaded("gpt2")
    parts = closed.parts
    closed.model.config.gate_bias = [[-math.inf] * parts.shape.heads] * parts.shape.layers
    seen = []
    parts.blocks[0].out.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        closed.model(IDS, use_cache=False)
    assert seen[0].abs().max() == 0


CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()


def through(gates: Gates, logits: torch.Tensor, layer: int = 0, scaling: float = 1.0) -> torch.Tensor:
    """Attention whose logits, patterns and values are in plain sight: keys and values are the unit vectors."""
    unit = torch.eye(logits.shape[-1]).expand(*logits.shape[:2], -1, -1)
    return gates(layer, logits / scaling, unit, unit, CAUSAL, scaling)  # [document, head, query, key]


def drawn_again(gates: Gates, layer: int, heads: int) -> list[torch.Tensor]:
    """The noise of each document, [head, query, key]."""
    found = []
    for document in gates._documents:
        shape = (heads, document.length, document.length)
        if document.seed is None:
            found.append(torch.zeros(shape))
        else:
            uniform = torch.rand(
                shape, generator=torch.Generator().manual_seed(document.seed + layer)
            ).double()
            found.append((uniform.log() - (1 - uniform).log()).float())
    return found


def plain(gates: Gates, layer: int, q, k, v, allowed, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """z and the expected number of open gates by the definitions, with nothing but autograd."""
    z, is_open, bias = torch.zeros_like(v), torch.zeros(()), gates.bias[layer][:, None, None]
    for one, noise in enumerate(drawn_again(gates, layer, q.shape[1])):
        n = noise.shape[-1]
        logits = torch.einsum("hid,hjd->hij", q[one, :, :n], k[one, :, :n]) * scaling
        pattern = logits.masked_fill(~allowed[:n, :n], -torch.inf).softmax(-1)
        soft = torch.sigmoid(logits + bias + noise)
        gate = ((logits + bias + noise > 0).float() - soft).detach() + soft  # straight through
        own = torch.einsum("hij,hjd->hid", pattern * gate, v[one, :, :n])
        z = z + torch.nn.functional.pad(own, (0, 0, 0, z.shape[2] - n))[None] * (
            torch.arange(len(z)) == one
        ).view(-1, 1, 1, 1)
        is_open = is_open + (torch.sigmoid(logits + bias) * allowed[:n, :n]).sum()
    return z, is_open


@pytest.mark.parametrize("window", [None, 3])
def test_attention_through_drawn_gates_and_its_gradients_are_those_of_the_definitions(window):
    torch.manual_seed(2)
    allowed = CAUSAL if window is None else CAUSAL & ~torch.ones_like(CAUSAL).tril(-window)
    gates = Gates(torch.tensor([[0.0, 0.0], [0.3, -0.4]]))
    gates.begin(REAL, torch.tensor([True, False]))
    given = [torch.randn(2, 2, 6, 4).requires_grad_() for _ in "qkv"]
    towards = torch.randn(2, 2, 6, 4)
    results = []
    for attention in (gates, lambda *given: plain(gates, *given)):
        found = attention(1, *given, allowed, 0.7)
        z, is_open = found if isinstance(found, tuple) else (found, gates.counts()[0])
        loss = (z * towards).sum() + 0.3 * is_open
        results.append((z, is_open, *torch.autograd.grad(loss, [*given, gates.bias])))
    for own, reference in zip(*results, strict=True):
        torch.testing.assert_close(own, reference, atol=2e-5, rtol=1e-4)
    assert results[0][0].abs().sum() > 0 and results[0][-1][1].abs().min() > 0


def test_drawn_gates_are_open_as_often_as_the_sigmoid_says():
    documents = 20_000
    gates = begun(Gates(torch.tensor([[0.7]])), torch.ones(documents, 1, dtype=torch.bool))
    torch.manual_seed(0)
    begun(gates, torch.ones(documents, 1, dtype=torch.bool))
    one = torch.ones(documents, 1, 1, 1)
    drawn = gates(0, 0.4 * one, one, one, CAUSAL[:1, :1], 1.0).detach()
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    expected = 1 / (1 + math.exp(-1.1))
    assert abs(float(drawn.mean()) - expected) < 4 * math.sqrt(expected * (1 - expected) / documents)
    assert share(gates).detach() == pytest.approx(expected, abs=1e-6)


def test_no_two_documents_layers_or_passes_share_their_noise():
    torch.manual_seed(0)
    gates = Gates(torch.zeros(2, 1))
    seen = []
    for _ in range(2):
        begun(gates, torch.ones(2, 6, dtype=torch.bool))
        seen += [noise for layer in range(2) for noise in drawn_again(gates, layer, 1)]
    assert len({tuple(noise.flatten().tolist()) for noise in seen}) == 8


def test_the_share_is_over_pairs_of_real_tokens_that_attention_may_use():
    gates = begun(Gates(torch.zeros(1, 1))).eval()
    logits = torch.full((2, 1, 6, 6), -1.0)
    logits[0, 0, 4, 1] = logits[1, 0, 2, 2] = 1.0  # among the 21 + 6 pairs that count
    logits[1, 0, 5, 0] = logits[0, 0, 1, 4] = 1.0  # padding, and the future
    through(gates, logits)
    assert share(gates) == pytest.approx(2 / 27)


def test_documents_without_noise_have_the_gates_of_the_finished_model():
    gates = Gates(torch.tensor([[0.1]]))
    gates.begin(torch.ones(2, 6, dtype=torch.bool), torch.tensor([True, False]))
    logits = torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    drawn = through(gates, logits).detach() > 0
    hard = (logits + 0.1 > 0) & CAUSAL
    assert torch.equal(drawn[1], hard[1])
    assert not torch.equal(drawn[0], hard[0])
    assert torch.equal(through(gates.eval(), logits) > 0, hard)


@pytest.mark.parametrize("closed", [0.01, 0.05, 0.4])
def test_first_biases_cut_off_a_given_share_of_the_dense_models_attention(closed, loaded):
    parts = loaded("llama").parts
    first = FirstBiases(parts.shape.layers, parts.shape.heads, closed, REAL)
    seen = {}

    def gates(layer, logits, allowed):
        seen[layer] = logits
        return first(layer, logits, allowed)

    with torch.no_grad():
        states = states_of(parts, IDS, gates=gates)
        torch.testing.assert_close(states, states_of(parts, IDS), atol=1e-5, rtol=0)  # nothing is cut off yet
    for layer, logits in seen.items():
        for head in range(parts.shape.heads):

            def cut(bias: float, own=logits[:, head]) -> float:
                lost = total = 0.0
                for document, length in enumerate((6, 3)):
                    for query in range(length):
                        row = own[document, query, : query + 1].double().tolist()
                        masses = [math.exp(logit) / sum(map(math.exp, row)) for logit in row]
                        lost += sum(
                            mass / (1 + math.exp(logit + bias))
                            for mass, logit in zip(masses, row, strict=True)
                        )
                        total += 1
                return lost / total

            bias = float(first.found[layer, head])
            assert cut(bias) == pytest.approx(closed, rel=1e-3)
            assert cut(bias - 0.1) > closed > cut(bias + 0.1)


def test_first_biases_are_in_the_models_own_numbers():
    first = FirstBiases(1, 1, 0.05, REAL)
    logits = torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert first(0, logits, torch.ones(6, 6, dtype=torch.bool).tril()).dtype == torch.bfloat16
