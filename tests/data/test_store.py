import errno
import json
import os
import shutil
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wirescope.data import (
    SCHEMA_VERSION,
    TABLES,
    Run,
    check_store,
    join_run,
    parts,
    read_catalog,
    write_run,
)
from wirescope.data.parts import cache_folder  # before a fixture puts another in its place
from wirescope.errors import InputError, StoreError
from wirescope.graphs import Shape, Wiring
from wirescope.queries import open_store, select

TINY = Shape(1, 1)
CALL = Run(run="a", model="m", shape=TINY, prompts=1, levels=("edge",), config={"sizes": (1, 2)})


def scores(values, prompt=0) -> pa.Table:
    size = len(values)
    return pa.table(
        {"prompt_id": [prompt] * size, "edge_id": range(size), "score": np.asarray(values, dtype=np.float32)}
    )


def contents(store: Path) -> dict[str, bytes]:
    """All files but run.json, which has the time in it."""
    return {
        str(file.relative_to(store)): file.read_bytes()
        for file in sorted(store.rglob("*.parquet"))
        if file.is_file()
    }


def test_what_is_written_is_read_back(tmp_path):
    values = [0.5, -1.5, 0, 1e-30, 3.25, -0.0, 7, 8]
    with write_run(tmp_path / "s", CALL) as writer:
        writer.write_wiring(Wiring(TINY))
        writer.write("edge_scores", scores(values))
    run = read_catalog(tmp_path / "s").run("a")
    assert run.differs_from(Run.from_json(CALL.to_json())) == []
    assert run.shape == TINY
    assert run.started <= run.finished
    assert run.versions.keys() >= {"wirescope", "numpy", "pyarrow"}
    (part,) = run.parts["edge_scores"]
    assert part.file == "edge_scores/run=a/part-00000.parquet"
    assert part.rows == 8
    table = pq.read_table(tmp_path / "s" / part.file, partitioning=None)
    assert table.schema == TABLES["edge_scores"]
    assert table["score"].to_numpy().tobytes() == np.array(values, dtype=np.float32).tobytes()


def test_any_parquet_reader_sees_the_run_as_a_column(toy):
    table = pq.read_table(toy.path / "edge_scores")
    assert set(table["run"].to_pylist()) == {"dense-ioi", "sparse-ioi"}
    assert table.num_rows == sum(scores.size for scores in toy.scores.values())


def test_a_score_that_cannot_be_compressed_costs_at_most_4_2_bytes(tmp_path):
    shape = Shape(12, 12)
    bits = np.random.default_rng(0).integers(0, 2**32, size=(20, shape.n_edges), dtype=np.uint32)
    noise = bits.view(np.float32)
    with write_run(tmp_path / "s", replace(CALL, shape=shape, prompts=20)) as writer:
        for shard in range(2):
            block = np.arange(10 * shard, 10 * shard + 10)
            rows = {
                "prompt_id": np.repeat(block, shape.n_edges),
                "edge_id": np.tile(np.arange(shape.n_edges), 10),
                "score": noise[block].ravel(),
            }
            writer.write("edge_scores", pa.table(rows), shard)
    parts = read_catalog(tmp_path / "s").run("a").parts["edge_scores"]
    assert [part.rows for part in parts] == [10 * shape.n_edges] * 2
    assert sum(part.bytes for part in parts) / noise.size <= 4.2


def test_ids_are_delta_encoded_and_scores_split_by_byte(toy):
    metadata = pq.read_metadata(toy.path / "edge_scores/run=dense-ioi/part-00000.parquet")
    columns = [metadata.row_group(0).column(i) for i in range(3)]
    assert ["DELTA_BINARY_PACKED" in column.encodings for column in columns] == [True, True, False]
    assert "BYTE_STREAM_SPLIT" in columns[2].encodings
    assert {column.compression for column in columns} == {"ZSTD"}


