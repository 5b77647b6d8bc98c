"""The commands: what they take, what they call, what they say. What they do is done elsewhere.

Modules that are slow to import (duckdb, igraph, torch) are imported by the command that needs them.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import drawing, running
from .options import (
    SEEDS,
    Crossing,
    Effect,
    Form,
    Greedy,
    K,
    Level,
    Mass,
    Out,
    Prompt,
    RunName,
    Signed,
    Store,
    Threshold,
    Wide,
    named,
    open_engine,
    open_store,
)
from .output import emit, encoded, needing_torch, put, say

if TYPE_CHECKING:
    from ..data import PublishedCircuit, Run
    from ..graphs import Shape
    from ..queries import Chosen, Units

app = typer.Typer(
    name="wirescope",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_RUN_FIRST = ("run", "task", "accuracy", "effect", "effect_stderr", "prompts", "model", "protocol")
"""What a list of runs shows where there is no room for all."""

EXPORTS = (
    "mib",
    "auto-circuit",
    "acdc",
    "node-link",
    "graphml",
    "gexf",
    "cytoscape",
    "dot",
    "csv",
    "parquet",
)

_ENDINGS = {
    "mib": (".json", ".pt"),
    "auto-circuit": (".json",),
    "node-link": (".json",),
    "acdc": (".pth",),
    "graphml": (".graphml",),
    "gexf": (".gexf",),
    "cytoscape": (".cyjs",),
    "dot": (".dot", ".gv"),
    "csv": (".csv",),
    "parquet": (".parquet",),
}


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        put(f"wirescope {version('wirescope')}\n".encode(), None)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Circuits of transformers, from edge scores in Parquet to answers in SQL and diagrams for a paper."""


@app.command("demo")
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write to.")] = Path("demo"),
) -> None:
    """Everything there is, on a small model and its sparse twin.

    Both come with the package, so nothing is downloaded. Four tasks at all
    three levels: scores and measured circuits go into a store, then how
    many times fewer units the sparse twin needs into a table, and wiring
    diagrams of both. Given again, nothing is measured again.

    Example: wirescope demo --out demo
    """
    from .demo import run_demo

    run_demo(out)


app.command()(running.extract)
app.command()(running.sparsify)
app.command()(running.convert)


