"""The explorer in a real browser: what it shows is what the store says, and it asks for nothing but its own file.

Every page of the fixture `show` must log nothing, throw nothing and request nothing else.
"""

import math
import os
import re
import shutil
from dataclasses import dataclass, replace
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest
from wirescope.data import Run, read_catalog
from wirescope.graphs import Inputs, Shape, Wiring, ranking, top_k
from wirescope.queries import explore, open_store
from wirescope.queries.exploring import Exploration, Panel, Prompt, RankedEdges, Side
from wirescope.viz import style
from wirescope.viz.explorer import explorer_page

ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
NASTY = "</script><script>window.flag = 1</script><img src=x onerror='window.flag = 2'> & \"q\" \u2028 \\u003c 'end'"


@pytest.fixture(scope="module")
def browser():
    program = shutil.which("chromium")
    if program is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield browser
        browser.close()


@dataclass
class Shown:
    """A page, and what a reader does with it."""

    page: object

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.until("!wirescope.busy")

    def until(self, condition: str) -> None:
        """Wait for a frame, and for a condition; the page's policy admits no text that is evaluated in it later."""
        self.page.evaluate(
            "new Promise((done, fail) => {"
            "  const look = () => {"
            f"   if ({condition}) done();"
            "    else requestAnimationFrame(look);"
            "  };"
            "  requestAnimationFrame(look);"
            "  setTimeout(fail, 10_000, 'waited too long');"
            "})"
        )

    @property
    def state(self) -> dict:
        self.settle()
        return self.page.evaluate("wirescope.state")

    @property
    def builds(self) -> int:
        self.settle()
        return self.page.evaluate("wirescope.builds")

    def set_k(self, k: int) -> None:
        self.page.fill("#k", str(k))

    def at(self, side: int, node: str) -> tuple[float, float]:
        place = self.page.evaluate("([side, node]) => wirescope.place(side, node)", [side, node])
        return place["x"], place["y"]

    def hover(self, side: int, node: str) -> str:
        self.settle()
        self.page.mouse.move(*self.at(side, node))
        self.settle()
        return self.card(side)

    def card(self, side: int) -> str:
        card = self.page.locator("figure").nth(side).locator(".card")
        return re.sub(r"\n+", "\n", card.inner_text()) if card.is_visible() else ""

    def pixels(self, side: int = 0) -> str:
        self.settle()
        return self.page.evaluate("side => document.querySelectorAll('canvas')[side].toDataURL()", side)

    def colour(self, side: int = 0) -> float:
        """How much colour there is in a diagram: that of its edges, all else is grey."""
        self.settle()
        return self.page.evaluate(
            """side => {
                const canvas = document.querySelectorAll("canvas")[side];
                const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
                copy.drawImage(canvas, 0, 0);
                const pixels = copy.getImageData(0, 0, canvas.width, canvas.height).data;
                let sum = 0;
                for (let i = 0; i < pixels.length; i += 4) {
                    const [r, g, b, opacity] = pixels.subarray(i, i + 4);
                    sum += (Math.max(r, g, b) - Math.min(r, g, b)) * opacity;
                }
                return sum;
            }""",
            side,
        )

    def search(self, text: str) -> str:
        self.page.fill("#search", text)
        self.page.keyboard.press("Enter")
        self.settle()
        return self.page.locator("#message").inner_text()

    def saved(self, tmp_path) -> ElementTree.Element:
        with self.page.expect_download() as download:
            self.page.click("#save")
        file = tmp_path / download.value.suggested_filename
        download.value.save_as(file)
        return ElementTree.fromstring(file.read_text())


@pytest.fixture
def show(browser, tmp_path):
    """Open the page of an exploration; whatever it logs, throws or requests is an error at the end."""
    pages, troubles = [], []

    def open_page(exploration: Exploration, *, width=1300, height=800, **context) -> Shown:
        file = tmp_path / "explorer.html"
        file.write_text(explorer_page(exploration), encoding="utf-8")
        page = browser.new_page(viewport={"width": width, "height": height}, **context)
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on(
            "request",
            lambda request: (
                troubles.append(request.url)
                if not request.url.startswith((file.as_uri(), f"blob:{file.as_uri()}", "blob:null"))
                else None
            ),
        )
        page.goto(file.as_uri())
        pages.append(page)
        shown = Shown(page)
        shown.settle()
        return shown

    yield open_page
    for page in pages:
        page.close()
    assert troubles == []


