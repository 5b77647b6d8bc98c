"""The demo: the published IOI circuit of GPT-2 small, from file to store to answers to picture."""

from pathlib import Path

from ..data import EMBEDDED, import_circuit, read_catalog, read_circuit
from ..graphs import InputError, graphml, minimum_cut, path_count, strongest_paths
from ..queries import Choice, ask, choose, open_store
from ..viz import render, wiring_dot
from .output import encoded, put, say

_RUN = "gpt2-small-ioi"
_K = 200
_NEXT = (
    ("top", f"--run {_RUN} --k 20 --greedy"),
    ("stats", f"--runs {_RUN} --mass 0.9"),
    ("sql", '"select name, score from edge_means order by abs(score) desc limit 5"'),
)


def run_demo(out: Path) -> None:
    """Write the demo into a folder; what is there already is made anew, but the store."""
    store = out / "store"
    circuit = read_circuit(EMBEDDED)
    import_circuit(circuit, store, run=_RUN, source=EMBEDDED.name, model="gpt2", task="ioi")
    say(f"{store}: {circuit.wiring.n_edges:,} edges of GPT-2 small, scored on IOI, as Parquet.")

    catalog = read_catalog(store)
    connection = open_store(catalog)
    chosen = choose(connection, catalog.run(_RUN), Choice(k=_K)).circuit
    (strongest,) = strongest_paths(chosen, 1)
    say(
        f"Top {_K}: {chosen.kept} edges lie on a path from input to logits, between {len(chosen.nodes)} nodes, "
        f"{len(chosen.heads)} of them heads. {path_count(chosen):,} paths; the strongest is "
        f"{' -> '.join(strongest.nodes)}. {len(minimum_cut(chosen).edges)} edges cut it."
    )
    strength = ask(connection, "head_strength", run=_RUN)
    put(encoded(strength, "csv"), out / "heads.csv")
    put(encoded(chosen.table(), "csv"), out / f"ioi-top{_K}.csv")
    put(graphml(chosen), out / f"ioi-top{_K}.graphml")
    dot = wiring_dot(chosen, title=f"GPT-2 small, IOI: the top {_K} edges")
    put(dot.encode(), out / f"ioi-top{_K}.dot")
    try:
        render(dot, out / f"ioi-top{_K}.svg")
    except InputError as error:
        say(f"No picture: {error}")

    say("The ten heads with the most |score| on the edges that leave them:")
    put(encoded(strength.slice(0, 10), "table"), None)
    say(f"\nWritten to {out}/: {', '.join(sorted(file.name for file in out.iterdir()))}\n\nNext:")
    for command, options in _NEXT:
        say(f"  wirescope {command} --store {store} {options}")
