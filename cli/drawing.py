"""The commands that draw: curve, diagram, explore."""

from pathlib import Path
from typing import Annotated

import typer

from .options import (
    Crossing,
    Effect,
    Greedy,
    K,
    Label,
    Level,
    Mass,
    Prompt,
    Signed,
    Store,
    Threshold,
    named,
    open_store,
)
from .output import put, say

Figure = Annotated[Path, typer.Option("--out", "-o", help="The file to write.")]
Protocol = Annotated[
    str | None,
    typer.Option(
        help="published or contrast: the runs made under it, named as they are or without their ablation; of each "
        "model the one with the smaller circuit."
    ),
]


def curve(
    store: Store,
    out: Figure,
    runs: Annotated[
        list[str] | None,
        typer.Option("--runs", help="SPARSE DENSE, once a panel; by default all pairs of the store."),
    ] = None,
    level: Level = "edge",
    protocol: Protocol = None,
    ranking: Annotated[
        str | None,
        typer.Option(
            help="prompt (each ranks its own units), task, or signed (most helpful first); by default the "
            "protocol's, or prompt."
        ),
    ] = None,
    ablation: Annotated[
        str | None,
        typer.Option(help="corrupt, zero or mean; by default the protocol's, or that of the scores."),
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="The explained effect at which models are compared.")
    ] = 0.9,
    crossing: Crossing = "sustained",
    attributed: Annotated[
        bool, typer.Option("--attributed", help="Also the share of |score| in the same units, dotted.")
    ] = False,
    random: Annotated[
        bool, typer.Option("--random/--no-random", help="The random ranking, in grey, or not.")
    ] = True,
    width: Annotated[
        float | None,
        typer.Option(help="In points; by default a column's, or a paper's text for many panels."),
    ] = None,
    label: Label = None,
) -> None:
    """Draw explained-effect curves, sparse against dense, a panel a task.

    The file is a pdf, svg or png; NAME.caption.txt beside it has the
    facts for the caption. One run alone makes one curve.

    Example: wirescope curve -s circuits --runs sparse-ioi dense-ioi -o ioi.pdf

    Example: wirescope curve -s circuits --protocol published -o published.pdf

    Example: wirescope curve -s demo/store --ranking task -o tasks.pdf
    --label tiny=Dense --label tiny-sparse=Sparse
    """
    from ..data import LEVELS
    from ..errors import one_of
    from ..graphs import RANKINGS
    from ..queries import View
    from ..viz import CURVE_ENDINGS, check_ending, curve_figure, save_curves

    check_ending(out, CURVE_ENDINGS)
    view = View(
        level=one_of("level", level, LEVELS),
        ranking="" if ranking is None else one_of("ranking", ranking, ("prompt", *RANKINGS)),
        ablation=ablation and one_of("ablation", ablation, ("corrupt", "zero", "mean")),
        protocol=protocol,
        threshold=threshold,
        crossing=crossing,
    )
    catalog, connection = open_store(store)
    drawn = curve_figure(
        connection,
        catalog,
        runs or (),
        view=view,
        labels=named(label or []),
        attributed=attributed,
        random=random,
        width=width,
    )
    save_curves(drawn.figure, out)
    _caption(drawn.caption, out)
    for doubt in drawn.doubts:
        say(f"wirescope: {doubt}")


def diagram(
    store: Store,
    runs: Annotated[
        list[str], typer.Option("--runs", help="Side by side: --runs SPARSE DENSE, or any number.")
    ],
    out: Figure,
    protocol: Protocol = None,
    k: K = None,
    mass: Mass = None,
    threshold: Threshold = None,
    effect: Effect = None,
    crossing: Crossing = "sustained",
    greedy: Greedy = False,
    signed: Signed = False,
    level: Level = "edge",
    prompt: Prompt = None,
    highlight: Annotated[
        list[str] | None,
        typer.Option(
            help="A head, an edge or a path (input->m0->a3.h2) that stands out; several times for more."
        ),
    ] = None,
    mlps: Annotated[bool, typer.Option("--mlps/--no-mlps", help="With MLPs, or heads alone.")] = True,
    head_numbers: Annotated[
        bool, typer.Option("--head-numbers", help="Write the number of each active head.")
    ] = False,
    slots: Annotated[
        bool, typer.Option("--slots", help="Edges into q solid, into k dashed, into v dotted.")
    ] = False,
    direction: Annotated[str, typer.Option(help="Where later layers are: down or up.")] = "down",
    limit: Annotated[int, typer.Option(help="Draw so many edges a model, the strongest.")] = 10_000,
    width: Annotated[
        float | None,
        typer.Option(help="In points, at most; by default a paper's text, or a page's if it must."),
    ] = None,
    label: Label = None,
) -> None:
    """Draw circuits as wiring diagrams, side by side.

    The file is a pdf, svg, png, dot or tex (TikZ); NAME.caption.txt
    beside it has the facts for the caption. At the level attention, for one
    --prompt: tokens, and arcs from key to query.

    Example: wirescope diagram -s circuits --runs sparse-ioi dense-ioi
    --effect 0.9 -o ioi.pdf

    Example: wirescope diagram -s circuits --runs sparse-ioi --level attention
    --prompt 0 -k 12 --head-numbers -o prompt.svg
    """
    from .. import viz
    from ..errors import one_of
    from ..queries import Choice

    viz.check_ending(out, viz.DIAGRAM_ENDINGS)
    choice = Choice(
        k=k,
        mass=mass,
        threshold=threshold,
        effect=effect,
        crossing=crossing,
        greedy=greedy,
        signed=signed,
        prompt=prompt,
    )
    look = viz.Look(
        highlight=tuple(highlight or ()),
        mlps=mlps,
        numbers=head_numbers,
        slots=slots,
        upwards=one_of("direction", direction, ("down", "up")) == "up",
        limit=limit,
        width=width,
    )
    catalog, connection = open_store(store)
    scene = viz.diagram(
        connection,
        catalog,
        runs,
        choice=choice,
        level=level,
        protocol=protocol,
        look=look,
        labels=named(label or []),
    )
    viz.save_diagram(scene, out)
    _caption(scene.caption, out)


def explore(
    store: Store,
    out: Figure,
    runs: Annotated[
        list[str] | None,
        typer.Option("--runs", help="SPARSE DENSE, once a task; by default all pairs of the store."),
    ] = None,
    protocol: Protocol = None,
    prompts: Annotated[int, typer.Option(min=0, help="So many prompts a task to look at one by one.")] = 8,
    crossing: Crossing = "sustained",
    label: Label = None,
) -> None:
    """Write circuits as an interactive page: one file, no network.

    A slider for the size of the circuits, nodes to point at and to search
    for, filters, and how much the circuits explain.

    Example: wirescope explore -s circuits --runs sparse-ioi dense-ioi
    -o ioi.html
    """
    from .. import viz

    viz.check_ending(out, ("html",))
    catalog, connection = open_store(store)
    page = viz.explorer(
        connection,
        catalog,
        runs or (),
        labels=named(label or []),
        prompts=prompts,
        protocol=protocol,
        crossing=crossing,
    )
    put(page.encode(), out)
    say(f"'{out}': {len(page) / 1e6:.1f} MB; open it in a browser.")


def _caption(caption: str, out: Path) -> None:
    """Write what a reader has to know beside the figure."""
    beside = out.with_suffix(".caption.txt")
    put(caption.encode(), beside)
    say(f"'{out}', and the facts for its caption in '{beside}'.")