@pytest.fixture(scope="module")
def pair(toy) -> Exploration:
    catalog = read_catalog(toy.path)
    runs = catalog.run("sparse-ioi"), catalog.run("dense-ioi")
    return explore(open_store(catalog), [runs], labels={"toy": "Dense", "toy-sparse": "Sparse"})


@pytest.fixture(scope="module")
def ioi(ioi_store) -> Exploration:
    catalog = read_catalog(ioi_store)
    return explore(open_store(catalog), [[catalog.run("gpt2-small-ioi")]])


def made_up(*shapes: Shape, curve=(), prompts=(), label="model {}", task="made up", edges=10_000) -> Panel:
    """A panel of runs with random scores, a few of them equal; all rankings are alike."""
    sides = []
    for index, shape in enumerate(shapes):
        name = label.format(index)
        run = Run(run=f"run-{index}", model=name, shape=shape, prompts=1, levels=("edge",), task=task)
        scores = scores_of(shape, index)
        strongest = ranking(scores)[:edges]
        points = {"requested": [k for k, _ in curve], "kept": [k for k, _ in curve]}
        measured = pa.table(points | {"explained": pa.array([e for _, e in curve], pa.float64())})
        ranked = RankedEdges(strongest, scores[strongest], measured)
        sides.append(Side(run, name, (ranked,), (ranked,) * len(prompts)))
    return Panel(task, ("task",), tuple(Prompt(i, text) for i, text in enumerate(prompts)), tuple(sides))


def scores_of(shape: Shape, seed: int) -> np.ndarray:
    scores = np.random.default_rng(seed).normal(size=shape.n_edges) ** 3
    return np.round(scores, 2).astype(np.float32)


def sizes(most: int) -> list[int]:
    return sorted({1, 2, 3, 5, *np.geomspace(1, most, 22).astype(int).tolist(), most - 1, most})


def test_the_slider_changes_what_is_drawn(show, pair):
    shown = show(pair)
    shown.page.locator("#slider").evaluate(
        "slider => { slider.value = 900; slider.dispatchEvent(new Event('input')); }"
    )
    few, colour = shown.state, shown.colour()
    assert few["k"] == round(46**0.9)
    assert shown.page.locator("#k").input_value() == str(few["k"])
    shown.page.locator("#slider").evaluate(
        "slider => { slider.value = 1000; slider.dispatchEvent(new Event('input')); }"
    )
    assert shown.state["k"] == 46
    assert len(shown.state["sides"][0]["drawn"]) == 46 > len(few["sides"][0]["drawn"])
    assert shown.colour() > colour > 0
    shown.page.fill("#k", "9")
    assert shown.state["k"] == 9
    assert float(shown.page.locator("#slider").input_value()) == pytest.approx(
        1000 * math.log(9) / math.log(46), abs=1
    )
    shown.page.fill("#k", "9999")
    assert shown.state["k"] == 46


@pytest.mark.parametrize(
    "shape",
    [
        Shape(5, 6, kv_heads=2, inputs=Inputs.GROUPED),
        Shape(3, 4, inputs=Inputs.MERGED),
        Shape(4, 3, parallel=True),
    ],
    ids=["grouped", "merged", "parallel"],
)
def test_kept_is_what_the_pruning_keeps(show, shape):
    shown, wiring, scores = show(Exploration((made_up(shape),))), Wiring(shape), scores_of(shape, 0)
    pruned = 0
    for k in sizes(wiring.n_edges):
        shown.set_k(k)
        circuit = top_k(wiring, scores, k)
        (side,) = shown.state["sides"]
        assert (side["requested"], side["kept"]) == (k, circuit.kept)
        assert sorted(side["drawn"]) == sorted(circuit.table()["name"].to_pylist())
        assert side["active"] == [wiring.node_names[node] for node in circuit.nodes]
        pruned += circuit.kept < k
    assert pruned > 5


