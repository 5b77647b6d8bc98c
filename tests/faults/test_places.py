"""Stores in bad places: on a full disk, where nothing can be written, moved, damaged, and of a newer version."""

import json
import os
import shutil
from pathlib import Path

import pytest
from wirescope.data import EMBEDDED, SCHEMA_VERSION, read_catalog

READING = {
    "runs": "runs",
    "sql": "sql|select count(*) as n from edge_scores",
    "top": "top|--run|dense-ioi|--k|40",
    "stats": "stats|--runs|sparse-ioi|dense-ioi|--k|40|--null|2",
    "curve": "curve|--runs|sparse-ioi|dense-ioi|--out|{out}/curve.svg",
    "diagram": "diagram|--runs|sparse-ioi|dense-ioi|--k|40|--out|{out}/diagram.svg",
    "explore": "explore|--runs|sparse-ioi|dense-ioi|--out|{out}/page.html",
    "export": "export|--run|dense-ioi|--k|40|--to|mib|--out|{out}/circuit.json",
    "check": "check",
}


def read(cli, command: str, store: Path, out: Path) -> tuple[str, dict[str, bytes]]:
    """What a reading command says of a store on standard output, and the files it makes."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    result = cli(*READING[command].format(out=out).split("|"), "--store", store)
    assert (result.status, "Traceback" in result.err) == (0, False), result.err
    return result.out, {file.name: file.read_bytes() for file in out.iterdir()}


def state(store: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(store.rglob("*"))}


def shards(store: Path) -> dict[str, bytes]:
    return {
        file.relative_to(store).as_posix(): file.read_bytes() for file in store.glob("*/*/part-*.parquet")
    }


@pytest.mark.slow
def test_a_full_disk_is_said_and_costs_no_finished_shard(
    start, command, undisturbed, same_as, disk, tmp_path
):
    whole = sum(file.stat().st_size for file in undisturbed.rglob("*.parquet"))
    place = disk(f"size={whole // 2}")
    store, log = place / "s", tmp_path / "log"
    process = start(command(store), log=log)
    process.join()
    assert process.exitcode == 1
    said = log.read_text().splitlines()[-1]
    assert said.startswith(f"wirescope: Writing '{store}/")
    assert "No space left on device" in said
    assert "Traceback" not in log.read_text()
    assert not list(store.rglob(".*.tmp"))
    done = shards(store)
    assert 3 < len(done) < len(shards(undisturbed))
    assert done.items() <= shards(undisturbed).items()
    times = {file: file.stat().st_mtime_ns for file in store.rglob("*.parquet")}
    disk(f"size={8 * whole}")
    process = start(command(store))
    process.join()
    assert process.exitcode == 0
    assert same_as(store)
    assert {file: file.stat().st_mtime_ns for file in times} == times  # not written again


@pytest.mark.slow
def test_a_file_that_is_too_large_for_the_system_is_said(start, command, same_as, tmp_path):
    """Where mounting is not allowed: a limit on the size of files stops it in the middle as well."""
    store, log = tmp_path / "s", tmp_path / "log"
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))"
    process = start(command(store), log=log, first=limit)
    process.join()
    assert process.exitcode == 1
    said = log.read_text().splitlines()[-1]
    assert said.startswith(f"wirescope: Writing '{store}/")
    assert "File too large" in said
    assert "Traceback" not in log.read_text()
    assert shards(store)
    assert read_catalog(store).unfinished == ("tiny",)
    process = start(command(store))
    process.join()
    assert process.exitcode == 0
    assert same_as(store)


@pytest.fixture
def read_only(toy, undisturbed, disk) -> Path:
    """The toy store and an extracted run, where nothing can be written, not even by root."""
    place = disk("size=16m")
    shutil.copytree(toy.path, place / "s")
    shutil.copytree(undisturbed, place / "s", dirs_exist_ok=True)
    disk("ro")
    with pytest.raises(OSError, match="Read-only"):
        (place / "s" / "x").touch()
    return place / "s"


def test_all_that_reads_works_on_a_read_only_store(cli, read_only, toy, undisturbed, tmp_path):
    writable = tmp_path / "writable"
    shutil.copytree(toy.path, writable)
    shutil.copytree(undisturbed, writable, dirs_exist_ok=True)
    for command in READING:
        there = read(cli, command, read_only, tmp_path / "out")
        assert read(cli, command, writable, tmp_path / "out") == there


def test_what_writes_is_refused_on_a_read_only_store(cli, read_only, command):
    before = state(read_only)
    for words in (
        ["import", EMBEDDED, "--store", read_only],
        [*command(read_only)[:-1], "4", "--run", "other"],
        [*command(read_only), "--sizes", "5"],  # curves to add to a run that is there
    ):
        result = cli(*words)
        assert result.status == 2
        said = result.err.splitlines()[-1]
        assert said.startswith(f"wirescope: Cannot write '{read_only}")
        assert said.endswith("Read-only file system.")
        assert "Traceback" not in result.err
    again = cli(*command(read_only))  # which writes nothing
    assert again.status == 0
    assert "nothing was written" in again.err
    assert state(read_only) == before


def test_a_store_works_where_it_was_copied_to(cli, start, toy, undisturbed, command, same_as, tmp_path):
    answers = {name: read(cli, name, toy.path, tmp_path / "out") for name in READING}
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(toy.path, first)
    shutil.copytree(first, second)
    shutil.rmtree(first)
    assert {name: read(cli, name, second, tmp_path / "out") for name in READING} == answers
    shutil.copytree(undisturbed, first)
    shutil.copytree(first, tmp_path / "third")
    shutil.rmtree(first)
    part = tmp_path / "third/edge_scores/run=tiny/part-00001.parquet"
    part.unlink()
    going = start(command(tmp_path / "third"), log=tmp_path / "log")
    going.join()
    assert "32 prompts scored" in (tmp_path / "log").read_text()  # it is gone on with
    assert same_as(tmp_path / "third")


def damage(file: Path, how: str) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 4
    file.write_bytes({"truncated": content[:-50], "flipped": content, "empty": b""}[how])


@pytest.mark.parametrize("how", ["truncated", "flipped", "empty"])
@pytest.mark.parametrize("table", ["edge_scores", "prompts", "effects"])
def test_a_damaged_file_is_named_the_rest_is_read_and_extraction_mends_it(
    cli, start, undisturbed, toy, command, same_as, tmp_path, how, table
):
    store = tmp_path / "s"
    shutil.copytree(undisturbed, store)
    shutil.copytree(toy.path, store, dirs_exist_ok=True)
    file = sorted((store / table / "run=tiny").iterdir())[1]
    damage(file, how)
    listed = cli("runs", "--store", store, "--format", "json")
    assert listed.status == 0
    assert [run["run"] for run in json.loads(listed.out)] == ["dense-ioi", "sparse-ioi"]
    assert f"left out: The run 'tiny' cannot be read: '{file}' " in listed.err
    refused = cli("top", "--store", store, "--run", "tiny", "--k", 5)
    assert refused.status == 1
    assert str(file) in refused.err
    checked = cli("check", "--store", store, "--format", "json")
    assert checked.status == 1
    states = {row["run"]: (row["state"], row["trouble"]) for row in json.loads(checked.out)}
    assert states["dense-ioi"] == states["sparse-ioi"] == ("whole", None)
    assert states["tiny"][0] == "broken"
    assert str(file) in states["tiny"][1]
    assert "given again, does again what is damaged" in checked.err
    mending = start(command(store))
    mending.join()
    assert mending.exitcode == 0
    assert cli("check", "--store", store).status == 0
    for run in ("dense-ioi", "sparse-ioi"):
        for folder in store.glob(f"*/run={run}"):
            shutil.rmtree(folder)
    shutil.rmtree(store / "attention_scores")
    assert same_as(store)


def test_a_run_of_a_newer_version_is_refused_by_readers_and_by_extraction(
    cli, undisturbed, toy, command, tmp_path
):
    store = tmp_path / "s"
    shutil.copytree(undisturbed, store)
    shutil.copytree(toy.path, store, dirs_exist_ok=True)
    record = store / "runs/run=tiny/run.json"
    content = json.loads(record.read_text()) | {"schema_version": SCHEMA_VERSION + 1, "novel": [1]}
    record.write_text(json.dumps(content))
    before = state(store)
    newer = f"'{record}' cannot be used: it was written by a newer Wirescope (schema {SCHEMA_VERSION + 1}"
    listed = cli("runs", "--store", store, "--format", "json")
    assert listed.status == 0
    assert [run["run"] for run in json.loads(listed.out)] == ["dense-ioi", "sparse-ioi"]
    assert newer in listed.err
    for words in (
        ["top", "--store", store, "--run", "tiny", "--k", 5],
        ["check", "--store", store],
        command(store),
    ):
        result = cli(*words)
        assert result.status == 1
        assert newer in result.err + result.out
        assert "update Wirescope to read it" in result.err + result.out
    assert state(store) == before


@pytest.mark.skipif(os.name != "posix", reason="folders have owners")
def test_two_users_of_one_machine_do_not_share_a_folder_for_what_does_not_fit_in_memory(toy, monkeypatch):
    from wirescope.queries import open_store, select

    folders = set()
    for user in (os.getuid(), os.getuid() + 1):
        monkeypatch.setattr(os, "getuid", lambda user=user: user)
        setting = select(open_store(toy.path), "select current_setting('temp_directory') as folder")
        folders.add(setting["folder"][0].as_py())
    assert len(folders) == 2
