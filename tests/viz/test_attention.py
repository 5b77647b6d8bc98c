"""Pictures of attention edges."""

import pyarrow as pa
import pytest
from wirescope.errors import InputError
from wirescope.viz import TokenPanel, draw_attention, to_dot, to_tikz

TOKENS = ("When", " Mary", " and", " John", ",", " John", " gave", " to")


def panel(*edges: tuple[int, int, int, int, float], **other) -> TokenPanel:
    """Edges as layer, head, query, key, score."""
    columns = ("layer", "head", "query", "key", "score")
    rows = [dict(zip(columns, edge, strict=True)) for edge in edges]
    return TokenPanel(edges=pa.Table.from_pylist(rows), tokens=TOKENS, **other)


def test_an_arc_runs_from_its_key_to_its_query_above_its_layer():
    scene = draw_attention([panel((3, 1, 7, 1, -2.0), (5, 0, 5, 3, 1.0))])
    at = {mark.name: mark.at for mark in scene.marks}
    strongest = scene.lines[-1]
    assert (strongest.src, strongest.dst) == ("3/1", "3/7")
    start, *_, end = strongest.points
    assert (start.x, end.x) == (at["3/1"].x, at["3/7"].x)
    assert all(point.y >= at["3/1"].y for point in strongest.points)
    assert max(point.y for point in strongest.points) > at["3/1"].y + 5
    assert strongest.about == "a3.h1[7<-1] -2"
    assert strongest.pen > scene.lines[0].pen
    assert at["5/0"].y > at["3/0"].y  # later layers are higher
    assert not any(name.startswith("4/") for name in at)  # a layer without edges is left out


def test_tokens_stand_below_their_dots_and_changed_ones_are_coloured():
    scene = draw_attention([panel((0, 0, 1, 0, 1.0), changed=frozenset({1, 3}), colour="#123456")])
    words = {word.name: word for word in scene.words}
    dots = {mark.name: mark.at for mark in scene.marks}
    for i, token in enumerate(TOKENS):
        word = words[f"token {i}"]
        assert word.text == token.strip()
        assert word.at.x == dots[f"0/{i}"].x
        assert word.at.y < dots[f"0/{i}"].y
        assert (word.colour == "#123456") is (i in (1, 3))


def test_no_two_arcs_of_a_layer_that_meet_are_equally_high():
    edges = [(0, head, 7, key, 1.0) for head in range(4) for key in (0, 1)] + [(0, 0, 3, 3, 1.0)]
    scene = draw_attention([panel(*edges)])
    tops = [max(point.y for point in line.points) for line in scene.lines]
    assert len(set(tops)) == len(edges)
    loop = next(line for line in scene.lines if line.src == line.dst)
    assert loop.points[0].x < loop.points[-1].x


def test_panels_share_their_layers_and_stand_side_by_side_or_above_each_other():
    two = [panel((0, 0, 1, 0, 1.0), title="A"), panel((2, 0, 1, 0, 1.0), title="B")]
    scene = draw_attention(two)
    dots = {mark.name: mark.at for mark in scene.marks}
    assert {name.split("/")[-2] for name in dots} == {"0", "2"}
    assert dots["2/0/0"].x > dots["0/7"].x
    assert dots["2/0/0"].y == dots["0/0"].y
    long = [TokenPanel(edges=one.edges, tokens=TOKENS * 4) for one in two]
    scene = draw_attention(long)
    dots = {mark.name: mark.at for mark in scene.marks}
    assert dots["2/0/0"].x == dots["0/0"].x
    assert dots["2/2/0"].y < dots["0/0"].y
    assert max(mark.at.x for mark in scene.marks) <= 392


def test_neighbouring_tokens_do_not_write_over_each_other():
    many = TokenPanel(edges=panel((0, 0, 1, 0, 1.0)).edges, tokens=("information",) * 24)
    words = [word for word in draw_attention([many]).words if word.name.startswith("token")]
    for i, one in enumerate(words):
        for other in words[i + 1 :]:
            apart = abs(one.at.x - other.at.x) >= 0.5 * 6 * len(one.text) or one.at.y != other.at.y
            assert apart


def test_heads_are_written_on_arcs_on_request():
    edges = panel((1, 4, 2, 0, 1.0), (1, 6, 2, 0, 0.5))
    assert not [word for word in draw_attention([edges]).words if word.text.startswith("h")]
    assert {word.text for word in draw_attention([edges], numbers=True).words} >= {"h4", "h6"}


def test_it_can_be_written_down():
    scene = draw_attention([panel((0, 0, 1, 0, 1.0), title="A")])
    assert to_dot(scene).count(" -> ") == 1
    assert r"\begin{tikzpicture}" in to_tikz(scene)


def test_without_edges_there_is_nothing_to_draw():
    empty = TokenPanel(edges=panel((0, 0, 1, 0, 1.0)).edges.slice(0, 0), tokens=TOKENS)
    with pytest.raises(InputError, match="nothing to draw"):
        draw_attention([empty])
