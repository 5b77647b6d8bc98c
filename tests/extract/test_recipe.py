"""The recipe of sparse post-training and its pace: what is allowed when, and what an open gate costs then."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from wirescope.extract import constraint as constraint_module
from wirescope.extract.constraint import Constraint
from wirescope.extract.recipe import Recipe

RECIPE = Recipe(steps=1_000, epsilon=0.02, slack=0.09)  # 0.1 is allowed, at first


def told(constraint: Constraint, *excess: float, steps: int = 400, step: int = 0) -> Constraint:
    for _ in range(steps):
        constraint.update(torch.tensor(excess), step)
    return constraint


def test_slack_goes_to_zero_and_half_of_epsilon_is_aimed_at():
    recipe = replace(RECIPE, epsilons={"narrow": 0.1})
    allowed = [recipe.allowed_at(step, "wide") for step in range(1_001)]
    assert allowed[0] == allowed[200] == pytest.approx(0.1)
    assert allowed[600] == pytest.approx(0.055)
    assert allowed[1_000] == pytest.approx(0.01)
    assert all(before > after for before, after in pairwise(allowed[200:]))
    assert recipe.allowed_at(1_000, "narrow") == pytest.approx(0.05)


def test_learning_rates_warm_up_and_go_to_zero():
    rates = [RECIPE.rate_at(step) for step in range(1_000)]
    assert rates[0] == pytest.approx(1 / 30)
    assert set(rates[29:201]) == {1.0}
    assert all(before > after for before, after in pairwise(rates[200:]))
    assert 0 < rates[-1] < 0.01


def test_the_price_of_an_open_gate_follows_the_kind_that_is_nearest_to_its_bound():
    def price(*excess: float) -> float:
        return told(Constraint(RECIPE, ["a", "b"]), *excess, steps=1).price

    cost = RECIPE.cost
    assert price(0.0, 0.0) == pytest.approx(cost, rel=0.03)  # far below: the whole cost
    assert price(-5.0, 0.1) == pytest.approx(cost / 2, rel=0.03)  # at the bound: half of it
    assert price(0.11, 0.0) == pytest.approx(0.3 * cost, rel=0.03)
    assert price(0.0, 0.126) == 0  # a quarter beyond: nothing
    assert price(0.126, -9.0) == 0


def test_the_cost_grows_while_there_is_room_and_shrinks_while_there_is_none():
    roomy = told(Constraint(RECIPE, ["a"]), 0.05, steps=50)
    assert roomy.price == pytest.approx(RECIPE.cost * 2.718281828**0.5, rel=1e-4)  # 50 x 0.02 x 1/2
    assert told(roomy, 0.05, steps=5_000).price == 50  # no more than that
    tight = told(Constraint(RECIPE, ["a"]), 5.0, steps=5_000)
    assert tight.price == 0
    assert told(tight, 0.0, steps=200).price < RECIPE.cost  # it had become small


def test_what_was_allowed_at_first_is_too_much_at_the_end():
    assert told(Constraint(RECIPE, ["a"]), 0.05, step=0).price > 1
    assert told(Constraint(RECIPE, ["a"]), 0.05, step=999).price == 0


def test_kinds_beyond_their_bounds_count_more():
    constraint = Constraint(RECIPE, ["a", "b", "c"])
    assert constraint.weights.tolist() == [1, 1, 1]
    slack, at, beyond = told(constraint, -3.0, 0.1, 3.0).weights.tolist()
    assert slack < at < beyond
    assert slack + at + beyond == pytest.approx(3)
    assert beyond / slack == pytest.approx(2.718281828**2.5, rel=1e-3)


def test_a_kind_that_was_not_seen_keeps_its_excess():
    constraint = told(Constraint(RECIPE, ["a", "b"]), 0.2, 0.3)
    told(constraint, 0.2, torch.nan, steps=50)
    assert constraint.excess_of("b") == pytest.approx(0.3, abs=1e-6)
    told(constraint, 0.2, 0.0, steps=1)
    assert constraint.excess_of("b") == pytest.approx(0.285, abs=1e-6)


def test_the_gap_to_held_out_text_counts():
    constraint = told(Constraint(RECIPE, ["a"]), 0.0)
    price = constraint.price
    for _ in range(20):
        constraint.held_out(torch.tensor([0.126]))
    assert price > 0
    assert told(constraint, 0.0, steps=1).price == 0


def test_ruin_is_growth_that_open_gates_do_not_stop(monkeypatch):
    monkeypatch.setattr(constraint_module, "_PATIENCE", 20)

    def course(*excesses: float) -> str | None:
        constraint = Constraint(RECIPE, ["a", "b"])
        for excess in excesses:
            told(constraint, 0.0, excess, steps=1)
        return constraint.ruined

    assert course() is None
    assert course(*[0.05] * 200) is None  # within
    assert course(*[0.3] * 200) is None  # beyond, but it does not grow
    grows = told(Constraint(RECIPE, ["a", "b"]), -1.0, 0.3)
    assert told(grows, -0.5, 0.3).ruined is None  # what grows is not beyond
    assert course(*[0.3 + 0.1 * (i % 2) for i in range(200)]) is None  # nor does this
    assert course(*[0.1 + 0.005 * i for i in range(15)]) is None  # it has not lasted
    assert course(*[0.1 + 0.005 * i for i in range(100)]) == "b"
    assert course(*[0.1 + 0.005 * i for i in range(100)], *[0.0] * 100) is None  # it has recovered
    assert course(0.1, float("inf")) == "b"


def test_a_constraint_goes_on_from_its_state():
    one, other = (Constraint(RECIPE, ["a", "b"]) for _ in range(2))
    told(one, 0.2, 0.05, steps=30)
    one.held_out(torch.tensor([0.3, 0.0]))
    other.load(one.state())
    for constraint in (one, other):
        told(constraint, 0.15, 0.05, steps=3)
    assert (one.price, one.free_for, one.weights.tolist()) == (
        other.price,
        other.free_for,
        other.weights.tolist(),
    )
    assert one.state().keys() == other.state().keys()
