"""The course of a training: every look at held-out text is in the figure, with the bounds and what is kept."""

import re

import pytest
from matplotlib.colors import to_hex
from wirescope.viz import draw_training, style
from wirescope.viz.curves import render_curves

TRIED = [
    {"step": step, "open_gates": share, "excess": {"books": 2 * excess, "ioi $x$": -excess}}
    for step, share, excess in [(0, 0.9, 0.0), (100, 0.1, 0.04), (200, 0.02, 0.004), (250, 0.03, 0.002)]
]
RECORD = {
    "tried": TRIED,
    "bounds": {"books": ["loss", 0.01], "ioi $x$": ["divergence", 0.05]},
    "kept_step": 200,
}


def by_id(axes) -> dict:
    return {artist.get_gid(): artist for artist in axes.get_children() if artist.get_gid()}


def test_each_kind_has_a_line_and_its_bound_in_one_colour():
    above, below = draw_training(RECORD).axes
    drawn = by_id(above)
    for kind, sign, bound in (("books", 2, 0.01), ("ioi $x$", -1, 0.05)):
        line, edge = drawn[f"excess:{kind}"], drawn[f"bound:{kind}"]
        assert list(line.get_xdata()) == [0, 100, 200, 250]
        assert list(line.get_ydata()) == [0.0, sign * 0.04, sign * 0.004, sign * 0.002]
        assert set(edge.get_ydata()) == {bound}
        assert line.get_color() == edge.get_color()
    assert drawn["excess:books"].get_color() != drawn["excess:ioi $x$"].get_color()
    assert list(by_id(below)["open"].get_ydata()) == pytest.approx([90, 10, 2, 3])
    assert below.get_yscale() == "log"


def test_a_bound_that_kinds_share_is_nobodys():
    record = RECORD | {"bounds": {"books": ["loss", 0.01], "ioi $x$": ["loss", 0.01]}}
    drawn = by_id(draw_training(record).axes[0])
    assert {to_hex(drawn[f"bound:{kind}"].get_color()).upper() for kind in record["bounds"]} == {style.INK}


def test_the_step_of_what_is_kept_is_marked_in_both_panels():
    for axes in draw_training(RECORD).axes:
        assert set(by_id(axes)["kept"].get_xdata()) == {200}
    for axes in draw_training(RECORD | {"kept_step": None}).axes:
        assert "kept" not in by_id(axes)


def test_the_legend_says_whose_excess_is_the_divergence_and_names_are_no_maths():
    said = "".join(re.findall(r">([^<]+)</text>", render_curves(draw_training(RECORD), "svg").decode()))
    assert "books" in said
    assert "books (divergence)" not in said
    assert "ioi $x$ (divergence)" in said


@pytest.mark.parametrize("bound", [0.0, 5.0])
def test_any_bound_can_be_drawn(bound):
    record = {"tried": TRIED[:1], "bounds": {"books": ["loss", bound]}, "kept_step": None}
    assert render_curves(draw_training(record), "png")


def test_the_same_record_gives_the_same_bytes():
    assert len({render_curves(draw_training(RECORD), "svg") for _ in range(2)}) == 1