@app.command("import")
def import_(
    file: Annotated[
        Path, typer.Argument(help="A circuit of MIB, EAP-IG, auto-circuit or ACDC: .json, .pt, .pth, .gv")
    ],
    store: Store,
    run: Annotated[
        str | None, typer.Option("--run", "-r", help="Its name in the store; by default the file's.")
    ] = None,
    model: Annotated[str, typer.Option(help="The model that it is a circuit of.")] = "unknown",
    task: Annotated[str | None, typer.Option(help="The task that it was found on.")] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Of the model, if the file has not all.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Of a layer, likewise.")] = None,
    parallel: Annotated[
        bool, typer.Option("--parallel", help="Attention and MLP of a layer read the same, likewise.")
    ] = False,
    sign: Annotated[
        str | None, typer.Option(help="What its scores are of: loss or metric; by default as below.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="How it was scored, for captions.")] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Of its scores: logit_diff, prob_diff or kl, if the file does not say it."),
    ] = None,
) -> None:
    """Take a published circuit into a store.

    From MIB and EAP-IG, .json, .json.gz or .pt; from auto-circuit, prune
    scores (.pt, .pkl) or JSON by edge name, {"A9.9->Resid End": -0.28, ...};
    from ACDC, save_subgraph's .pth or a drawing, .gv; node-link or
    Cytoscape JSON. Which it is shows in the file.

    Edges that a file does not name have score 0. Those of a circuit without
    scores have 1: --threshold 1 takes it.

    The scores of MIB, EAP-IG, auto-circuit and ACDC are of a loss: positive
    for an edge that helps. They are turned, because a store has those of
    the metric: metric(ablated) - metric(clean). So are, already, the scores
    of node-link and Cytoscape JSON and of files that say "sign": "metric".
    --sign loss or --sign metric says otherwise.

    Example: wirescope import gpt2-small-ioi.json.gz --store circuits
    --model gpt2 --task ioi

    Example: wirescope import subgraph.pth --store circuits --model gpt2
    --layers 12 --heads 12
    """
    from ..data import import_circuit
    from ..errors import InputError
    from ..graphs import Shape

    if (layers is None) != (heads is None) or (parallel and layers is None):
        raise InputError("The shape of a model is its --layers and its --heads: give both.")
    shape = None if layers is None or heads is None else Shape(layers, heads, parallel=parallel)
    circuit = _read(file, shape)
    found = circuit.wiring.shape
    if parallel and not found.parallel:
        raise InputError(f"'{file}' is of a model whose layers are not parallel: leave out --parallel.")
    if shape is not None and (shape.layers, shape.heads) != (found.layers, found.heads):
        raise InputError(f"'{file}' is of a model of {found}, not of {shape}.")
    name = run if run is not None else file.name
    for ending in (".gz", ".json", ".pt", ".pth", ".pkl", ".gv", ".dot", ".cyjs") if run is None else ():
        name = name.removesuffix(ending)
    written = import_circuit(
        circuit,
        store,
        run=name,
        source=file.name,
        file=file,
        model=model,
        task=task,
        sign=sign,
        method=method,
        metric=metric,
    )
    if written:
        say(f"Run '{name}' in '{store}': {_described(circuit)}")
        if sign is None and circuit.sign == "loss":
            say(
                "Its scores are taken for those of a loss, positive for an edge that helps (else: --sign metric)."
            )
    else:
        say(f"Run '{name}' is in '{store}' already, from the same call; nothing was written.")


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help="A SELECT, or the name of a question or view.")],
    store: Store,
    given: Annotated[
        list[str] | None, typer.Option("--with", "-w", help="What the question needs, as name=value.")
    ] = None,
    form: Form = None,
    out: Out = None,
    wide: Wide = False,
    memory: Annotated[
        str | None,
        typer.Option(
            help="What DuckDB may take, as 4GB, before it goes to disk; the answer may take as much."
        ),
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Give up a query after so many seconds.")] = None,
    engine: Annotated[str, typer.Option(help="duckdb, or spark for stores beyond one machine.")] = "duckdb",
    spark_master: Annotated[
        str | None, typer.Option(help="Where Spark runs, as spark://host:7077; by default as configured.")
    ] = None,
) -> None:
    """Ask a question in SQL, or one of the ready-made ones.

    Views: runs, nodes, edges, prompts, edge_scores, head_scores,
    attention_scores, effects, run_summary, ranking_prompts, edge_means,
    head_means, curves, crossings, multipliers, protocol_multipliers.
    "describe edge_scores" shows the columns of one.

    Questions, and what they need: top_edges (k, run; prompt),
    top_heads (k, run; prompt), top_attention (k, prompt, run),
    attributed_curve (run), layer_mass (run), head_strength (run),
    overlap (k, other, run), stability (k, run), areas, reach (run),
    multiplier_intervals (crossing; threshold), multiplier_ratio (ablation,
    level, other, ranking, run; crossing, threshold, second_ablation,
    second_level, second_other, second_ranking, second_run).

    Example: wirescope sql -s circuits "select name, score from edge_means
    order by abs(score) desc limit 5"

    Example: wirescope sql -s circuits head_strength -w run=gpt2-small-ioi
    """
    from ..queries import answer, why_empty

    connection = open_engine(store, engine, memory=memory, timeout=timeout, master=spark_master)
    values = _values(given or [])
    found = answer(connection, query, **values)
    emit(found, form, out, wide=wide)
    if not found.num_rows and (why := why_empty(connection, query, **values)):
        say(f"wirescope: {why}")