def test_a_run_that_was_stopped_is_skipped_and_then_resumed(tmp_path):
    store = tmp_path / "s"
    with pytest.raises(KeyboardInterrupt), write_run(store, CALL) as writer:
        writer.write("edge_scores", scores([1] * 8), 0)
        raise KeyboardInterrupt
    catalog = read_catalog(store)
    assert (catalog.unfinished, catalog.runs) == (("a",), {})
    with pytest.raises(InputError, match="not finished; the command that started it, given again"):
        catalog.run("a")

    before = contents(store)
    with write_run(store, CALL) as writer:
        assert not writer.finished
        assert writer.has("edge_scores", 0)
        assert not writer.has("edge_scores", 1)
        writer.write("edge_scores", scores([9] * 8), 0)  # not done again
        writer.write("edge_scores", scores([2] * 8, prompt=1), 1)
    assert contents(store).items() >= before.items()
    assert len(read_catalog(store).run("a").parts["edge_scores"]) == 2

    undisturbed = tmp_path / "undisturbed"
    with write_run(undisturbed, CALL) as writer:
        writer.write("edge_scores", scores([2] * 8, prompt=1), 1)
        writer.write("edge_scores", scores([1] * 8), 0)
    assert contents(undisturbed) == contents(store)


def test_a_finished_run_of_the_same_call_is_left_as_it_is(tmp_path):
    for attempt in range(2):
        with write_run(tmp_path / "s", CALL) as writer:
            assert writer.finished == (attempt == 1)
            writer.write("edge_scores", scores([attempt] * 8))
        record = (tmp_path / "s/runs/run=a/run.json").read_bytes()
    assert pq.read_table(tmp_path / "s/edge_scores")["score"].to_pylist() == [0.0] * 8
    assert (tmp_path / "s/runs/run=a/run.json").read_bytes() == record


def test_a_run_name_that_is_taken_is_refused_with_what_differs(tmp_path):
    with write_run(tmp_path / "s", CALL):
        pass
    with (
        pytest.raises(
            InputError, match=r"has a run 'a' of another call already \(not the same: model, seed\)"
        ),
        write_run(tmp_path / "s", replace(CALL, model="n", seed=3)),
    ):
        pass


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a b", "run=a", ".a", "x" * 200])
def test_a_run_name_that_is_no_folder_name_is_refused(tmp_path, name):
    with (
        pytest.raises(InputError, match="cannot be the name of a run"),
        write_run(tmp_path / "s", replace(CALL, run=name)),
    ):
        pass
    assert not (tmp_path / "s").exists()


def test_a_second_writer_of_one_run_is_refused(tmp_path):
    with (
        write_run(tmp_path / "s", CALL),
        pytest.raises(InputError, match="being written by another process"),
        write_run(tmp_path / "s", CALL),
    ):
        pass
    assert read_catalog(tmp_path / "s").run("a").finished


def test_two_processes_can_write_two_runs_into_one_store(tmp_path):
    script = """
import sys, numpy as np, pyarrow as pa
from wirescope.data import Run, write_run
from wirescope.graphs import Shape, Wiring
store, name = sys.argv[1:]
shape = Shape(2, 2)
run = Run(run=name, model=name, shape=shape, prompts=30, levels=("edge",))
with write_run(store, run) as writer:
    writer.write_wiring(Wiring(shape))
    for shard in range(30):
        rows = {"prompt_id": [shard] * shape.n_edges, "edge_id": range(shape.n_edges),
                "score": np.full(shape.n_edges, shard, dtype=np.float32)}
        writer.write("edge_scores", pa.table(rows), shard)
"""
    store = tmp_path / "s"
    workers = [subprocess.Popen([sys.executable, "-c", script, str(store), name]) for name in ("a", "b")]
    while any(worker.poll() is None for worker in workers):  # a reader never sees half a run
        if (store / "runs").exists():
            try:
                catalog = read_catalog(store)
            except InputError as error:
                assert "is empty" in str(error)
                continue
            assert not catalog.broken
            for run in catalog.runs.values():
                assert len(run.parts["edge_scores"]) == 30
        time.sleep(0.01)
    assert [worker.returncode for worker in workers] == [0, 0]
    assert sorted(read_catalog(store).runs) == ["a", "b"]


