"""The demo: the embedded pair on the four tasks, from models to scores to curves to a table and pictures."""

from pathlib import Path
from typing import TYPE_CHECKING

from ..data import MAIN_TASKS, read_catalog
from ..graphs import InputError
from ..queries import Choice, ask, choose, open_store
from ..viz import render, wiring_dot
from .output import encoded, needing_torch, put, say
from .progress import Bar

if TYPE_CHECKING:
    import pyarrow as pa

_SPARSE, _DENSE = "tiny-sparse", "tiny"
_LEVELS = ("edge", "head", "attention")
_PROMPTS, _SPLIT = 40, 0.5
_EFFECT, _DRAWS = 0.9, 1_000
_COLUMNS = ("task", "level", "ranking", "dense_k", "sparse_k", "multiplier", "low", "high")
_NEXT = (
    ("top", f"--run {_SPARSE}-ioi --effect {_EFFECT}"),
    ("stats", f"--runs {_SPARSE}-ioi {_DENSE}-ioi --effect {_EFFECT}"),
    ("sql", "\"select * from curves where run = 'tiny-sparse-ioi' and level = 'head'\""),
)


def run_demo(out: Path) -> None:
    """Write the demo into a folder; what is there already is made anew, but the store, which is gone on with."""
    store = out / "store"
    _extract(store)
    catalog = read_catalog(store)
    connection = open_store(catalog)
    intervals = ask(connection, "multiplier_intervals", draws=_DRAWS)
    put(encoded(intervals, "csv"), out / "multipliers.csv")
    say(
        f"\nHow many times fewer units the sparse model needs for {_EFFECT} of the effect, with 95 % intervals over "
        "prompts;\nchosen by one half of the prompts and measured on the other. '-': one of the two does not get there."
    )
    put(encoded(_shown(intervals), "table"), None)
    pictures = True
    for task in MAIN_TASKS:
        for model in (_SPARSE, _DENSE):
            circuit = choose(connection, catalog.run(f"{model}-{task}"), Choice(effect=_EFFECT)).circuit
            name = f"wiring-{task}-{model}"
            dot = wiring_dot(circuit, title=f"{model}, {task}: {circuit.kept} edges")
            put(dot.encode(), out / f"{name}.dot")
            try:
                render(dot, out / f"{name}.svg")
            except InputError as error:
                if pictures:
                    say(f"No pictures: {error}")
                pictures = False
    say(f"\nWritten to {out}/: {', '.join(sorted(file.name for file in out.iterdir()))}\n\nNext:")
    for command, options in _NEXT:
        say(f"  wirescope {command} --store {store} {options}")


def _extract(store: Path) -> None:
    """Both models on all tasks, at all levels."""
    with needing_torch("The demo"):
        from ..extract import Settings, extract
    settings = Settings(levels=_LEVELS, split=_SPLIT)
    for task in MAIN_TASKS:
        for model in (_SPARSE, _DENSE):
            with Bar(quiet=True) as bar:
                outcome = extract(
                    model=model, task=task, store=store, limit=_PROMPTS, settings=settings, listener=bar
                )
            said = f"{outcome.circuits:,} circuits measured" if outcome.circuits else "there already"
            say(f"{store}: {model} on {task}, {outcome.prompts} prompts, {said}.")


def _shown(intervals: "pa.Table") -> "pa.Table":
    """The rankings that the figures are of: the task's, and of attention edges, each prompt's own."""
    import pyarrow.compute as pc

    attention = pc.equal(intervals["level"], "attention")
    wanted = pc.equal(intervals["ranking"], pc.if_else(attention, "prompt", "task"))
    return intervals.filter(wanted).select(_COLUMNS)
