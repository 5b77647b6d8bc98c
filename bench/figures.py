"""What figures cost: diagrams in every format, and a step of the explorer in a browser, if there is one.

Prints a table and asserts nothing: machines differ. The explorer's times are from the change of the slider to a pixel
that is read back, without a GPU.

    python bench/figures.py [--edges 10000] [--rounds 3]
"""

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path

import numpy as np
from timing import heading, in_turns, row
from wirescope.data import EMBEDDED, import_circuit, read_catalog, read_circuit
from wirescope.graphs import Shape, Wiring, top_k
from wirescope.queries import explore, open_store
from wirescope.viz import Look, Panel, draw_wiring, explorer_page, save_diagram

OLMO_7B = Shape(layers=32, heads=32)
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--edges", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench_diagrams(Path(folder), options.edges, options.rounds)
        bench_explorer(Path(folder), options.edges)


def bench_diagrams(folder: Path, edges: int, rounds: int) -> None:
    wiring = Wiring(OLMO_7B)
    scores = np.random.default_rng(0).standard_normal(wiring.n_edges)
    panel = Panel(circuit=top_k(wiring, scores, 2 * edges), title="Noise")
    heading(f"Two diagrams of {OLMO_7B}, {min(edges, panel.circuit.kept):,} edges each")

    def draw() -> None:
        draw_wiring([panel, panel], Look(limit=edges))

    scene = draw_wiring([panel, panel], Look(limit=edges))
    endings = ("svg", "pdf", "png", "dot", "tex")
    jobs = [lambda ending=ending: save_diagram(scene, folder / f"x.{ending}") for ending in endings]
    layout, *written = in_turns([draw, *jobs], rounds)
    row("layout", f"{layout:.2f} s", "")
    for ending, seconds in zip(endings, written, strict=True):
        size = (folder / f"x.{ending}").stat().st_size / 1e6
        row(ending, f"{seconds:.2f} s", f"{size:.1f} MB")


def bench_explorer(folder: Path, edges: int) -> None:
    import_circuit(
        read_circuit(EMBEDDED), folder / "s", run="ioi", source=EMBEDDED.name, model="gpt2", task="ioi"
    )
    catalog = read_catalog(folder / "s")
    page = explorer_page(explore(open_store(catalog), [[catalog.run("ioi")] * 2], edges=edges))
    (folder / "page.html").write_text(page, encoding="utf-8")
    heading(f"The explorer with {edges:,} edges a side: {len(page) / 1e6:.2f} MB")
    program = shutil.which("chromium")
    if program is None:
        row("a step of the slider", "-", "there is no chromium")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        shown = browser.new_page(viewport={"width": 1300, "height": 800})
        shown.goto((folder / "page.html").as_uri())
        for k in sorted({100, 1000, edges}):
            times = [shown.evaluate(STEP, [k - 1 + i % 2]) for i in range(12)]
            row(f"a step at k = {k:,}", f"{1000 * statistics.median(times[2:]):.0f} ms", "median of 10")
        browser.close()


STEP = """async ([k]) => {
    const field = document.getElementById("k");
    const begin = performance.now();
    field.value = k;
    field.dispatchEvent(new Event("input"));
    do await new Promise(requestAnimationFrame); while (wirescope.busy);
    for (const canvas of document.querySelectorAll("canvas")) canvas.getContext("2d").getImageData(0, 0, 1, 1);
    return (performance.now() - begin) / 1000;
}"""


if __name__ == "__main__":
    main()
