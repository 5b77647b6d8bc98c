"""Figures from a store, as the commands make them."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from wirescope.data import read_catalog, write_run
from wirescope.errors import InputError
from wirescope.queries import Choice, ask, choose, open_store, select
from wirescope.viz import Look, curve_figure, diagram, explorer, style

PAIR = ["sparse-ioi", "dense-ioi"]


@pytest.fixture
def opened(toy):
    catalog = read_catalog(toy.path)
    return open_store(catalog), catalog


def test_the_diagram_has_the_circuits_that_the_choice_makes(opened):
    connection, catalog = opened
    scene = diagram(connection, catalog, PAIR, choice=Choice(k=20), labels={"toy": "Toy"})
    for prefix, name, colour in zip(("", "2/"), PAIR, style.PAIRS[0][::-1], strict=True):
        circuit = choose(connection, catalog.run(name), Choice(k=20)).circuit
        mine = [line for line in scene.lines if line.src.startswith("2/") is bool(prefix)]
        assert len(mine) == circuit.kept
        assert {line.colour for line in mine} == {colour}
        assert {line.src.removeprefix("2/") for line in mine} == {
            circuit.wiring.node_names[node] for node in circuit.sources
        }
        assert (
            f"{circuit.kept} of 46 edges, through {len(circuit.heads)} heads; 20 requested, the strongest."
            in (scene.caption)
        )
    assert [word.text for word in scene.words if word.name.endswith("title")] == ["toy-sparse", "Toy"]
    assert "Toy: run dense-ioi, 4 prompts; accuracy 0.75" in scene.caption


@pytest.mark.parametrize(
    ("choice", "how"),
    [
        ({"effect": 0.9}, "the smallest measured circuit from which on 0.9 of the effect is explained"),
        ({"mass": 0.8}, "the fewest with 0.8 of the total |score|"),
        ({"threshold": 0.01}, "those with a |score| of 0.01 or more"),
        ({"k": 30, "signed": True, "prompt": 2}, "Ranked by how much they help (score) for prompt 2."),
        ({"k": 30, "greedy": True}, "the strongest, grown from the logits"),
        ({"k": 30}, "Ranked by |mean score| over 4 prompts."),
    ],
)
def test_the_caption_says_how_the_circuit_was_chosen(opened, choice, how):
    connection, catalog = opened
    assert how in diagram(connection, catalog, ["dense-ioi"], choice=Choice(**choice)).caption


def test_one_dense_model_alone_has_the_dense_colour_and_one_sparse_the_sparse(opened):
    connection, catalog = opened
    for name, colour in zip(PAIR, style.PAIRS[0][::-1], strict=True):
        scene = diagram(connection, catalog, [name], choice=Choice(k=20))
        assert {line.colour for line in scene.lines} == {colour}


def test_heads_are_those_of_the_store(opened):
    connection, catalog = opened
    scene = diagram(connection, catalog, ["dense-ioi"], choice=Choice(k=3), level="head")
    top = ask(connection, "top_heads", run="dense-ioi", k=3)["name"].to_pylist()
    filled = {mark.name: mark.fill_opacity for mark in scene.marks if mark.fill == style.PAIRS[0][0]}
    assert sorted(filled, key=filled.get, reverse=True) == top
    assert not scene.lines
    assert {mark.shape for mark in scene.marks} == {"circle"}  # MLPs are live, and no units
    assert "toy: 3 heads, the strongest; the stronger a head, the fuller its colour." in scene.caption
    ringed = diagram(
        connection, catalog, ["dense-ioi"], choice=Choice(k=3), level="head", look=Look(highlight=(top[1],))
    )
    assert {mark.name for mark in ringed.marks if mark.pen > 1} == {top[1]}


def test_attention_edges_are_those_of_the_store(opened):
    connection, catalog = opened
    scene = diagram(connection, catalog, PAIR, choice=Choice(k=6, prompt=1), level="attention")
    top = ask(connection, "top_attention", run="sparse-ioi", k=6, prompt=1).to_pylist()
    mine = [line.about for line in scene.lines if not line.src.startswith("2/")]
    assert mine == [f"{row['name']} {row['score']:.4g}" for row in reversed(top)]
    words = {word.name: word for word in scene.words}
    assert [words[f"token {i}"].text for i in range(3)] == ["a", "b", "c"]
    changed = [i for i in range(3) if words[f"token {i}"].colour == style.PAIRS[0][1]]
    assert changed == [2]  # the corrupted prompt has another token there
    assert "IOI, prompt 1: attention edges" in scene.caption
    head = top[0]["name"].partition("[")[0]
    look = Look(highlight=(head,))
    scene = diagram(connection, catalog, PAIR, choice=Choice(k=6, prompt=1), level="attention", look=look)
    strong = {line.about.partition("[")[0] for line in scene.lines if line.opacity > 0.14}
    assert strong == {head}
    with pytest.raises(InputError, match="No attention edge that is drawn is of 'a0'"):
        diagram(
            connection,
            catalog,
            PAIR,
            choice=Choice(k=6, prompt=1),
            level="attention",
            look=Look(highlight=("a0",)),
        )


def test_attention_edges_by_mass_and_their_limit(opened):
    connection, catalog = opened
    choice = Choice(mass=0.5, prompt=0)
    scene = diagram(connection, catalog, ["dense-ioi"], choice=choice, level="attention")
    rows = select(
        connection,
        "select abs(score) as strength from attention_scores where run = 'dense-ioi' and prompt_id = 0 "
        "order by strength desc",
    )["strength"].to_pylist()
    kept = len(scene.lines)
    assert sum(rows[:kept]) >= 0.5 * sum(rows) > sum(rows[: kept - 1])
    few = diagram(connection, catalog, ["dense-ioi"], choice=choice, level="attention", look=Look(limit=2))
    assert len(few.lines) == 2
    assert f"the 2 strongest of {kept} are drawn" in few.caption


def test_what_cannot_be_drawn_is_refused(opened, ioi_store):
    connection, catalog = opened
    with pytest.raises(InputError, match="at least one run"):
        diagram(connection, catalog, [], choice=Choice(k=5))
    with pytest.raises(InputError, match="name it with --prompt"):
        diagram(connection, catalog, ["dense-ioi"], choice=Choice(k=5), level="attention")
    with pytest.raises(InputError, match="is empty: it has none of its heads, those with a"):
        diagram(connection, catalog, ["dense-ioi"], choice=Choice(threshold=1e9), level="head")
    with pytest.raises(InputError, match="nothing that --slots, --no-mlps could change"):
        look = Look(slots=True, mlps=False)
        diagram(connection, catalog, ["dense-ioi"], choice=Choice(k=3), level="head", look=look)
    with pytest.raises(InputError, match=r"of prompt 1, with its own ablation.*choose by k or mass"):
        diagram(connection, catalog, ["dense-ioi"], choice=Choice(effect=0.9, prompt=1), level="attention")
    with pytest.raises(
        InputError, match=r"No model or run 'tyo' is in the figure to be called 'T'.* mean 'toy'"
    ):
        diagram(connection, catalog, ["dense-ioi"], choice=Choice(k=9), labels={"tyo": "T"})
    with pytest.raises(InputError, match="of the task, not of one prompt"):
        diagram(connection, catalog, ["dense-ioi"], choice=Choice(effect=0.9, prompt=0), level="head")
    published = read_catalog(ioi_store)
    with pytest.raises(InputError, match="is empty: of the 1 edges requested, none lies on a path"):
        diagram(open_store(published), published, ["gpt2-small-ioi"], choice=Choice(k=1))


def test_curves_come_with_their_caption(opened):
    connection, catalog = opened
    drawn = curve_figure(connection, catalog)
    assert len(drawn.figure.axes) == 1
    assert "Each prompt ranks its own units" in drawn.caption


def test_the_explorer_has_the_runs(opened):
    connection, catalog = opened
    page = explorer(connection, catalog, labels={"toy": "My <toy>"})
    assert page.startswith("<!doctype html>")
    assert "My <toy>" not in page
    assert json.dumps("My \\u003ctoy\\u003e").replace("\\\\", "\\") in page


def test_one_figure_has_one_ablation(toy_copy):
    connection = open_store(toy_copy.path)
    effects = select(connection, "select * from effects where run = 'dense-ioi'").drop(["run"])
    zero = pa.array(["zero"] * effects.num_rows)
    effects = effects.set_column(effects.schema.get_field_index("ablation"), "ablation", zero)
    for name in PAIR:
        record = replace(
            read_catalog(toy_copy.path).run(name), run=f"{name}-0", ablation="zero", parts={}, finished=None
        )
        with write_run(toy_copy.path, record) as writer:
            writer.write_wiring(record.wiring)
            writer.write("effects", effects)
    catalog = read_catalog(toy_copy.path)
    connection = open_store(catalog)
    zeroed = [f"{name}-0" for name in PAIR]
    with pytest.raises(InputError, match="'dense-ioi' with corrupt, 'dense-ioi-0' with zero: choose it"):
        curve_figure(connection, catalog, [*PAIR, *zeroed])
    with pytest.raises(InputError, match="measured with the ablation corrupt and 'dense-ioi-0' with zero"):
        curve_figure(connection, catalog, [PAIR[0], zeroed[1]])
    assert "ablation zero" in curve_figure(connection, catalog, zeroed).caption