def test_kept_is_what_the_pruning_keeps_of_the_published_circuit(show, ioi, published):
    shown = show(ioi)
    counts = shown.page.locator(".counts")
    for k in sizes(10_000):
        shown.set_k(k)
        kept = top_k(published.wiring, published.scores, k).kept
        assert shown.state["sides"][0]["kept"] == kept
        assert counts.inner_text() == f"{k:,} requested, {kept:,} kept" + ": none lies on a path" * (not kept)


def test_hovering_shows_what_the_store_says(show, ioi, published):
    shown = show(ioi)
    shown.set_k(600)
    card = shown.hover(0, "a9.h9")
    rows = top_k(published.wiring, published.scores, 600).table().to_pylist()
    into = [row for row in rows if row["dst"] == "a9.h9"]
    out_of = [row for row in rows if row["src"] == "a9.h9"]
    lines = card.splitlines()
    assert lines[:3] == ["gpt2", "a9.h9: attention head 9 of layer 9", f"{len(into)} in, {len(out_of)} out"]
    found = [tuple(line.split("\t")) for line in lines if "->" in line]
    assert [name for name, _ in found] == [row["name"] for row in [*into[:4], *out_of[:4]]]
    for (_, number), row in zip(found, [*into[:4], *out_of[:4]], strict=True):
        assert float(number) == float(f"{row['score']:.4g}")
    shown.page.mouse.move(5, 5)
    shown.settle()
    assert shown.card(0) == ""
    # the file does not say of which metric its scores are, so neither does the page
    assert "carries the behaviour" not in shown.page.locator("body").inner_text()


def test_looking_at_a_node_fades_the_others_and_builds_nothing(show, ioi):
    shown = show(ioi)
    shown.set_k(2000)
    builds, before, colour = shown.builds, shown.pixels(), shown.colour()
    left = {}
    for node in ("a9.h9", "m0", "input", "a11.h4"):
        shown.hover(0, node)
        assert shown.state["sides"][0]["looked"] == node
        left[node] = shown.colour()
    assert 0 < left["a11.h4"] < left["a9.h9"] < 0.5 * colour  # the first has no edges to show
    assert shown.builds == builds
    shown.page.mouse.move(5, 5)
    assert shown.pixels() == before
    assert shown.builds == builds
    shown.set_k(1999)
    assert shown.builds == builds + 1


def test_a_click_pins_and_escape_or_empty_space_unpins(show, pair):
    shown = show(pair)
    empty = (shown.at(0, "input")[0] + 100, shown.at(0, "input")[1])
    for way_out in (lambda: shown.page.keyboard.press("Escape"), lambda: shown.page.mouse.click(*empty)):
        shown.page.mouse.click(*shown.at(0, "m0"))
        shown.page.mouse.move(*empty)
        assert [side["pinned"] for side in shown.state["sides"]] == ["m0", None]
        assert shown.card(0).splitlines()[:2] == ["Sparse", "m0: MLP of layer 0"]
        way_out()
        assert [side["pinned"] for side in shown.state["sides"]] == [None, None]
        assert shown.card(0) == ""


@pytest.mark.parametrize(
    ("text", "node"), [("a1.h0", "a1.h0"), (" 1.0 ", "a1.h0"), ("M1", "m1"), ("logits", "logits")]
)
def test_search_pins_on_both_sides(show, pair, text, node):
    shown = show(pair)
    said = shown.search(text)
    assert [side["pinned"] for side in shown.state["sides"]] == [node, node]
    assert f"Pinned {node}" in said
    offered = shown.page.locator("#names option").evaluate_all("all => all.map(e => e.value)")
    assert offered == list(Wiring(Shape(2, 2)).node_names)
    assert all(shown.card(side).splitlines()[1].startswith(f"{node}: ") for side in (0, 1))


