"""Edges of a diagram touch no node in use that is not theirs."""

import time

import numpy as np
import pytest
from wirescope.graphs import Circuit, Inputs, Shape, Wiring, top_k
from wirescope.viz import Look, Panel, draw_wiring
from wirescope.viz.scene import Line, Scene


def sampled(line: Line, count: int = 500) -> np.ndarray:
    """Places on a curve, [sample, 2]."""
    points = np.array([(point.x, point.y) for point in line.points])
    pieces = len(points) // 3
    t = np.linspace(0, 1, count // pieces + 2)[:, None]
    weights = np.hstack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])
    return np.concatenate([weights @ points[3 * i : 3 * i + 4] for i in range(pieces)])


def touched(scene: Scene) -> list[tuple[str, str]]:
    """Each edge whose stroke meets a node in use that is not at its ends, with that node."""
    marks = [mark for mark in scene.marks if mark.fill == "white"]
    at = np.array([(mark.at.x, mark.at.y) for mark in marks])
    half = np.array([(mark.width / 2, mark.height / 2) for mark in marks])
    circle = np.array([mark.shape == "circle" for mark in marks])
    found = []
    for line in scene.lines:
        drawn = sampled(line)
        reach = half + line.pen / 2 + 1
        near = ((at + reach > drawn.min(axis=0)) & (at - reach < drawn.max(axis=0))).all(axis=1)
        for i in np.flatnonzero(near):
            away = np.abs(drawn - at[i])
            outside = np.hypot(*np.maximum(away - half[i], 0).T)
            free = np.where(circle[i], np.hypot(*away.T) - half[i, 0], outside).min() - line.pen / 2
            if free <= 0 and marks[i].name not in (line.src, line.dst):
                found.append((line.about, marks[i].name))
    return found


def some_edges(shape: Shape, count: int, seed: int = 0) -> Circuit:
    """A picture of random edges: wherever they begin and end, each has to find its way."""
    wiring, rng = Wiring(shape), np.random.default_rng(seed)
    edges = np.sort(rng.choice(wiring.n_edges, min(count, wiring.n_edges), replace=False)).astype(np.int32)
    return Circuit(wiring, edges, rng.normal(size=len(edges)).astype(np.float32), requested=len(edges))


@pytest.mark.parametrize("k", [50, 200, 1000])
@pytest.mark.parametrize("look", [{}, {"upwards": True}, {"mlps": False}, {"width": 234}])
def test_the_published_circuit_has_no_edge_through_a_node_of_others(published, k, look):
    panel = Panel(circuit=top_k(published.wiring, published.scores, k), title="GPT-2")
    assert touched(draw_wiring([panel], Look(**look))) == []


@pytest.mark.parametrize("count", [20, 300])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(2, 2),
        Shape(4, 8),
        Shape(6, 4, parallel=True),
        Shape(5, 6, inputs=Inputs.MERGED),
        Shape(6, 8, kv_heads=2, inputs=Inputs.GROUPED),
        Shape(4, 12, kv_heads=12, inputs=Inputs.GROUPED),
        Shape(3, 40),
        Shape(24, 2),
    ],
    ids=str,
)
def test_no_edge_of_any_shape_goes_through_a_node_of_others(shape, count):
    panels = [Panel(circuit=some_edges(shape, count, seed)) for seed in (0, 1)]
    assert touched(draw_wiring(panels)) == []
    assert touched(draw_wiring(panels[:1], Look(width=200))) == []


@pytest.mark.slow
def test_two_thousand_edges_of_a_7b_model_are_laid_in_two_seconds():
    circuit = some_edges(Shape(32, 32), 2000)
    begun = time.process_time()
    scene = draw_wiring([Panel(circuit=circuit)])
    assert time.process_time() - begun < 2
    assert touched(scene) == []


def test_a_highlighted_path_touches_its_own_nodes_and_no_others(published):
    path = "m0->a5.h5->a8.h6->logits"
    circuit = top_k(published.wiring, published.scores, 200)
    scene = draw_wiring([Panel(circuit=circuit)], Look(highlight=(path,)))
    mine = [line for line in scene.lines if line.opacity >= 0.85]
    assert {(line.src, line.dst) for line in mine} == {
        ("m0", "a5.h5"),
        ("a5.h5", "a8.h6"),
        ("a8.h6", "logits"),
    }
    assert touched(Scene(tuple(mine), scene.marks, ())) == []


def test_an_edge_begins_and_ends_at_its_nodes(published):
    scene = draw_wiring([Panel(circuit=top_k(published.wiring, published.scores, 1000))])
    marks = {mark.name: mark for mark in scene.marks}
    for line in scene.lines:
        assert len(line.points) % 3 == 1
        for name, end in ((line.src, line.points[0]), (line.dst, line.points[-1])):
            assert end.x == marks[name].at.x
            assert abs(end.y - marks[name].at.y) <= marks[name].height / 2 + 1e-6


def test_a_curve_that_touches_nothing_stays_as_it_is():
    wiring = Wiring(Shape(3, 3))
    (edge,) = wiring.edge_ids(["a0.h0->a2.h2<q>"])
    alone = Circuit(wiring, np.array([edge], np.int32), np.ones(1, np.float32), requested=1)
    (line,) = draw_wiring([Panel(circuit=alone)]).lines
    assert len(line.points) == 4
