"""The loss on some positions: what is made in closed form is what autograd makes, and a sample is fair."""

import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div
from wirescope.extract import predictions
from wirescope.extract.predictions import Compared, drawn_positions

POSITIONS, WIDTH, VOCABULARY = 7, 5, 11


def drawn(dtype=torch.float32):
    torch.manual_seed(0)
    student, dense = (torch.randn(POSITIONS, WIDTH, dtype=dtype) for _ in range(2))
    unembedding = torch.randn(VOCABULARY, WIDTH, dtype=dtype)
    tokens = torch.randint(VOCABULARY, (POSITIONS,))
    entropy_weight, divergence_weight = torch.rand(POSITIONS), torch.rand(POSITIONS)
    entropy_weight[2] = divergence_weight[3] = 0
    return student.requires_grad_(), dense, unembedding, tokens, entropy_weight, divergence_weight


def slow(student, dense, unembedding, tokens, entropy_weight, divergence_weight):
    """The same with whole logits and autograd."""
    own, other = student.double() @ unembedding.double().T, dense.double() @ unembedding.double().T
    entropy = cross_entropy(own, tokens, reduction="none")
    divergence = kl_div(own.log_softmax(-1), other.log_softmax(-1), reduction="none", log_target=True).sum(-1)
    loss = (entropy_weight * entropy + divergence_weight * divergence).sum()
    return loss, entropy, cross_entropy(other, tokens, reduction="none"), divergence


@pytest.mark.parametrize("at_a_time", [1, 3 * VOCABULARY, 1 << 22])
def test_loss_and_gradient_are_those_of_autograd(at_a_time, monkeypatch):
    monkeypatch.setattr(predictions, "_LOGITS_AT_A_TIME", at_a_time)
    given = drawn()
    expected = slow(*given)
    (2 * expected[0]).backward()
    slope, given[0].grad = given[0].grad, None
    found = Compared.apply(*given)
    (2 * found[0]).backward()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other.float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(given[0].grad, slope, atol=1e-5, rtol=1e-5)


def test_the_gradient_is_that_of_finite_differences():
    given = drawn(torch.float64)

    def loss(student):  # float64 in, so that differences are of the loss and not of rounding
        return slow(student, *given[1:])[0]

    found = Compared.apply(*(x.float() if x.is_floating_point() else x for x in given))[0]
    (slope,) = torch.autograd.grad(found, given[0])
    step = 1e-5
    for position in range(POSITIONS):
        for i in range(WIDTH):
            moved = torch.zeros_like(given[0])
            moved[position, i] = step
            with torch.no_grad():
                ahead, behind = loss(given[0] + moved), loss(given[0] - moved)
            assert float(slope[position, i]) == pytest.approx(float(ahead - behind) / (2 * step), abs=1e-5)


def test_what_needs_no_gradient_gets_none():
    given = drawn()
    with torch.no_grad():
        assert not Compared.apply(*given)[0].requires_grad
    for values in Compared.apply(*given)[1:]:
        assert not values.requires_grad


def test_no_position_at_all_is_no_loss():
    given = drawn()
    loss, *values = Compared.apply(*(x[:0] if len(x) == POSITIONS else x for x in given))
    loss.backward()
    assert loss == 0
    assert [len(value) for value in values] == [0, 0, 0]


REAL = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]).bool()[:, 1:]
KIND = torch.tensor([0, 0, 1, 1])


def test_as_many_positions_count_as_there_are_or_as_are_wanted():
    assert torch.equal(drawn_positions(REAL, KIND, 10, 2), REAL)
    for most in (9, 4, 2, 1):
        chosen = drawn_positions(REAL, KIND, most, 2)
        assert not (chosen & ~REAL).any()  # padding
        each = [int(chosen[kind == KIND].sum()) for kind in (0, 1)]
        assert each == [max(1, most // 2)] * 2


def test_the_mean_over_drawn_positions_is_on_average_that_over_all():
    torch.manual_seed(0)
    losses = torch.rand(4, 4)
    draws = 4_000
    means = torch.zeros(draws, 2)
    often = torch.zeros(4, 4)
    for draw in range(draws):
        chosen = drawn_positions(REAL, KIND, 4, 2)
        often += chosen
        for kind in (0, 1):
            means[draw, kind] = losses[chosen & (kind == KIND)[:, None]].mean()
    for kind in (0, 1):
        there = REAL & (kind == KIND)[:, None]
        error = means[:, kind].std() / draws**0.5
        assert abs(means[:, kind].mean() - losses[there].mean()) < 4 * error
        likely = 2 / int(there.sum())  # each as likely as any other
        assert (often[there] / draws - likely).abs().max() < 4 * (likely / draws) ** 0.5