def test_nothing_temporary_is_left_behind(tmp_path):
    store = tmp_path / "s"
    with pytest.raises(KeyboardInterrupt), write_run(store, CALL) as writer:
        left = store / "edge_scores/run=a/.part-00003.parquet.1.tmp"
        left.parent.mkdir(parents=True)
        left.write_bytes(b"half a file of a process that was killed")
        raise KeyboardInterrupt
    with write_run(store, CALL) as writer:
        writer.write("edge_scores", scores([1] * 8))
    assert not list(store.rglob("*.tmp"))


PART = "edge_scores/run=dense-ioi/part-00001.parquet"


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def replace_by_text(file: Path) -> None:
    file.write_bytes(b"x" * file.stat().st_size)


def flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def flip_one(file: Path) -> None:
    """One bit, in the middle of the first page."""
    flip(file, 8 * 60)


def wrong_columns(file: Path) -> None:
    """A file of the size that run.json says, so that only the columns give it away."""
    size = file.stat().st_size
    pq.write_table(pa.table({"a": [1]}), file)
    record = file.parents[2] / "runs" / file.parent.name / "run.json"
    record.write_text(record.read_text().replace(f'"bytes": {size}', f'"bytes": {file.stat().st_size}'))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "cut short or replaced"),
        (lambda file: file.write_bytes(b""), "has 0 bytes instead of"),
        (replace_by_text, "is not a Parquet file"),
        (flip_one, "is damaged: its CRC-32 is"),
        (wrong_columns, "does not have the columns of edge_scores: it has a."),
        (Path.unlink, "is missing"),
    ],
)
def test_a_broken_file_is_named_and_the_rest_is_readable(toy_copy, damage, reason):
    file = toy_copy.path / PART
    damage(file)
    catalog = read_catalog(toy_copy.path)
    assert list(catalog.runs) == ["sparse-ioi"]
    assert str(file) in catalog.broken["dense-ioi"]
    assert reason in catalog.broken["dense-ioi"]
    with pytest.raises(StoreError, match=r"part-00001\.parquet"):
        catalog.run("dense-ioi")


def test_no_flipped_bit_goes_unnoticed(toy_copy):
    file = toy_copy.path / PART
    whole = file.read_bytes()
    for bit in np.random.default_rng(0).choice(8 * len(whole), 60, replace=False).tolist():
        flip(file, bit)
        assert str(file) in read_catalog(toy_copy.path).broken["dense-ioi"]
        file.write_bytes(whole)
    assert "dense-ioi" in read_catalog(toy_copy.path).runs


def test_without_a_listed_checksum_a_flipped_bit_is_noticed_by_those_of_pages(toy_copy, as_version_1):
    as_version_1(toy_copy.path, "dense-ioi")
    file = toy_copy.path / PART
    whole, rows = file.read_bytes(), pq.read_table(file)
    noticed = 0
    for bit in range(0, 8 * len(whole), 41):
        flip(file, bit)
        if trouble := read_catalog(toy_copy.path).broken.get("dense-ioi"):
            assert str(file) in trouble
            noticed += 1
        else:  # a statistic, say, or who wrote the file
            assert pq.read_table(file).equals(rows)
        file.write_bytes(whole)
    assert noticed > 20


@pytest.fixture
def reads(monkeypatch):
    """The files that were read from end to end."""
    found = []
    crc32 = parts._crc32
    monkeypatch.setattr(parts, "_crc32", lambda file: (found.append(file.name), crc32(file))[1])
    return found


def test_a_part_is_read_when_it_is_new_and_when_it_changes(toy_copy, tmp_path, reads):
    read_catalog(toy_copy.path)
    files = len(list(toy_copy.path.rglob("*.parquet")))
    assert len(reads) == files
    read_catalog(toy_copy.path)
    assert len(reads) == files
    os.utime(toy_copy.path / PART, ns=(1, 1))
    read_catalog(toy_copy.path)
    assert reads[files:] == [Path(PART).name]
    copy = toy_copy.path / "copy"  # the same bytes and time in another file
    shutil.copy2(toy_copy.path / PART, copy)
    copy.replace(toy_copy.path / PART)
    read_catalog(toy_copy.path)
    assert reads[files + 1 :] == [Path(PART).name]
    read_catalog(toy_copy.path)
    assert len(reads) == files + 2
    read_catalog(toy_copy.path, again=True)
    assert len(reads) == 2 * files + 2
    shutil.move(toy_copy.path, tmp_path / "elsewhere")
    read_catalog(tmp_path / "elsewhere")
    assert len(reads) == 3 * files + 2


