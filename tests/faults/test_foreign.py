"""What others put into a store, and what they link, name or take away: it is not taken for a run's, and is said."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from wirescope.data import EMBEDDED, check_store, import_circuit, read_catalog, repair_command, write_run
from wirescope.data.run import Curves
from wirescope.errors import InputError, StoreError

PROGRAM = Path(sys.executable).parent / "wirescope"


def link_away(file: Path, elsewhere: Path) -> Path:
    """Move a file out of the store and link it, as git-annex, DVC and caches of datasets do."""
    elsewhere.mkdir(parents=True, exist_ok=True)
    target = elsewhere / f"{file.parent.name}-{file.name}"
    file.rename(target)
    file.symlink_to(target)
    return target


def test_a_linked_part_is_read_and_a_link_to_nowhere_breaks_that_run_alone(toy_copy, cli, tmp_path):
    parts = sorted(toy_copy.path.rglob("run=dense-ioi/part-*.parquet"))
    targets = [link_away(part, tmp_path / "annex" / part.parts[-3]) for part in parts]
    assert sorted(read_catalog(toy_copy.path).runs) == ["dense-ioi", "sparse-ioi"]
    assert check_store(toy_copy.path)["state"].to_pylist() == ["whole", "whole"]
    targets[0].unlink()
    catalog = read_catalog(toy_copy.path)
    assert list(catalog.runs) == ["sparse-ioi"]
    assert f"is a link to '{targets[0]}', where there is no file." in catalog.broken["dense-ioi"]
    checked = cli("check", "--store", toy_copy.path, "--format", "json")
    assert (checked.status, [row["state"] for row in json.loads(checked.out)]) == (1, ["broken", "whole"])
    assert cli("runs", "--store", toy_copy.path).status == 0


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_a_linked_part_that_is_done_again_is_not_written_where_it_was(tmp_path, published, how):
    def again(store: Path) -> bool:
        return import_circuit(published, store, run="r", source=EMBEDDED.name, model="gpt2")

    store = tmp_path / "s"
    again(store)
    part = store / "edge_scores/run=r/part-00000.parquet"
    whole = part.read_bytes()
    target = link_away(part, tmp_path / "annex")
    assert not again(store)  # nothing to do
    target.unlink() if how == "gone" else target.write_bytes(b"theirs")
    assert again(store)
    assert not part.is_symlink()
    assert part.read_bytes() == whole
    assert not target.exists() if how == "gone" else target.read_bytes() == b"theirs"


@pytest.fixture
def unfinished(tmp_path, published):
    """An import that was stopped before the end; what goes on with it."""
    store = tmp_path / "s"

    def go_on() -> None:
        import_circuit(published, store, run="r", source=EMBEDDED.name, model="gpt2")

    go_on()
    record = store / "runs/run=r/run.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"finished": None, "parts": {}}))
    return store, go_on


def test_a_part_that_is_not_of_the_run_is_neither_taken_nor_removed(unfinished):
    store, go_on = unfinished
    folder = store / "edge_scores/run=r"
    for name in ("part-00009.parquet", "part-00000-mybackup.parquet", "part-00001.parquet", ".mine.tmp"):
        shutil.copy(folder / "part-00000.parquet", folder / name)
    before = sorted(file.name for file in folder.iterdir())
    go_on()
    (listed,) = read_catalog(store).run("r").parts["edge_scores"]
    assert listed.file == "edge_scores/run=r/part-00000.parquet"
    assert sorted(file.name for file in folder.iterdir()) == before


def test_a_part_of_the_right_name_with_other_prompts_or_rows_is_done_again(unfinished):
    store, go_on = unfinished
    part = store / "edge_scores/run=r/part-00000.parquet"
    whole = part.read_bytes()
    rows = pq.read_table(part, partitioning=None)
    other = rows.set_column(0, rows.schema.field(0), pa.array([7] * rows.num_rows, pa.int32()))
    for foreign in (rows.slice(0, 100), other):
        pq.write_table(foreign, part, store_schema=False, write_page_checksum=True)
        record = store / "runs/run=r/run.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"finished": None, "parts": {}}))
        go_on()
        assert pq.read_table(part, partitioning=None) == rows
    assert part.read_bytes() == whole


def test_dropping_curves_leaves_what_is_not_a_part(toy_copy):
    run = read_catalog(toy_copy.path).run("dense-ioi")
    folder = toy_copy.path / "effects/run=dense-ioi"
    mine, begun = folder / "part-00000-mybackup.parquet", folder / "part-00000-0123abcd.parquet"
    for file in (mine, begun):
        shutil.copy(folder / "part-00000.parquet", file)
    with write_run(toy_copy.path, run) as writer:
        writer.drop_curves(Curves(ablation="zero", split=None, sizes={"edge": {"task": (1,)}}))
    assert mine.exists()
    assert not begun.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"prompts": 2**31 - 1},
        {"prompts": 2},
        {"prompts": 2**31 - 1, "parts": {}},
        {"shard_size": -1},
        {"shard_size": "many"},
    ],
)
def test_a_number_of_prompts_or_rows_that_cannot_be_breaks_the_run(ioi_store, tmp_path, change):
    store = tmp_path / "s"
    shutil.copytree(ioi_store, store)
    (record,) = store.glob("runs/*/run.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | change))
    assert list(read_catalog(store).broken) == ["gpt2-small-ioi"]
    assert check_store(store)["state"].to_pylist() == ["broken"]


def test_rows_that_are_listed_are_compared_with_the_file(toy_copy):
    record = toy_copy.path / "runs/run=dense-ioi/run.json"
    content = json.loads(record.read_text())
    content["parts"]["attention_scores"][0]["rows"] += 4
    record.write_text(json.dumps(content))
    assert "rows instead of" in read_catalog(toy_copy.path).broken["dense-ioi"]


def test_a_run_of_other_shards_is_not_mixed_with(tmp_path, published):
    store = tmp_path / "s"
    import_circuit(published, store, run="r", source="x", model="m")
    record = store / "runs/run=r/run.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"shard_size": 5}))
    with pytest.raises(InputError, match="not the same: shard_size"):
        import_circuit(published, store, run="r", source="x", model="m")


def test_controls_do_not_reach_the_terminal(cli, tmp_path):
    evil, controls = "\x1b]0;X\x07\x1b[2J\u202e\x9b", set("\x1b\x07\u202e\x9b")
    made = cli("import", EMBEDDED, "--store", tmp_path / "s", "--run", "r", "--model", evil)
    assert made.status == 0
    (tmp_path / "s" / "runs" / f"run={evil}").mkdir()
    (tmp_path / "s" / "runs" / os.fsdecode(b"run=\xff")).mkdir()
    for words in (["runs"], ["check"], ["sql", "select model from runs"], ["top", "--run", evil, "--k", "5"]):
        result = cli(*words, "--store", tmp_path / "s")
        assert result.status in (0, 1, 2)
        assert not controls & set(result.out + result.err), words
    assert "\\x1b]0;X\\x07\\x1b[2J\\u202e\\x9b" in cli("runs", "--store", tmp_path / "s").out
    for words in ([evil], ["top", f"--{evil}"], ["top", "--k", evil]):
        assert not controls & set(cli(*words).err)
    kept = cli("sql", "select model from runs", "--store", tmp_path / "s", "--format", "csv")
    assert evil in kept.out


def test_a_message_with_a_huge_value_is_cut(cli, toy):
    huge = "x" * 100_000
    for words in (
        ["top", "--run", huge, "--k", 5],
        ["sql", f"select {huge} from runs"],
        ["runs", "--format", huge],
    ):
        result = cli(*words, "--store", toy.path)
        assert result.status == 2
        assert len(result.err) < 10_000


def test_odd_places_of_a_store_get_a_sentence(cli, tmp_path, toy, monkeypatch):
    (tmp_path / "loop").symlink_to("loop")
    odd = tmp_path / os.fsdecode(b"\xff")
    shutil.copytree(toy.path, odd)
    for place in (tmp_path / "loop", odd, tmp_path / ("x" * 5000)):
        for words in (["runs"], ["check"], ["import", EMBEDDED]):
            result = cli(*words, "--store", place)
            assert result.status == 2
            assert len(result.err.splitlines()) == 1
        with pytest.raises(InputError):
            read_catalog(place)
    assert cli("runs", "--store", toy.path, "--out", tmp_path / "loop").status == 2


def test_a_folder_of_runs_that_cannot_be_listed_is_not_an_empty_store(toy, monkeypatch):
    listed = os.listdir

    def refuse(path="."):
        if str(path).endswith("runs"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(StoreError, match="runs': Permission denied"):
        read_catalog(toy.path)


def test_arguments_that_are_not_text_and_seeds_that_are_too_large_are_refused(cli, tmp_path):
    for words in (["extract", "--task", "ioi", "--seed", 10**40], ["extract", "--task", "\udcff"]):
        result = cli(*words, "--model", "tiny", "--store", tmp_path / "s")
        assert result.status == 2
        assert "run.json" not in result.err
        assert "less than or equal to" in result.err or "\\xff' is not UTF-8" in result.err
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_the_command_that_is_printed_for_a_broken_run_mends_it(tmp_path, contents_of):
    """From the folder that the run was made in, with some prompts of a file that is elsewhere."""
    work = tmp_path / "work"
    (work / "my data").mkdir(parents=True)

    def run(command: str) -> subprocess.CompletedProcess[str]:
        bin_ = f"{PROGRAM.parent}:{os.environ['PATH']}"
        env = os.environ | {"PATH": bin_, "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, shell=True, cwd=work, env=env, capture_output=True, text=True)

    made = "wirescope tasks ioi -m tiny --limit 6 --seed 3 -o 'my data/pairs.jsonl'"
    assert run(made).returncode == 0
    extract = "wirescope extract -m tiny -p 'my data/pairs.jsonl' --limit 4 -s s --method eap --sizes 9 --level head"
    assert run(extract).returncode == 0
    before = contents_of(work / "s")
    for table in ("head_scores", "effects"):
        next((work / "s" / table).rglob("*.parquet")).write_bytes(b"damaged")
    checked = run("wirescope check -s s")
    assert checked.returncode == 1
    command = checked.stderr.splitlines()[-1].strip()
    assert (
        command == repair_command("s", "tiny-pairs") or "--prompts 'my data/pairs.jsonl' --limit 4" in command
    )
    mended = run(command)
    assert mended.returncode == 0, mended.stderr
    assert contents_of(work / "s") == before