@app.command()
def top(
    store: Store,
    run: RunName,
    k: K = None,
    mass: Mass = None,
    threshold: Threshold = None,
    effect: Effect = None,
    crossing: Crossing = "sustained",
    greedy: Greedy = False,
    signed: Signed = False,
    level: Level = "edge",
    prompt: Prompt = None,
    form: Form = None,
    out: Out = None,
    wide: Wide = False,
) -> None:
    """List the strongest units of a run, and which of them make the circuit.

    The first 20, unless a size is given. An edge is kept if it lies on a path
    of requested edges from the input to the logits.

    Example: wirescope top -s circuits -r gpt2-small-ioi -k 20
    """
    from ..data import LEVELS
    from ..errors import one_of
    from ..queries import to_list, units

    catalog, connection = open_store(store)
    choice = to_list(
        k=k,
        mass=mass,
        threshold=threshold,
        effect=effect,
        crossing=crossing,
        greedy=greedy,
        signed=signed,
        prompt=prompt,
    )
    found = units(connection, catalog.run(run), one_of("level", level, LEVELS), choice)
    say(
        f"{found.requested:,} units requested at the level {level}, {found.kept:,} kept; {found.ranked}."
        + (
            ""
            if found.kept or not found.requested
            else " No path of these edges runs from input to logits: ask for more, or --greedy."
        )
    )
    if found.note:
        say(f"Ragged: {found.note}.")
    about = {
        "run": run,
        "level": level,
        "requested": found.requested,
        "kept": found.kept,
        "ranked": found.ranked,
    }
    emit(found.rows, form, out, about=about, wide=wide)


@app.command()
def stats(
    store: Store,
    runs: Annotated[list[str], typer.Option("--runs", help="Runs to set side by side: --runs A B.")],
    k: K = None,
    mass: Mass = None,
    threshold: Threshold = None,
    effect: Effect = None,
    crossing: Crossing = "sustained",
    greedy: Greedy = False,
    signed: Signed = False,
    level: Annotated[str, typer.Option(help="edge or head.")] = "edge",
    null: Annotated[
        int, typer.Option(min=0, help="Samples of the null model for comparisons; 0 leaves it out.")
    ] = 100,
    seed: Annotated[int, typer.Option(min=0, max=SEEDS, help="Of the null model and the communities.")] = 0,
    form: Form = None,
    out: Out = None,
    wide: Wide = False,
) -> None:
    """Graph measures of circuits, side by side.

    Further runs are also compared with the first. The null model rewires a
    circuit within its layers and keeps every degree: "expected" is the mean
    likeness of such circuits, "p" the share that is at least as alike. How
    many edges it can move is said; where none moved, there is neither.

    At the level head, how many heads there are, where, and which are shared.

    Example: wirescope stats -s circuits --runs sparse-ioi dense-ioi -k 200
    """
    from ..errors import one_of
    from ..graphs import side_by_side
    from ..queries import Choice, choose_each, heads_side_by_side

    catalog, connection = open_store(store)
    choice = Choice(
        k=k,
        mass=mass,
        threshold=threshold,
        effect=effect,
        crossing=crossing,
        greedy=greedy,
        signed=signed,
    )
    chosen: Mapping[str, Chosen | Units]
    if one_of("level", level, ("edge", "head")) == "head":
        chosen, rows = heads_side_by_side(connection, catalog, runs, choice)
    else:
        chosen = circuits = choose_each(connection, catalog, runs, choice)
        rows = side_by_side({name: one.circuit for name, one in circuits.items()}, samples=null, seed=seed)
        for name in runs[1:]:
            if circuits[name].circuit.wiring != circuits[runs[0]].circuit.wiring:
                say(f"'{name}' has another wiring than '{runs[0]}': measured, not compared.")
    for name, one in chosen.items():
        say(f"'{name}': {one.ranked}." + (f" Ragged: {one.note}." if one.note else ""))
    emit(rows, form, out, wide=wide)


app.command()(drawing.curve)
app.command()(drawing.diagram)
app.command()(drawing.explore)