def test_of_a_broken_run_what_is_whole_is_not_read_again(toy_copy, reads):
    for part in (0, 1):
        flip_one(toy_copy.path / f"edge_scores/run=dense-ioi/part-0000{part}.parquet")
    assert "So it is with 1 more of its files." in read_catalog(toy_copy.path).broken["dense-ioi"]
    before = len(reads)
    read_catalog(toy_copy.path)
    assert sorted(reads[before:]) == ["part-00000.parquet", "part-00001.parquet"]


def test_what_a_disk_lost_without_a_trace_is_found_by_reading_again(toy_copy):
    file = toy_copy.path / PART
    read_catalog(toy_copy.path)
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    with file.open("r+b") as content:  # the same file, at the same time
        content.seek(60)
        content.write(b"!")
    os.utime(file, ns=times)
    assert "dense-ioi" in read_catalog(toy_copy.path).runs
    assert str(file) in read_catalog(toy_copy.path, again=True).broken["dense-ioi"]
    assert str(file) in read_catalog(toy_copy.path).broken["dense-ioi"]  # and not forgotten


@pytest.mark.parametrize("content", [b"", b"[", b"5", b"\xff", b'{"a": [1, 2]}', b"[" * 100_000])
def test_a_memory_that_is_lost_or_garbled_only_costs_time(toy_copy, tmp_path, monkeypatch, reads, content):
    folder = tmp_path / "cache"
    monkeypatch.setattr(parts, "cache_folder", lambda: folder)
    read_catalog(toy_copy.path)
    (memory,) = folder.iterdir()
    memory.write_bytes(content)
    before = len(reads)
    assert not read_catalog(toy_copy.path).broken
    assert len(reads) == 2 * before
    shutil.rmtree(folder)
    folder.write_text("no folder")
    assert not read_catalog(toy_copy.path).broken
    monkeypatch.setattr(parts, "cache_folder", lambda: None)
    assert not read_catalog(toy_copy.path).broken
    assert len(reads) == 4 * before