def test_an_unknown_name_is_said_politely(show, pair):
    shown = show(pair)
    shown.search("m1")
    assert "No node is called 'a7.h7'" in shown.search("a7.h7")
    assert [side["pinned"] for side in shown.state["sides"]] == ["m1", "m1"]
    message = shown.page.locator("#message")
    assert (message.get_attribute("role"), message.get_attribute("aria-live")) == ("status", "polite")


def test_filters_hide_edges_and_prune_nothing(show, ioi, published):
    shown = show(ioi)
    shown.set_k(1000)
    rows = top_k(published.wiring, published.scores, 1000).table().to_pylist()
    last = published.wiring.shape.layers

    def expected(low=0, high=last - 1, slots=("q", "k", "v", "")):
        def within(layer):
            return layer in (-1, last) or low <= layer <= high

        return [
            row["name"]
            for row in rows
            if within(row["src_layer"]) and within(row["dst_layer"]) and row["slot"] in slots
        ]

    def drawn():
        (side,) = shown.state["sides"]
        assert side["kept"] == len(rows)
        return side["drawn"]

    assert drawn() == expected()
    shown.page.fill("#from", "4")
    assert drawn() == expected(low=4)
    shown.page.fill("#to", "9")
    assert drawn() == expected(4, 9)
    assert any(name.startswith("input->") for name in drawn())
    assert any(name.endswith("->logits") for name in drawn())
    shown.page.uncheck("#slot-q")
    assert drawn() == expected(4, 9, ("k", "v", ""))
    shown.page.uncheck("#slot-other")
    assert drawn() == expected(4, 9, ("k", "v"))
    assert f"{len(drawn()):,} drawn" in shown.page.locator(".counts").inner_text()
    shown.until(f"document.querySelector('#message').textContent.includes('kept, {len(drawn()):,} drawn')")
    shown.page.check("#slot-q")
    shown.page.check("#slot-other")
    shown.page.fill("#from", "0")
    shown.page.fill("#to", "11")
    assert drawn() == expected()


def test_with_one_kind_of_input_there_is_nothing_to_filter(show):
    merged = show(Exploration((made_up(Shape(2, 2, inputs=Inputs.MERGED)),)))
    assert merged.page.locator("#slots").is_hidden()
    grouped = show(Exploration((made_up(Shape(2, 2, kv_heads=1, inputs=Inputs.GROUPED)),)))
    assert grouped.page.locator("#slots").inner_text().split() == ["Inputs", "q", "k", "v", "other"]


def test_the_task_is_chosen(show):
    first, second = made_up(Shape(2, 2), task="first"), made_up(Shape(3, 4), Shape(3, 4), task="second")
    shown = show(Exploration((first, second)))
    assert len(shown.state["sides"]) == 1
    shown.page.select_option("#task", label="second")
    shown.set_k(40)
    names = [
        sorted(top_k(Wiring(Shape(3, 4)), scores_of(Shape(3, 4), seed), 40).table()["name"].to_pylist())
        for seed in (0, 1)
    ]
    assert [sorted(side["drawn"]) for side in shown.state["sides"]] == names
    assert shown.page.locator("#to").input_value() == "2"
    assert show(Exploration((first,))).page.locator("#task-field").is_hidden()


def test_the_prompt_is_chosen(show, pair, toy, ioi):
    shown = show(pair)
    assert shown.page.locator("#prompt option").all_inner_texts() == [
        "all prompts",
        *(f"clean {i}" for i in range(4)),
    ]
    shown.set_k(12)
    shown.page.select_option("#prompt", label="clean 2")
    wiring = Wiring(Shape(2, 2))
    for side, run in zip(shown.state["sides"], ("sparse-ioi", "dense-ioi"), strict=True):
        circuit = top_k(wiring, toy.scores[run][2], 12)
        assert sorted(side["drawn"]) == sorted(circuit.table()["name"].to_pylist())
    assert '"clean 2"' in shown.page.locator("#about").inner_text()
    assert show(ioi).page.locator("#prompt-field").is_hidden()