@app.command()
def export(
    store: Store,
    run: RunName,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    to: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(EXPORTS)}; by default what --out ends in.")
    ] = None,
    k: K = None,
    mass: Mass = None,
    threshold: Threshold = None,
    effect: Effect = None,
    crossing: Crossing = "sustained",
    greedy: Greedy = False,
    signed: Signed = False,
    prompt: Prompt = None,
) -> None:
    """Write the circuit of a run for another program.

    mib has all edges with their scores, the circuit's marked, as JSON or,
    if the file is called so, as .pt; acdc (.pth) has all edges, in or out;
    the others have the circuit alone. auto-circuit is JSON by edge name,
    cytoscape is .cyjs. For mib and auto-circuit scores are turned to those
    of a loss, positive for an edge that helps, which is what these expect.

    Without --to, the file's ending says which: .graphml, .gexf, .cyjs,
    .dot, .gv, .csv, .parquet, .pt, .pth; a .json may be several.

    Example: wirescope export -s circuits -r gpt2-small-ioi -k 200
    -o ioi.graphml
    """
    from ..data import width_of
    from ..errors import one_of
    from ..queries import Choice, choose

    to = _format_of(out) if to is None else one_of("format", to, EXPORTS)
    catalog, connection = open_store(store)
    record = catalog.run(run)
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
    chosen = choose(connection, record, choice)
    put(_exported(chosen, to, record, out), out)
    say(
        f"{chosen.circuit.requested:,} edges requested, {chosen.circuit.kept:,} kept, {chosen.ranked}: '{out}'."
        + (f" Ragged: {chosen.note}." if chosen.note else "")
    )
    if to == "mib" and not width_of(record.config):
        say("The run does not know its model's width: d_model is 0 in the file.")


@app.command()
def runs(store: Store, form: Form = None, out: Out = None, wide: Wide = False) -> None:
    """List the runs of a store.

    Example: wirescope runs -s circuits
    """
    from ..queries import ask

    _, connection = open_store(store)
    emit(ask(connection, "run_list"), form, out, wide=wide, first=_RUN_FIRST)


@app.command()
def check(store: Store, form: Form = None, out: Out = None) -> None:
    """Read every file of a store again, and say what is damaged.

    Other commands read a file from end to end when they first see it, and
    again when it has changed; this one finds what a disk has lost since.
    The exit status is 1 if anything is broken.

    Example: wirescope check -s circuits
    """
    from ..data import check_store, repair_command

    rows = check_store(store)
    emit(rows, form, out, wide=True)  # what is damaged is said whole
    broken = [row["run"] for row in rows.to_pylist() if row["state"] == "broken"]
    if broken:
        say(
            f"wirescope: {len(broken)} of {rows.num_rows} runs cannot be read; the command that made a run, given "
            "again, does again what is damaged, and only that (where it is run.json, remove its folders run=NAME)."
        )
        for command in (repair_command(store, run) for run in broken):
            if command:
                say(f"  {command}")
        raise typer.Exit(1)


@app.command()
def tasks(
    task: Annotated[str | None, typer.Argument(help="Print the pairs of this one.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="The model that they are for: a hub name, a folder, or tiny. Its weights are loaded for tasks of "
            "names that it knows.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many pairs.")] = 10,
    seed: Annotated[int, typer.Option(min=0, max=SEEDS, help="Of the pairs.")] = 0,
    form: Form = None,
    out: Out = None,
    wide: Wide = False,
) -> None:
    """List the tasks, or print the pairs of one as --prompts takes them.

    Example: wirescope tasks ioi --model gpt2 --limit 5
    """
    from ..data import TASKS, check_task, example, make_task, pair_lines
    from ..errors import InputError

    if task is None:
        import pyarrow as pa

        rows = []
        for name, one in TASKS.items():
            pair = example(name)
            end = " ".join(pair.clean.split()[-8:])
            answer = pair.correct[0].strip()
            rows.append({"task": name, "about": one.about, "example": f"... {end} -> {answer}"})
        emit(pa.Table.from_pylist(rows), form, out, wide=wide)
        return
    check_task(task)
    if model is None:
        raise InputError(f"Which pairs '{task}' has depends on the model: give --model.")
    with needing_torch("Making pairs for a model"):
        from ..extract import load_vocabulary
    put(pair_lines(make_task(task, load_vocabulary(model), limit, seed)), out)