def test_the_memory_is_in_the_cache_folder_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for place, folder in (
        ("", ".cache/wirescope"),
        ("relative", ".cache/wirescope"),
        (tmp_path / "x", "x/wirescope"),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", str(place))
        assert cache_folder() == tmp_path / folder
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / ".cache/wirescope"


def test_a_part_that_was_damaged_before_the_run_was_finished_is_not_listed_as_it_is(tmp_path):
    """The checksum is that of what was written, not of what was found on the disk later."""
    store = tmp_path / "s"
    with write_run(store, CALL) as writer:
        writer.write("edge_scores", scores([1] * 8))
        flip_one(store / "edge_scores/run=a/part-00000.parquet")
    assert "part-00000.parquet' is damaged" in read_catalog(store).broken["a"]


def test_a_part_of_another_process_that_was_damaged_is_not_listed(tmp_path):
    store = tmp_path / "s"
    with (
        pytest.raises(StoreError, match=r"part-00001\.parquet' was removed or damaged since it was written"),
        write_run(store, CALL) as writer,
    ):
        writer.write("edge_scores", scores([1] * 8), 0)
        join_run(store, "a").write("edge_scores", scores([2] * 8), 1)
        flip_one(store / "edge_scores/run=a/part-00001.parquet")
    with write_run(store, CALL) as writer:
        assert [writer.has("edge_scores", shard) for shard in (0, 1)] == [True, False]


def test_checking_a_store_tells_what_is_whole_unfinished_and_broken(toy_copy):
    with pytest.raises(KeyboardInterrupt), write_run(toy_copy.path, CALL) as writer:
        writer.write("edge_scores", scores([1] * 8))
        raise KeyboardInterrupt
    flip_one(toy_copy.path / PART)
    rows = {row["run"]: row for row in check_store(toy_copy.path).to_pylist()}
    assert {name: row["state"] for name, row in rows.items()} == {
        "a": "not finished",
        "dense-ioi": "broken",
        "sparse-ioi": "whole",
    }
    assert rows["dense-ioi"]["trouble"].startswith(f"'{toy_copy.path / PART}' is damaged")
    assert rows["sparse-ioi"]["trouble"] is None
    files = list(toy_copy.path.glob("*/run=sparse-ioi/*.parquet"))
    assert (rows["sparse-ioi"]["files"], rows["sparse-ioi"]["bytes"]) == (
        len(files),
        sum(file.stat().st_size for file in files),
    )


def test_a_run_cannot_point_outside_its_own_folders(toy_copy):
    record = toy_copy.path / "runs/run=dense-ioi/run.json"
    text = record.read_text()
    for elsewhere in ("/etc/passwd", "../secret.parquet", "edges/run=sparse-ioi/part-00000.parquet"):
        record.write_text(text.replace("edges/run=dense-ioi/part-00000.parquet", elsewhere))
        assert (
            f"lists '{elsewhere}', which is no part of its edges"
            in read_catalog(toy_copy.path).broken["dense-ioi"]
        )


@pytest.mark.parametrize(
    "change",
    [
        *("", "{", "[]", "{}", '{"schema_version": 1}', "\xff", "[" * 100_000),
        {"shape": {"layers": 0, "heads": 2}},
        {"shape": {"layers": 2, "heads": 2, "inputs": "odd"}},
        {"shape": {"layers": "2", "heads": 2}},
        {"prompts": "many"},
        {"model": 5},
        {"levels": ["edge", 5]},
        {"parts": []},
        {"run": "another"},
        {"schema_version": "1"},
        {"shape": {"layers": 2, "heads": True}},
        {"shape": {"layers": 2.0, "heads": 2}},
        {"shape": {"layers": 60_000, "heads": 60_000}},
        {"prompts": True},
        {"prompts": -1},
        {"prompts": 2**31},
        {"seed": 2**63},
        {"steps": 2**40},
        {"model": "\ud800"},
        {"config": [1]},
        {"parts": {"edges": [{"file": 5, "rows": 1, "bytes": 1}]}},
        {"parts": {"edges": [{"file": "a", "rows": 1, "bytes": 1, "crc32": 5}]}},
        {"curves": [{"ablation": "zero", "split": 5, "sizes": {}}]},
        {"curves": [{"ablation": "zero", "split": None, "sizes": {"edge": {"task": [1e999]}}}]},
    ],
)
def test_a_broken_run_json_is_named(toy_copy, change):
    record = toy_copy.path / "runs/run=dense-ioi/run.json"
    text = change if isinstance(change, str) else json.dumps(json.loads(record.read_text()) | change)
    record.write_text(text, encoding="latin-1")
    catalog = read_catalog(toy_copy.path)
    assert list(catalog.runs) == ["sparse-ioi"]
    assert "run.json" in catalog.broken["dense-ioi"]


oddities = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
PLACES = [
    tuple(path.split())
    for path in (
        *(
            "run",
            "model",
            "config",
            "shape",
            "shape layers",
            "shape heads",
            "shape kv_heads",
            "shape parallel",
        ),
        *(
            "shape inputs",
            "shape other",
            "prompts",
            "levels",
            "levels 0",
            "steps",
            "seed",
            "task",
            "versions",
        ),
        *(
            "schema_version",
            "finished",
            "parts",
            "parts edges",
            "parts edges 0",
            "parts edges 0 file",
            "parts other",
        ),
        *("parts edges 0 rows", "parts edges 0 bytes", "parts edges 0 crc32", "curves", "curves 0", "other"),
        *(
            "curves 0 ablation",
            "curves 0 split",
            "curves 0 sizes",
            "curves 0 sizes edge",
            "curves 0 sizes edge task",
        ),
    )
]


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> tuple[Path, str]:
    """A run.json to change, and what was in it."""
    store = tmp_path_factory.mktemp("odd") / "s"
    with write_run(store, CALL) as writer:
        writer.write_wiring(Wiring(TINY))
    file = store / "runs/run=a/run.json"
    curves = [{"ablation": "zero", "split": 0.5, "sizes": {"edge": {"task": [1, 8]}}}]
    return file, json.dumps(json.loads(file.read_text()) | {"curves": curves})


@given(st.lists(st.tuples(st.sampled_from(PLACES), oddities), min_size=1, max_size=3))
@settings(max_examples=150)
def test_no_run_json_makes_the_readers_crash(record, changes):
    """A valid one with something odd in some places is refused by name, or the store can be asked."""
    file, content = record[0], json.loads(record[1])
    for place, oddity in changes:
        at = content
        for key in place[:-1]:
            at = (
                at[int(key)] if isinstance(at, list) and at else at.get(key) if isinstance(at, dict) else None
            )
        if isinstance(at, list) and at:
            at[0] = oddity
        elif isinstance(at, dict):
            at[place[-1]] = oddity
    file.write_text(json.dumps(content))
    catalog = read_catalog(file.parents[2])
    assert {*catalog.runs, *catalog.broken, *catalog.unfinished} == {"a"}
    assert select(open_store(catalog), "from runs").num_rows == len(catalog.runs)
    assert all("run=a" in trouble for trouble in catalog.broken.values())


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_a_run_json_or_refused(tmp_path_factory, content):
    record = tmp_path_factory.mktemp("odd") / "runs/run=a/run.json"
    record.parent.mkdir(parents=True)
    record.write_bytes(content)
    assert "run.json" in read_catalog(record.parents[2]).broken["a"]


def test_a_newer_schema_is_refused(toy_copy):
    record = toy_copy.path / "runs/run=dense-ioi/run.json"
    content = json.loads(record.read_text()) | {"schema_version": SCHEMA_VERSION + 1}
    record.write_text(json.dumps(content))
    catalog = read_catalog(toy_copy.path)
    assert list(catalog.runs) == ["sparse-ioi"]
    with pytest.raises(StoreError, match=r"run=dense-ioi/run\.json.* was written by a newer Wirescope"):
        catalog.run("dense-ioi")


def test_a_run_of_an_older_schema_is_read_beside_newer_ones(toy_copy, as_version_1):
    as_version_1(toy_copy.path, "dense-ioi")
    catalog = read_catalog(toy_copy.path)
    assert (list(catalog.runs), dict(catalog.broken)) == (["dense-ioi", "sparse-ioi"], {})
    query = "select run, clean, clean_tokens, wrong_answers from prompts where prompt_id = 0 order by run"
    assert select(open_store(catalog), query).to_pylist() == [
        {"run": "dense-ioi", "clean": "clean 0", "clean_tokens": None, "wrong_answers": None},
        {
            "run": "sparse-ioi",
            "clean": "clean 0",
            "clean_tokens": ["a", " b", " c"],
            "wrong_answers": [[6, 7]],
        },
    ]


def test_a_run_of_an_older_schema_goes_on_as_it_was_begun(toy_copy, as_version_1):
    as_version_1(toy_copy.path, "dense-ioi")
    run = read_catalog(toy_copy.path).run("dense-ioi")
    rows = pa.Table.from_pylist([{"prompt_id": 9}], schema=TABLES["prompts"])
    call = replace(run, schema_version=SCHEMA_VERSION, parts={}, finished=None)
    with write_run(toy_copy.path, call) as writer:
        assert writer.finished  # the same call
        writer.write("prompts", rows, shard=7)
    written = pq.read_schema(toy_copy.path / "prompts/run=dense-ioi/part-00007.parquet")
    assert "clean_tokens" not in written.names


@pytest.mark.parametrize("table", ["runs", "edge_scores"])
def test_a_folder_that_is_another_users_is_named_and_the_rest_is_readable(toy_copy, table, monkeypatch):
    """Root may read everything, so the system's answer is made up."""
    theirs, stat = f"{table}/run=dense-ioi", os.stat

    def refuse(path, *rest, **options):
        if not isinstance(path, int) and f"{theirs}/" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *rest, **options)

    monkeypatch.setattr(os, "stat", refuse)
    catalog = read_catalog(toy_copy.path)
    assert list(catalog.runs) == ["sparse-ioi"]
    assert theirs in catalog.broken["dense-ioi"]
    assert "Permission denied" in catalog.broken["dense-ioi"]