def test_the_smaller_side_is_capped(show):
    shown = show(Exploration((made_up(Shape(1, 1), Shape(2, 2)),)))
    assert shown.page.locator("#most").inner_text() == "46"
    shown.set_k(46)
    assert [side["requested"] for side in shown.state["sides"]] == [8, 46]
    assert shown.page.locator(".counts").all_inner_texts()[0].startswith("8 requested")


def test_the_dots_stand_at_the_values_and_what_is_interpolated_says_so(show, pair):
    shown = show(pair)
    box = shown.page.locator("#curve .grid").nth(0).evaluate("line => line.getBoundingClientRect().toJSON()")
    levels = [
        float(shown.page.locator("#curve .grid").nth(i).get_attribute("y1")) for i in range(3)
    ]  # of 0, 0.5 and 1
    for k in (1, 2, 7, 16, 30, 46):
        shown.set_k(k)
        shown.settle()
        x = shown.page.locator("#curve .dot").evaluate_all(
            "dots => dots.map(dot => { const b = dot.getBoundingClientRect(); return b.left + b.width / 2; })"
        )
        y = shown.page.locator("#curve .dot").evaluate_all(
            "dots => dots.map(dot => { const b = dot.getBBox(); return b.y + b.height / 2; })"
        )
        for side, panel_side in enumerate(pair.panels[0].sides):
            rows = panel_side.task.curve.to_pylist()
            expected = np.interp(
                np.log(k), np.log([row["requested"] for row in rows]), [row["explained"] for row in rows]
            )
            said = shown.page.locator("#effects dd").nth(side).inner_text()
            fill = shown.page.locator("#curve .dot").nth(side).get_attribute("fill")
            if k in (1, 16, 46):
                assert said == f"{expected:.3f}"
                assert fill != style.LIGHT.paper
            else:  # no circuit of this size was run
                around = {2: "1 and 4", 7: "4 and 16", 30: "16 and 46"}[k]
                about = re.fullmatch(rf"about (\S+) \(between {around}\)", said)
                assert float(about.group(1)) == pytest.approx(expected, abs=6e-3)
                assert fill == style.LIGHT.paper
            explained = (y[side] - levels[0]) / (levels[2] - levels[0])
            assert explained == pytest.approx(expected, abs=0.01)
            assert x[side] == pytest.approx(box["left"] + box["width"] * math.log(k) / math.log(46), abs=0.6)


def test_a_prompt_has_a_curve_of_its_own(show, pair):
    shown = show(pair)
    shown.page.select_option("#prompt", label="clean 3")
    shown.set_k(16)
    shown.settle()
    values = [float(text) for text in shown.page.locator("#effects dd").all_inner_texts()]
    assert values == pytest.approx([1.1 + 0.2, 0.8 + 0.2], abs=6e-4)


@pytest.mark.parametrize("curve", [(), ((1, None), (46, None))], ids=["not measured", "no effect"])
def test_without_a_curve_the_page_says_why(show, curve):
    shown = show(Exploration((made_up(Shape(2, 2), curve=curve),)))
    assert shown.page.locator("#curve").is_hidden()
    said = shown.page.locator("#unmeasured").inner_text()
    assert ("No effect to explain" if curve else "'wirescope extract' with --curves adds it") in said


def test_an_imported_circuit_says_why_it_has_no_curve(show, ioi):
    shown = show(ioi)
    assert shown.page.locator("#curve").is_hidden()
    assert "imported circuit comes without its model" in shown.page.locator("#unmeasured").inner_text()
    assert "strongest 10,000 of its 32,491 edges" in shown.page.locator("#about").inner_text()


def test_the_page_begins_where_all_sides_explain_enough(show, pair):
    assert show(pair).state["k"] == 46


