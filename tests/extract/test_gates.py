"""Gates: open they change nothing, in training they are drawn, in evaluation they are hard."""

import math

import pytest
import torch
from torch.nn.functional import logsigmoid
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
        student = Student(plain.model, plain.parts, filled(plain.parts, math.inf)).eval()
        states, is_open = student(IDS, REAL)
    torch.testing.assert_close(plain.parts.unembed(states), own, atol=1e-5, rtol=0)
    assert is_open == 1


@pytest.mark.parametrize("name", ["gpt2", "llama", "olmo", "neox"])
def test_a_student_in_evaluation_is_the_model_that_its_config_makes(name, loaded):
    loaded_model = loaded(name)
    student = Student(loaded_model.model, loaded_model.parts, filled(loaded_model.parts, 0.0)).eval()
    torch.nn.init.uniform_(student.gates.bias, -0.5, 0.5)
    with torch.no_grad():
        states, is_open = student(IDS, REAL)
        loaded_model.model.config.gate_bias = student.gates.biases()
        torch.testing.assert_close(states_of(loaded_model.parts, IDS), states, atol=1e-5, rtol=0)
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


def test_drawn_gates_are_open_as_often_as_the_sigmoid_says():
    gates = begun(Gates(torch.tensor([[0.7]])), torch.ones(20_000, 1, dtype=torch.bool))
    logits = torch.full((20_000, 1, 1, 1), 0.4)
    torch.manual_seed(0)
    drawn = gates(0, logits, torch.ones(1, 1, dtype=torch.bool))
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    expected = 1 / (1 + math.exp(-1.1))
    assert abs(float(drawn.detach().mean()) - expected) < 4 * math.sqrt(expected * (1 - expected) / 20_000)
    assert share(gates).detach() == pytest.approx(expected, abs=1e-6)


def test_the_gradient_of_a_drawn_gate_is_that_of_its_noisy_sigmoid():
    gates = begun(Gates(torch.full((2, 2), 0.3)))
    logits = torch.randn(2, 2, 6, 6, requires_grad=True)
    torch.manual_seed(1)
    gates(1, logits, torch.ones(6, 6, dtype=torch.bool).tril()).sum().backward()
    torch.manual_seed(1)
    uniform = torch.rand(2, 2, 6, 6)
    noisy = (logits + 0.3 + uniform.log() - (1 - uniform).log()).detach()
    slope = (logsigmoid(noisy) + logsigmoid(-noisy)).exp()
    torch.testing.assert_close(logits.grad, slope, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(gates.bias.grad[1], slope.sum((0, 2, 3)), atol=1e-3, rtol=1e-3)
    assert gates.bias.grad[0].abs().max() == 0


def test_the_share_is_over_pairs_of_real_tokens_that_attention_may_use():
    gates = begun(Gates(torch.zeros(1, 1))).eval()
    logits = torch.full((2, 1, 6, 6), -1.0)
    logits[0, 0, 4, 1] = logits[1, 0, 2, 2] = 1.0  # among the 21 + 6 pairs that count
    logits[1, 0, 5, 0] = logits[0, 0, 1, 4] = 1.0  # padding, and the future
    gates(0, logits, torch.ones(6, 6, dtype=torch.bool).tril())
    assert share(gates) == pytest.approx(2 / 27)


def test_documents_without_noise_have_the_gates_of_the_finished_model():
    gates = Gates(torch.tensor([[0.1]]))
    gates.begin(REAL, torch.tensor([True, False]))
    logits = torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    drawn = gates(0, logits, torch.ones(6, 6, dtype=torch.bool).tril()).detach()
    hard = (logits + 0.1 > 0).float()
    assert torch.equal(drawn[1], hard[1])
    assert not torch.equal(drawn[0], hard[0])


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