def test_a_run_without_a_run_json_is_not_finished(toy_copy):
    (toy_copy.path / "runs/run=dense-ioi/run.json").unlink()
    assert read_catalog(toy_copy.path).unfinished == ("dense-ioi",)


@pytest.mark.parametrize("damage", [truncate, Path.unlink, flip_one])
def test_a_broken_run_is_mended_by_the_same_call(tmp_path, damage):
    store = tmp_path / "s"
    for attempt in range(2):
        with write_run(store, CALL) as writer:
            assert not writer.finished
            writer.write("edge_scores", scores([1] * 8), 0)
            writer.write("edge_scores", scores([2 + attempt] * 8), 1)
        if attempt == 0:
            damage(store / "edge_scores/run=a/part-00001.parquet")
            assert "part-00001" in read_catalog(store).broken["a"]
    assert read_catalog(store).run("a").finished
    assert set(pq.read_table(store / "edge_scores")["score"].to_pylist()) == {1.0, 3.0}


@pytest.mark.parametrize("damage", [truncate, flip_one, lambda file: file.write_bytes(b"")])
@pytest.mark.parametrize("version", [2, SCHEMA_VERSION])
def test_a_broken_part_of_a_run_that_is_not_finished_is_done_again(tmp_path, damage, version):
    store, call = tmp_path / "s", replace(CALL, schema_version=version)
    with pytest.raises(KeyboardInterrupt), write_run(store, call) as writer:
        for shard in (0, 1):
            writer.write("edge_scores", scores([shard] * 8), shard)
        raise KeyboardInterrupt
    whole = contents(store)
    damage(store / "edge_scores/run=a/part-00001.parquet")
    with write_run(store, call) as writer:
        assert [writer.has("edge_scores", shard) for shard in (0, 1)] == [True, False]
        writer.write("edge_scores", scores([1] * 8), 1)
    assert contents(store) == whole
    listed = read_catalog(store).run("a").parts["edge_scores"]
    assert [part.crc32 is None for part in listed] == [version < 3] * 2