def test_keys(show, pair):
    shown = show(pair)
    shown.set_k(10)
    press = shown.page.keyboard.press
    shown.page.focus("#slider")
    press("ArrowRight")
    assert shown.state["k"] == 11
    press("ArrowDown")
    press("ArrowLeft")
    assert shown.state["k"] == 9
    press("PageUp")
    assert shown.state["k"] == 18
    press("Home")
    assert shown.state["k"] == 1
    press("End")
    assert shown.state["k"] == 46
    assert shown.page.locator("#slider").get_attribute("aria-valuetext") == "46 edges"
    shown.page.evaluate("document.activeElement.blur()")
    press("ArrowLeft")
    assert shown.state["k"] == 43
    press("/")
    assert shown.page.evaluate("document.activeElement.id") == "search"
    assert shown.page.locator("#search").input_value() == ""
    shown.search("m0")
    press("ArrowLeft")  # of the text
    assert shown.state["k"] == 43
    press("Escape")
    assert [side["pinned"] for side in shown.state["sides"]] == [None, None]


def test_the_cursor_moves_among_nodes(show, pair):
    shown = show(pair)
    press = shown.page.keyboard.press
    shown.page.focus("#k")
    for side in (0, 1):
        press("Tab")
        path = []
        for key in ("ArrowDown", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowLeft", "ArrowUp"):
            press(key)
            path.append(shown.state["sides"][side]["looked"])
        assert path == ["a0.h1", "m0", "m1", "a1.h1", "a1.h0", "a0.h0"]
        assert "a0.h0, attention head 0 of layer 0" in shown.page.locator("#message").inner_text()
        press("Enter")
        assert shown.state["sides"][side]["pinned"] == "a0.h0"
    shown.page.evaluate("document.activeElement.blur()")
    assert [side["looked"] for side in shown.state["sides"]] == ["a0.h0", "a0.h0"]
    press("Escape")
    assert [side["looked"] for side in shown.state["sides"]] == [None, None]


def test_every_control_is_reached_by_tab_and_has_a_name(show, pair):
    shown = show(pair)
    reached = []
    for _ in range(16):
        shown.page.keyboard.press("Tab")
        reached.append(shown.page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert reached[:14] == [
        *("prompt", "theme", "save", "search", "from", "to", "slot-q", "slot-k", "slot-v", "slot-other"),
        *("slider", "k", "CANVAS", "CANVAS"),
    ]
    unnamed = shown.page.locator("input, select, button, canvas").evaluate_all(
        "all => all.filter(e => !e.labels?.length && !e.ariaLabel && !e.textContent).map(e => e.id)"
    )
    assert unnamed == []


def test_the_saved_svg_shows_what_is_drawn(show, pair, tmp_path):
    shown = show(pair)
    shown.set_k(30)
    shown.page.uncheck("#slot-k")
    sides = shown.state["sides"]
    root = shown.saved(tmp_path)
    svg = "{http://www.w3.org/2000/svg}"
    paths = [path.get("d") for path in root.iter(f"{svg}path")]
    assert len(paths) == sum(len(side["drawn"]) for side in sides) > 0
    assert all(re.fullmatch(r"M[-\d. ]+C[-\d. ]+", path) for path in paths)
    words = [text.text for text in root.iter(f"{svg}text")]
    assert "IOI, all prompts, k = 30" in words
    assert {"Sparse", "Dense", "Layers", "input", "logits"} <= set(words)
    for side in sides:
        assert f"30 requested, {side['kept']} kept, {len(side['drawn'])} drawn" in words
    strokes = {group.get("stroke") for group in root.iter(f"{svg}g") if group.get("stroke")}
    assert strokes == {style.PAIRS[0][0], style.PAIRS[0][1]}
    assert next(root.iter(f"{svg}rect")).get("fill") == style.LIGHT.paper


def test_a_pinned_node_is_pinned_in_the_saved_svg(show, pair, tmp_path):
    shown = show(pair, color_scheme="dark")
    shown.search("m0")
    root = shown.saved(tmp_path)
    svg = "{http://www.w3.org/2000/svg}"
    assert len(list(root.iter(f"{svg}path"))) == sum(len(side["drawn"]) for side in shown.state["sides"])
    faint = [
        float(group.get("stroke-opacity"))
        for group in root.iter(f"{svg}g")
        if group.get("stroke-opacity") and float(group.get("stroke-opacity")) < style.OPACITY[0]
    ]
    assert faint
    assert next(root.iter(f"{svg}rect")).get("fill") == style.LIGHT.paper


def test_dark_mode_follows_the_system_and_the_button(show, pair):
    def colours(shown):
        background = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
        shown.settle()
        x, y = (shown.page.evaluate("wirescope.place(0, 'm0')")[axis] for axis in "xy")
        inside = shown.page.evaluate(
            """([x, y]) => {
                const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect();
                const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
                copy.drawImage(canvas, 0, 0);
                return [...copy.getImageData(x - box.left, y - box.top, 1, 1).data];
            }""",
            [x, y],
        )
        return background, tuple(inside[:3])

    def rgb(colour):
        return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))

    light = (f"rgb{rgb(style.LIGHT.paper)}", rgb(style.LIGHT.paper))
    dark = (f"rgb{rgb(style.DARK.paper)}", rgb(style.DARK.paper))
    shown = show(pair, color_scheme="dark")
    assert shown.state["theme"] == "dark"
    assert colours(shown) == dark
    shown.page.emulate_media(color_scheme="light")
    assert colours(shown) == light
    shown.page.click("#theme")
    assert colours(shown) == dark
    shown.page.emulate_media(color_scheme="dark")
    shown.page.click("#theme")
    assert colours(shown) == light


