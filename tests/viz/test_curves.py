"""Curves: what is drawn is what the store says, and the caption says what it is."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from pypdf import PdfReader
from wirescope.data import read_catalog
from wirescope.errors import InputError
from wirescope.queries import Comparison, Multiplier, View, compare, open_store, pair_up
from wirescope.viz import curves_caption, draw_curves, save_curves, style

TASK = View(ranking="task")


@pytest.fixture(scope="module")
def toy_pair(toy) -> Comparison:
    catalog = read_catalog(toy.path)
    connection = open_store(catalog)
    return compare(connection, catalog, pair_up(connection, catalog, [])[0], TASK)


def by_id(axes) -> dict:
    return {artist.get_gid(): artist for artist in axes.get_children() if artist.get_gid()}


def of_task(one: Comparison, task: str, **labels: str) -> Comparison:
    """The same curves as of another task and other models."""
    curves = tuple(
        replace(curve, run=replace(curve.run, task=task, model=model))
        for curve, model in zip(one.curves, labels.values(), strict=True)
    )
    return replace(one, curves=curves)


def test_the_lines_are_the_curves_of_the_store(toy_pair):
    axes = draw_curves([toy_pair], TASK).axes[0]
    drawn = by_id(axes)
    for curve in toy_pair.curves:
        line = drawn[f"curve:{curve.run.run}"]
        assert line.get_xdata().tolist() == curve.points["requested"].to_pylist()
        assert line.get_ydata().tolist() == curve.points["explained"].to_pylist()
        band = drawn[f"band:{curve.run.run}"].get_paths()[0].vertices
        assert band[:, 1].max() == pytest.approx(max(curve.points["high"].to_pylist()))
        assert band[:, 1].min() == pytest.approx(min(curve.points["low"].to_pylist()))
    assert axes.get_xscale() == "log"
    assert axes.get_title("left") == "IOI"


def test_the_bar_joins_the_crossings_and_the_multiplier_stands_above(toy_pair):
    axes = draw_curves([toy_pair], TASK).axes[0]
    found, bar = toy_pair.multiplier, by_id(axes)["bar"]
    assert bar.get_xdata() == pytest.approx([found.sparse_k, found.dense_k])
    assert list(bar.get_ydata()) == [0.9, 0.9]
    words = by_id(axes)["multiplier"]
    assert words.get_text() == f"{found.multiplier:.1f}×"  # noqa: RUF001
    canvas = FigureCanvasAgg(axes.figure)
    canvas.draw()
    box = axes.transData.inverted().transform(words.get_window_extent(canvas.get_renderer()))
    assert found.sparse_k < box[:, 0].mean() < found.dense_k
    highest = max(band.get_datalim(axes.transData).y1 for gid, band in by_id(axes).items() if "band" in gid)
    assert highest <= box[0, 1] < box[1, 1] <= axes.get_ylim()[1]


@pytest.mark.parametrize(
    ("multiplier", "words", "ends"),
    [
        (Multiplier(20.0, 12.0, 0.6, 0.5, 0.7, 1.0), "0.6×", [12.0, 20.0]),  # noqa: RUF001
        (Multiplier(8.0, None, None, None, None, 0.0), "not reached", [8.0, 46.0]),
        (Multiplier(None, None, None, None, None, 0.0), "not reached", [46.0, 46.0]),
    ],
)
def test_a_sparse_model_may_need_more_or_a_curve_not_get_there(toy_pair, multiplier, words, ends):
    one = replace(toy_pair, multiplier=multiplier)
    drawn = by_id(draw_curves([one], TASK).axes[0])
    assert drawn["multiplier"].get_text() == words
    assert list(drawn["bar"].get_xdata()) == ends
    said = curves_caption([one], TASK)
    short = "0.9 is not reached by " + {
        8.0: "dense-ioi, measured up to 46,",
        None: "sparse-ioi, measured up to 46, nor by dense-ioi, measured up to 46,",
    }.get(multiplier.sparse_k, "-")
    assert (short in said) is (words == "not reached")


def test_heads_have_a_linear_axis_that_begins_with_nothing_kept(toy):
    catalog = read_catalog(toy.path)
    connection = open_store(catalog)
    view = View(level="head", ranking="task")
    found = compare(connection, catalog, pair_up(connection, catalog, [])[0], view)
    axes = draw_curves([found], view).axes[0]
    assert axes.get_xscale() == "linear"
    assert axes.get_xlabel() == "Heads kept"
    line = by_id(axes)["curve:dense-ioi"]
    assert (line.get_xdata()[0], line.get_ydata()[0]) == (0, 0)
    assert line.get_xdata().tolist() == [0, 1, 2, 3, 4]


def test_the_random_ranking_is_grey_and_can_be_left_out(toy_pair):
    known = {"requested": [1, 46], "kept": [1, 46]}
    table = pa.table(known | {name: [0.0, 1.0] for name in ("explained", "low", "high")})
    one = replace(toy_pair, curves=tuple(replace(curve, random=table) for curve in toy_pair.curves))
    figure = draw_curves([one], TASK)
    line = by_id(figure.axes[0])["random:dense-ioi"]
    assert to_hex(line.get_color()) == style.RANDOM.lower()
    assert line.get_ydata().tolist() == [0.0, 1.0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "toy-sparse",
        "toy",
        "Random ranking",
    ]
    assert "Grey: units in random order." in curves_caption([one], TASK)
    without = draw_curves([one], TASK, random=False)
    assert "random:dense-ioi" not in by_id(without.axes[0])
    assert "Grey" not in curves_caption([one], TASK, random=False)


def test_the_attributed_curve_is_dotted_beside_the_measured_one(toy):
    catalog = read_catalog(toy.path)
    connection = open_store(catalog)
    one = compare(connection, catalog, pair_up(connection, catalog, [])[0], TASK, attributed=True)
    figure = draw_curves([one], TASK)
    drawn = by_id(figure.axes[0])
    assert drawn["attributed:dense-ioi"].get_ydata().tolist() == one.curves[1].attributed["share"].to_pylist()
    assert drawn["attributed:dense-ioi"].get_color() == drawn["curve:dense-ioi"].get_color()
    assert "Attributed share" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert "attributed, not measured" in curves_caption([one], TASK)


def test_two_pairs_of_models_share_a_figure_with_four_colours_and_one_legend(toy_pair):
    gpt2 = {"sparse": "Sparse GPT-2", "dense": "GPT-2"}
    olmo = {"sparse": "Sparse OLMo-7B", "dense": "OLMo-7B"}
    panels = [
        *(of_task(toy_pair, task, **gpt2) for task in ("greater-than", "ioi")),
        *(of_task(toy_pair, task, **olmo) for task in ("docstring", "ioi-long")),
    ]
    figure = draw_curves(panels, TASK)
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles == ["Greater Than", "IOI", "Docstring", "IOI Long"]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["Sparse GPT-2", "GPT-2", "Sparse OLMo-7B", "OLMo-7B"]
    colours = [to_hex(by_id(axes)["curve:dense-ioi"].get_color()).upper() for axes in figure.axes]
    assert colours == [style.PAIRS[0][0]] * 2 + [style.PAIRS[1][0]] * 2
    assert len({handle.get_color() for handle in figure.legends[0].legend_handles}) == 4
    assert figure.get_size_inches()[0] == 6.75
    # in grey, sparse and dense are told apart by their markers
    for axes in figure.axes:
        markers = {by_id(axes)[f"curve:{run}"].get_marker() for run in ("sparse-ioi", "dense-ioi")}
        assert len(markers) == 2
    # one y axis for all
    assert len({axes.get_ylim() for axes in figure.axes}) == 1


@pytest.mark.parametrize(
    ("level", "label"),
    [("edge", "Edges requested"), ("head", "Heads kept"), ("attention", "Attention edges kept")],
)
def test_the_axis_says_what_is_counted(toy_pair, level, label):
    assert draw_curves([toy_pair], View(level=level)).axes[0].get_xlabel() == label


def test_many_panels_go_on_below(toy_pair):
    figure = draw_curves([toy_pair] * 5, TASK)
    assert len(figure.axes) == 8
    assert [axes.get_visible() for axes in figure.axes] == [True] * 5 + [False] * 3
    assert figure.get_size_inches()[1] > 2.5


@pytest.mark.parametrize("level", ["edge", "head", "attention"])
@pytest.mark.parametrize("panels", [1, 2, 3, 4])
def test_nothing_is_written_over_a_neighbour_or_off_the_page(toy_pair, panels, level):
    figure = draw_curves(
        [toy_pair] * panels, View(level=level), labels={"toy": "A dense model with a long name"}
    )
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [axes.xaxis.label.get_window_extent(canvas.get_renderer()) for axes in figure.axes]
    for left, right in pairwise(boxes):
        assert left.x1 <= right.x0
    for box in (*boxes, figure.legends[0].get_window_extent(canvas.get_renderer())):
        assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1


def test_labels_are_neither_mathematics_nor_hidden(toy_pair, tmp_path):
    labels = {"toy": r"$\foo$ & x", "toy-sparse": "_sparse"}
    odd = [replace(curve, run=replace(curve.run, task=r"$\bar$")) for curve in toy_pair.curves]
    figure = draw_curves([replace(toy_pair, curves=tuple(odd))], TASK, labels=labels)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["_sparse", r"$\foo$ & x"]
    save_curves(figure, tmp_path / "x.svg")
    texts = [
        "".join(text.itertext())
        for text in ET.parse(tmp_path / "x.svg").iter("{http://www.w3.org/2000/svg}text")
    ]
    assert r"$\foo$ & x" in texts
    assert {"_sparse", r"$\bar$"} <= set(texts)


@pytest.mark.parametrize("ending", ["pdf", "svg", "png"])
def test_it_is_written_by_its_ending_and_the_same_twice(toy_pair, tmp_path, ending):
    for name in "ab":
        save_curves(draw_curves([toy_pair], TASK), tmp_path / f"{name}.{ending}")
    first = (tmp_path / f"a.{ending}").read_bytes()
    assert first.startswith({"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}[ending])
    assert first == (tmp_path / f"b.{ending}").read_bytes()


def test_the_svg_has_its_lines_by_name_and_its_text_as_text(toy_pair, tmp_path):
    save_curves(draw_curves([toy_pair], TASK), tmp_path / "x.svg")
    tree = ET.parse(tmp_path / "x.svg")
    groups = {group.get("id"): group for group in tree.iter("{http://www.w3.org/2000/svg}g")}
    path = groups["curve:dense-ioi"].find("{*}path").get("d")
    assert len(re.findall(r"[ML] ", path)) == toy_pair.curves[1].points.num_rows
    texts = " ".join("".join(text.itertext()) for text in tree.iter("{http://www.w3.org/2000/svg}text"))
    for expected in ("IOI", "Explained effect", "Edges requested", "toy-sparse"):
        assert expected in texts


def test_an_unknown_ending_is_refused(toy_pair, tmp_path):
    with pytest.raises(
        InputError, match="'jpg' is not a file ending of this figure: choose from pdf, svg, png"
    ):
        save_curves(draw_curves([toy_pair], TASK), tmp_path / "x.jpg")


def test_without_matplotlib_it_says_what_to_install(toy_pair, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'wirescope\[draw\]'"):
        draw_curves([toy_pair], TASK)


def test_the_caption_has_the_facts(toy_pair):
    said = curves_caption([toy_pair], TASK, labels={"toy": "Toy"})
    found = toy_pair.multiplier
    for fact in (
        "the k strongest edges",
        "the sizes from which on both models stay at 0.9 or above",
        f"IOI: 28 against 4, {found.multiplier:.2f} times fewer as interpolated, 95 % interval over prompts",
        "take the rankings as given",
        "Scores are by eap, of the metric logit_diff, with the ablation corrupt. Edges run from component to "
        "component; there are 46, q, k and v of each head apart.",
        "Level edge, ablation corrupt, threshold 0.9.",
        "Units are ranked by |mean score| over 4 prompts.",
        "Toy: run dense-ioi, 4 prompts; accuracy 0.75",
    ):
        assert fact in said


def test_an_interval_may_be_open_and_one_prompt_has_none(toy_pair):
    for ends, words in (
        ({"low": 3.1, "high": None}, "95 % interval over prompts from 3.10 upwards."),
        ({"low": None, "high": 0.8}, "95 % interval over prompts up to 0.80."),
        ({"low": None, "high": None}, "95 % interval over prompts open at both ends."),
        ({"low": 1.5, "high": 2.0}, "95 % interval over prompts 1.50 to 2.00."),
    ):
        one = replace(toy_pair, multiplier=replace(toy_pair.multiplier, **ends))
        assert words in curves_caption([one], TASK)
    alone = replace(toy_pair, curves=tuple(replace(curve, prompts=1) for curve in toy_pair.curves))
    said = curves_caption([alone], TASK)
    assert "interval" not in said.replace("bands their 95 % intervals", "")
    assert "run dense-ioi, 1 prompt; of its 4, accuracy 0.75" in said


def test_the_caption_says_which_curve_falls_below_the_threshold_again(toy_pair):
    ragged = replace(toy_pair, multiplier=Multiplier(60.0, 120.0, 2.0, 1.5, 2.5, 4.0, 119.0))
    said = curves_caption([ragged], TASK)
    assert "IOI, sparse-ioi: the curve falls below 0.9 again after 4, and stays there from 60 on." in said
    assert "dense-ioi: the curve" not in said
    never = replace(toy_pair, multiplier=Multiplier(None, 120.0, None, None, None, 4.0, 119.0))
    assert "sparse-ioi: the curve falls below 0.9 again after 4, and ends below it." in curves_caption(
        [never], TASK
    )
    assert "falls below" not in curves_caption([toy_pair], TASK)
    first = curves_caption([ragged], View(ranking="task", crossing="first"))
    assert "the sizes at which both models first reach 0.9, interpolated" in first


def ranging(one: Comparison, low: float, high: float, error: float) -> Comparison:
    """Curves from one effect to another, with wide bands or narrow ones."""
    explained = np.linspace(low, high, 5)
    table = {"requested": [1, 3, 10, 20, 46], "kept": [1, 3, 10, 20, 46]}

    def points(middle: np.ndarray) -> pa.Table:
        band = {"low": middle - 2 * error, "high": middle + 2 * error}
        return pa.table(table | {"explained": middle} | band)

    return replace(
        one,
        curves=tuple(
            replace(curve, points=points(share * explained))
            for curve, share in zip(one.curves, (1.0, 0.9), strict=True)
        ),
    )


RANGES = [(-5, 6), (0, 1.2), (0.99, 1.01), (-300, 40), (4, 6), (-0.001, 0.002), (-2e4, 3e5)]


@pytest.mark.parametrize("error", [0.0, 0.05, 10.0, 1e6])
@pytest.mark.parametrize(("low", "high"), RANGES)
def test_ticks_fit_and_lines_are_seen_whatever_the_effects_are(toy_pair, low, high, error):
    figure = draw_curves([ranging(toy_pair, low, high, error)], TASK)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (axes,) = figure.axes
    bottom, top = axes.get_ylim()
    labels = [label for label in axes.get_yticklabels() if bottom <= label.get_position()[1] <= top]
    boxes = sorted(
        (label.get_window_extent(canvas.get_renderer()) for label in labels), key=lambda box: box.y0
    )
    assert 2 <= len(boxes) <= 8
    assert all(lower.y1 < upper.y0 for lower, upper in pairwise(boxes))
    drawn = by_id(axes)
    for curve in toy_pair.curves:
        line = drawn[f"curve:{curve.run.run}"].get_ydata()
        assert bottom <= min(line) <= max(line) <= top
    span = max(high, 1) - min(low, 0)
    assert top - bottom <= 2.2 * span + 0.2  # a band does not make the lines small
    for curve in toy_pair.curves:
        band = drawn[f"band:{curve.run.run}"].get_paths()[0].vertices[:, 1]
        assert bottom <= band.min() <= band.max() <= top
        cut = error == 1e6
        assert (f"beyond:{curve.run.run}" in drawn) >= cut
        if error == 0.0:
            assert f"beyond:{curve.run.run}" not in drawn


def test_the_caption_says_what_an_arrowhead_is(toy_pair):
    assert "an arrowhead marks a band that goes on beyond the figure." in curves_caption([toy_pair], TASK)


@pytest.mark.parametrize("width", [180, 234, 487.5])
@pytest.mark.parametrize("panels", [1, 4])
def test_curves_are_as_wide_as_is_asked_for(toy_pair, tmp_path, width, panels):
    save_curves(draw_curves([toy_pair] * panels, TASK, width=width), tmp_path / "x.pdf")
    (page,) = PdfReader(tmp_path / "x.pdf").pages
    assert float(page.mediabox.width) == pytest.approx(width, abs=0.5)