def test_the_listed_checksum_is_that_of_the_file(toy):
    for run in read_catalog(toy.path).runs.values():
        for part in (part for some in run.parts.values() for part in some):
            assert part.crc32 == f"{zlib.crc32((toy.path / part.file).read_bytes()):08x}"


def test_a_path_that_reads_as_a_pattern_is_refused(tmp_path):
    with pytest.raises(InputError, match="reads as a pattern"), write_run(tmp_path / "a*b", CALL):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_was_moved_still_works(toy_copy, tmp_path):
    shutil.move(toy_copy.path, tmp_path / "elsewhere")
    catalog = read_catalog(tmp_path / "elsewhere")
    assert sorted(catalog.runs) == ["dense-ioi", "sparse-ioi"]
    assert all(
        file.is_file() for run in catalog.runs for table in TABLES for file in catalog.files(table, run)
    )


def test_a_missing_and_an_empty_store_are_told_apart(tmp_path):
    with pytest.raises(InputError, match="There is no store at"):
        read_catalog(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="is empty; add a run with 'wirescope extract' or 'wirescope import"):
        read_catalog(tmp_path / "empty")


def test_a_full_disk_is_said_and_the_finished_parts_stay(tmp_path):
    """/dev/full takes the place of a part's temporary file: writing to it fails as on a full disk."""
    store = tmp_path / "s"
    with pytest.raises(StoreError, match="No space left on device"), write_run(store, CALL) as writer:
        writer.write("edge_scores", scores([1] * 8), 0)
        (store / f"edge_scores/run=a/.part-00001.parquet.{os.getpid()}.tmp").symlink_to("/dev/full")
        writer.write("edge_scores", scores([2] * 8), 1)
    with write_run(store, CALL) as writer:
        assert writer.has("edge_scores", 0)
        assert not writer.has("edge_scores", 1)
    assert len(read_catalog(store).run("a").parts["edge_scores"]) == 1
