"""Stores to test on: the published circuit, and a small made-up pair of a dense and a sparse run.

The toy pair has every table filled with numbers that a reader can recompute: seeded random scores, and
curves given by hand. Fixtures that return a path are shared by all tests: read them only, copy to write.
"""

import contextlib
import io
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from wirescope.cli import main
from wirescope.data import EMBEDDED, Run, import_circuit, parts, read_circuit, schema_of, write_run
from wirescope.graphs import Shape, Wiring

# what a script starts behind it is born deaf to SIGINT, and so are its children: tests send it, and have to be heard
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("wirescope", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("wirescope")

IOI = "gpt2-small-ioi"
TOY = Shape(layers=2, heads=2)
SIZES = {"edge": (1, 4, 16, 46), "head": (1, 2, 3, 4)}
# explained effect at each size and, added to it, how each of the four prompts differs from the mean
CURVES = {"dense-ioi": (0.0, 0.2, 0.8, 1.0), "sparse-ioi": (0.1, 0.9, 1.1, 1.0)}
SPREAD = (-0.2, -0.1, 0.1, 0.2)


class Result(NamedTuple):
    status: int
    out: str
    err: str


@dataclass(frozen=True)
class Toy:
    """The toy store, and the scores that were written into it."""

    path: Path
    scores: dict[str, np.ndarray]  # by run: [prompt, edge]
    head_scores: dict[str, np.ndarray]  # by run: [prompt, node]


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """What is remembered of the stores of tests is kept out of the user's own cache folder."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "cache_folder", lambda: folder)
        yield folder


@pytest.fixture(scope="session")
def published():
    return read_circuit(EMBEDDED)


@pytest.fixture(scope="session")
def ioi_store(tmp_path_factory, published) -> Path:
    path = tmp_path_factory.mktemp("ioi") / "store"
    import_circuit(published, path, run=IOI, source=EMBEDDED.name, model="gpt2", task="ioi")
    return path


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> Toy:
    path = tmp_path_factory.mktemp("toy") / "store"
    return write_toy(path)


@pytest.fixture
def toy_copy(tmp_path) -> Toy:
    """A toy store of this test's own, to break."""
    return write_toy(tmp_path / "store")


@pytest.fixture
def cli() -> Callable[..., Result]:
    """Run a command in this process."""

    class Screen(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    def run(*arguments: object, tty: bool = False) -> Result:
        out, err = (Screen if tty else io.TextIOWrapper)(io.BytesIO(), encoding="utf-8"), io.StringIO()
        status = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main([str(argument) for argument in arguments])
            except SystemExit as exit_:
                status = exit_.code if isinstance(exit_.code, int) else 1
        out.flush()
        return Result(status, out.buffer.getvalue().decode(), err.getvalue())

    return run


@pytest.fixture
def as_version_1() -> Callable[[Path, str], None]:
    """Make a run of a store, by its name, one that the first version of the schema wrote."""
    return _as_version_1


def write_toy(path: Path) -> Toy:
    wiring = Wiring(TOY)
    rng = np.random.default_rng(7)
    scores, head_scores = {}, {}
    for run, curve in CURVES.items():
        # a power makes a few edges stand out; rounding makes ties, and golden files short
        scores[run] = np.round(rng.normal(size=(4, wiring.n_edges)) ** 3, 2).astype(np.float32)
        head_scores[run] = np.round(rng.normal(size=(4, wiring.n_nodes)), 2).astype(np.float32)
        record = Run(
            run=run,
            model="toy" if run.startswith("dense") else "toy-sparse",
            base_model=None if run.startswith("dense") else "toy",
            shape=TOY,
            task="ioi",
            seed=0,
            prompts=4,
            levels=("edge", "head", "attention"),
            method="eap",
            metric="logit_diff",
            ablation="corrupt",
        )
        with write_run(path, record) as writer:
            writer.write_wiring(wiring)
            writer.write("prompts", _prompts())
            for shard in (0, 1):  # two prompts each
                writer.write("edge_scores", _long(scores[run], shard, "edge_id"), shard)
                heads = np.flatnonzero(wiring.is_kind("head"))
                writer.write("head_scores", _long(head_scores[run], shard, "node_id", heads), shard)
            writer.write("attention_scores", _attention(rng))
            writer.write("effects", _effects(curve))
    return Toy(path, scores, head_scores)


def _prompts() -> pa.Table:
    return pa.table(
        {
            "prompt_id": np.arange(4, dtype=np.int32),
            "clean": [f"clean {i}" for i in range(4)],
            "corrupted": [f"corrupted {i}" for i in range(4)],
            "correct": [[" Mary"]] * 4,
            "wrong": [[" John"]] * 4,
            "clean_tokens": [["a", " b", " c"]] * 4,
            "clean_ids": [[1, 2, 3]] * 4,
            "corrupted_ids": [[1, 2, 4]] * 4,
            "correct_ids": [[5]] * 4,
            "wrong_ids": [[6]] * 4,
            "correct_answers": [[[5]]] * 4,
            "wrong_answers": [[[6, 7]]] * 4,
            "metric_clean": [2.0] * 4,
            "metric_corrupted": [-1.0, -1.5, -0.5, 0.0],
            "is_right": [True, True, True, False],
            "answer_rank": [1, 2, 1, 7],
        }
    )


def _long(scores: np.ndarray, shard: int, unit: str, units: np.ndarray | None = None) -> pa.Table:
    units = np.arange(scores.shape[1]) if units is None else units
    prompts = [2 * shard, 2 * shard + 1]
    return pa.table(
        {
            "prompt_id": np.repeat(prompts, len(units)),
            unit: np.tile(units, 2),
            "score": scores[prompts][:, units].ravel(),
        }
    )


def _attention(rng: np.random.Generator) -> pa.Table:
    rows = [
        {"prompt_id": p, "layer": layer, "head": head, "query": i, "key": j}
        for p in range(4)
        for layer in range(2)
        for head in range(2)
        for i in range(3)
        for j in range(i + 1)
    ]
    table = pa.Table.from_pylist(rows)
    size = len(rows)
    return (
        table.append_column("weight", pa.array(np.full(size, 0.5, dtype=np.float32)))
        .append_column("gate", pa.array(np.ones(size, dtype=np.float32)))
        .append_column("score", pa.array(np.round(rng.normal(size=size), 2).astype(np.float32)))
    )


def _effects(curve: tuple[float, ...]) -> pa.Table:
    """At both levels and rankings the same curve; m_none is 1 and m_all is 3 for every prompt."""
    return pa.Table.from_pylist(
        [
            {
                "level": level,
                "ranking": ranking,
                "ablation": "corrupt",
                "prompt_id": prompt,
                "requested": size,
                "fold": None,
                "kept": size - 1,
                "metric": 1 + 2 * (explained + (SPREAD[prompt] if size < sizes[-1] else 0.0)),
                "m_all": 3.0,
                "m_none": 1.0,
            }
            for level, sizes in SIZES.items()
            for ranking in ("prompt", "task")
            for size, explained in zip(sizes, curve, strict=True)
            for prompt in range(4)
        ]
    )


def _as_version_1(store: Path, run: str) -> None:
    """Rewrite a run as the first version of the schema wrote it: no columns that came later, no checksums of parts."""
    record = store / f"runs/run={run}/run.json"
    content = json.loads(record.read_text()) | {"schema_version": 1}
    for part in (part for some in content["parts"].values() for part in some):
        del part["crc32"]
    for table in ("prompts", "effects"):
        for part in content["parts"].get(table, ()):
            file = store / part["file"]
            pq.write_table(
                pq.read_table(file, partitioning=None).select(schema_of(table, 1).names),
                file,
                store_schema=False,
                write_page_checksum=True,
            )
            part["bytes"] = file.stat().st_size
    record.write_text(json.dumps(content))