@app.command()
def models(form: Form = None, out: Out = None, wide: Wide = False) -> None:
    """List the models that come with the package, and families of others.

    A model of one of these families is used by its hub name or its folder.

    Example: wirescope models
    """
    import pyarrow as pa

    from ..data import PAIR

    with needing_torch("The list of families"):
        from ..extract import FAMILIES
    about = dict(zip(PAIR, ("embedded, dense", "embedded, its sparse twin"), strict=True))
    about |= dict.fromkeys(FAMILIES, "a family, by hub name or folder")
    emit(pa.table({"model": list(about), "about": list(about.values())}), form, out, wide=wide)


def _format_of(out: Path) -> str:
    """What a file is exported as by its ending."""
    from ..errors import InputError

    ending = "".join(out.suffixes[-2:] if out.suffix == ".gz" else [out.suffix]).lower()
    if ending == ".json":
        several = [name for name, its in _ENDINGS.items() if ".json" in its]
        raise InputError(f"'{out}' may be several things: say which with --to, {', '.join(several)}.")
    for name, its in _ENDINGS.items():
        if ending in its:
            return name
    known = ", ".join(dict.fromkeys(one for its in _ENDINGS.values() for one in its))
    raise InputError(
        f"'{out}' does not say what to write: end it in one of {known}, or give --to, one of {', '.join(EXPORTS)}."
    )


def _exported(chosen: "Chosen", to: str, run: "Run", out: Path) -> bytes:
    from ..data import auto_circuit_json, how_scored, mib_json
    from ..graphs import cytoscape, gexf, graphml, node_link
    from ..viz import Panel, draw_wiring, to_dot

    if to == "mib" and out.suffix == ".pt":
        with needing_torch("A circuit as .pt"):
            from ..extract import mib_pt
        return mib_pt(chosen.circuit, chosen.scores, run)
    if to == "mib":
        return mib_json(chosen.circuit, chosen.scores, run).encode()
    if to == "acdc":
        with needing_torch("A subgraph of ACDC"):
            from ..extract import acdc_subgraph
        return acdc_subgraph(chosen.circuit)
    if to == "auto-circuit":
        return auto_circuit_json(chosen.circuit, run).encode()
    if to == "dot":
        return to_dot(draw_wiring([Panel(circuit=chosen.circuit)])).encode()
    if to == "gexf":
        return gexf(chosen.circuit)
    write = {"node-link": node_link, "graphml": graphml, "cytoscape": cytoscape}.get(to)
    if write is not None:
        return write(chosen.circuit, **how_scored(run))
    sizes = {"run": run.run, "requested": str(chosen.circuit.requested), "kept": str(chosen.circuit.kept)}
    return encoded(chosen.circuit.table().replace_schema_metadata(sizes), to)


def _read(file: Path, shape: "Shape | None") -> "PublishedCircuit":
    from ..data import is_torch, read_circuit

    if not is_torch(file):
        return read_circuit(file, shape=shape)
    with needing_torch(f"Reading '{file}'"):
        from ..extract import read_pt
    return read_pt(file, shape=shape)


def _described(circuit: "PublishedCircuit") -> str:
    from ..data import MEMBERSHIP

    every, marked = circuit.wiring.n_edges, int(circuit.in_graph.sum())
    of = f"edges of a model of {circuit.wiring.shape}"
    if circuit.sign == MEMBERSHIP:
        return f"a circuit of {marked:,} {of} without scores; these have 1, all others 0: --threshold 1 takes it."
    if circuit.listed is not None and circuit.listed < every:
        return f"{circuit.listed:,} {of}; the other {every - circuit.listed:,} have score 0."
    return f"{every:,} {of}" + (
        f"; the {marked:,} that the file marks are not kept apart." if marked else "."
    )


def _values(given: list[str]) -> dict[str, str | int | float]:
    """``["run=a", "k=5"]`` as ``{"run": "a", "k": 5}``."""
    values: dict[str, str | int | float] = {}
    for name, value in named(given).items():
        try:
            values[name] = value if name in ("run", "other") else json.loads(value)
        except json.JSONDecodeError:
            values[name] = value
    return values