def test_paper_is_white(show, pair):
    shown = show(pair, color_scheme="dark")
    for event, theme in (("beforeprint", "light"), ("afterprint", "dark")):
        shown.page.evaluate("event => window.dispatchEvent(new Event(event))", event)
        assert shown.state["theme"] == theme


@pytest.mark.parametrize("width", [400, 1300])
def test_a_card_does_not_hide_its_node(show, ioi, width):
    shown = show(ioi, width=width)
    for node in ("input", "a0.h0", "a5.h6", "m5", "a11.h11", "logits"):
        shown.search(node)
        box = shown.page.locator(".card").bounding_box()
        x, y = shown.at(0, node)
        assert not (box["x"] < x < box["x"] + box["width"] and box["y"] < y < box["y"] + box["height"])
        assert 0 <= box["x"] <= box["x"] + box["width"] <= width


def test_it_fits_a_narrow_screen(show, pair, ioi):
    for exploration in (pair, ioi):
        shown = show(exploration, width=400)
        shown.search("m1")
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= 400
        boxes = shown.page.locator("figure").evaluate_all(
            "all => all.map(e => e.getBoundingClientRect().top)"
        )
        assert boxes == sorted(set(boxes))  # one below the other
        shown.page.set_viewport_size({"width": 1300, "height": 800})
        shown.settle()
        tops = shown.page.locator("figure").evaluate_all("all => all.map(e => e.getBoundingClientRect().top)")
        assert len(set(tops)) == 1


def test_canvases_have_the_pixels_of_the_screen(show, pair):
    shown = show(pair, device_scale_factor=3)
    width, css = shown.page.locator("canvas").first.evaluate("c => [c.width, c.clientWidth]")
    assert width == pytest.approx(3 * css, abs=2)


