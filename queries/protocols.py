"""Runs under a protocol: which of them belong together, and which counts of each model.

The runs of a call under a protocol, one an ablation, share a stem: what they are called without the ablation. Of each
model the run with the smaller circuit counts, by where its curve stays at the threshold; where no curve gets there, the
first ablation of the protocol.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..data import Catalog, Protocol, Run, find_protocol
from ..errors import InputError, did_you_mean
from .engine import Connection, remembered
from .questions import ask


def stems_of(
    connection: Connection, catalog: Catalog, names: Sequence[str], protocol: str
) -> list[tuple[str, ...]]:
    """Stems two by two, sparse and dense, or one alone: of runs by name, or of all pairs made under a protocol.

    A name is a stem or that of a run, which stands for its stem.
    """
    found = find_protocol(protocol)
    if names:
        stems = [_stem(catalog, name, found) for name in names]
        return [tuple(stems[at : at + 2]) for at in range(0, len(stems), 2)]
    rows = [row for row in ask(connection, "protocol_pairs").to_pylist() if row["protocol"] == protocol]
    if not rows:
        raise InputError(
            f"The store '{catalog.path}' has no sparse run with its dense twin that were made with 'wirescope extract "
            f"--protocol {protocol}': make them, or leave the protocol out."
        )
    return sorted((row["sparse_stem"], row["dense_stem"]) for row in rows)


def runs_of(catalog: Catalog, stem: str, protocol: str) -> list[Run]:
    """The runs that share a stem, those by the protocol's first ablation first, and STEM-ABLATION before others."""
    known = find_protocol(protocol).ablations

    def place(run: Run) -> tuple[int, bool, str]:
        ablation = known.index(run.ablation) if run.ablation in known else len(known)
        return ablation, run.run != f"{stem}-{run.ablation}", run.run

    runs = [run for run in catalog.runs.values() if run.protocol == protocol and run.stem == stem]
    return sorted(runs, key=place)


def crossings_under(
    connection: Connection, stem: str, *, protocol: str, level: str, ranking: str, threshold: float
) -> tuple[str | None, Mapping[str, float | None]]:
    """The run that counts of those that share a stem, and by ablation from where on the curves stay at the threshold.

    None where no curve was measured.
    """
    key = {"protocol": protocol, "level": level, "ranking": ranking}
    rows = [row for row in _crossings(connection, threshold, **key) if row["stem"] == stem]
    found = {row["ablation"]: row["k"] for row in rows}
    known = [ablation for ablation in find_protocol(protocol).ablations if ablation in found]
    return (rows[0]["run"] if rows else None), {ablation: found[ablation] for ablation in known}


def measured_stems(
    connection: Connection, *, protocol: str, level: str, ranking: str, threshold: float
) -> set[str]:
    """The stems of a protocol that have a curve at a level, by a ranking."""
    rows = _crossings(connection, threshold, protocol=protocol, level=level, ranking=ranking)
    return {row["stem"] for row in rows}


def _crossings(connection: Connection, threshold: float, **key: str) -> list[dict[str, Any]]:
    """From where on curves stay at a threshold, of all runs under a protocol that are like the key."""
    every = remembered(
        connection,
        ("protocol_crossings", threshold),
        lambda: ask(connection, "run_protocol_crossings", threshold=threshold),
    )
    return [row for row in every.to_pylist() if all(row[name] == value for name, value in key.items())]


def _stem(catalog: Catalog, name: str, protocol: Protocol) -> str:
    stems = dict.fromkeys(run.stem for run in catalog.runs.values() if run.protocol == protocol.name)
    if name in stems:
        return name
    if name in catalog.runs:
        run = catalog.run(name)
        if run.protocol != protocol.name:
            raise InputError(
                f"The run '{name}' was not made under the protocol {protocol.name}: make one that is with 'wirescope "
                f"extract --protocol {protocol.name}', or leave the protocol out."
            )
        return run.stem
    if name in catalog.broken or name in catalog.unfinished:
        catalog.run(name)
    there = ", ".join(sorted(stems)) or "none"
    raise InputError(
        f"The store '{catalog.path}' has no runs '{name}' under the protocol {protocol.name} (there are: {there})."
        f"{did_you_mean(name, [*stems, *catalog.runs])}"
    )