def test_no_text_is_code(show, tmp_path):
    panel = made_up(
        Shape(1, 2), Shape(1, 2), label=NASTY + "{}", prompts=[NASTY], task=NASTY, curve=((1, 0.2), (9, 1.0))
    )
    shown = show(Exploration((panel, replace(panel, name="other"))))
    assert shown.page.locator(".label").first.text_content() == f"{NASTY}0"
    shown.page.select_option("#prompt", index=1)
    shown.search("m0")
    shown.search(NASTY)
    assert f'"{NASTY}"' in shown.page.locator("#about").text_content()
    assert shown.page.locator(".card p").first.text_content() == f"{NASTY}0"
    assert f"{NASTY}0" in [
        text.text for text in shown.saved(tmp_path).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert shown.page.evaluate("window.flag") is None
    assert shown.page.locator("img").count() == 0
    assert shown.page.locator("script").count() == 2


def test_the_policy_admits_one_script_and_one_style(show, pair):
    html = explorer_page(pair)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert (
        directives.pop("default-src")
        == directives.pop("base-uri")
        == directives.pop("form-action")
        == "'none'"
    )
    assert directives.keys() == {"script-src", "style-src"}
    assert all(re.fullmatch(r"'sha256-[\w+/]{43}='", admitted) for admitted in directives.values())
    assert "unsafe" not in policy
    assert not re.search(r"<[^>]*\s(style|on\w+)=", re.sub(r"(?s)<(script|style).*?</\1>", "", html))
    data = re.search(r'(?s)id="data">(.*?)</script>', html).group(1)
    assert data.isascii()
    assert not set("<>&") & set(data)


def test_ten_thousand_edges_a_side_are_drawn(show):
    shape = Shape(12, 12)
    shown = show(Exploration((made_up(shape, shape),)))
    shown.set_k(10_000)
    kept = [top_k(Wiring(shape), scores_of(shape, seed), 10_000).kept for seed in (0, 1)]
    assert [len(side["drawn"]) for side in shown.state["sides"]] == kept
    assert min(kept) > 8_000
    builds = shown.builds
    for node in ("a5.h5", "m11", "logits"):
        shown.hover(1, node)
        assert shown.state["sides"][1]["looked"] == node
    assert shown.builds == builds


def test_sides_have_the_colours_of_their_places_in_the_pair(show, pair):
    shown = show(pair)
    colours = shown.page.locator("figcaption .swatch").evaluate_all(
        "all => all.map(e => e.style.getPropertyValue('--colour'))"
    )
    assert colours == [style.PAIRS[0][1], style.PAIRS[0][0]]


@pytest.mark.parametrize(("metric", "sign"), [("logit_diff", "negative"), ("kl", "positive")])
def test_the_page_says_which_scores_carry_the_behaviour(show, toy, metric, sign):
    catalog = read_catalog(toy.path)
    run = replace(catalog.run("dense-ioi"), metric=metric)
    shown = show(explore(open_store(catalog), [[run]]))
    assert f"One with a {sign} score carries the behaviour." in shown.page.locator("#about").inner_text()


def test_the_page_begins_where_all_sides_stay_at_the_effect():
    """Not where a curve first gets there and falls again; and at a size of its own where one never stays."""

    def start(*curve: tuple[int, float | None], crossing: str = "sustained") -> int:
        page = explorer_page(Exploration((made_up(Shape(2, 2), curve=curve),)), crossing=crossing)
        return int(re.search(r'"start":(\d+)', page)[1])

    assert start((1, 0.1), (4, 0.95), (9, 0.5), (20, None), (30, 0.92), (46, 1.0)) == 30
    assert start((1, 0.1), (4, 0.95), (9, 0.5)) == 200
    assert start((1, 0.1), (4, 0.95), (9, 0.5), (46, 1.0), crossing="first") == 4
    assert start((1, 0.1), (4, 0.5), crossing="first") == 200


def test_the_page_says_by_which_ablation_and_protocol(toy):
    catalog = read_catalog(toy.path)
    run = replace(catalog.run("dense-ioi"), ablation="corrupt", protocol="contrast")
    page = explorer_page(explore(open_store(catalog), [[run]]))
    assert page.count("Ablation corrupt, protocol contrast. Edges are ranked by") == page.count(
        "Edges are ranked by"
    )


def test_another_ranking_of_the_task_can_be_looked_at():
    panel = made_up(Shape(2, 2), prompts=["a prompt"])
    (side,) = panel.sides
    both = replace(panel, rankings=("task", "signed"), sides=(replace(side, tasks=side.tasks * 2),))
    page = explorer_page(Exploration((both,)))
    assert '"tasks":["all prompts","all prompts, by how much they help (mean score)"]' in page
    assert "Edges are ranked by how much they help (mean score) over 1 prompt." in page
