"""A run: what was asked for, what came of it, and its ``run.json``."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from ..errors import StoreError
from ..graphs import RANKINGS, Inputs, Shape, Wiring
from .schema import SCHEMA_VERSION

SIGN = "metric(ablated) - metric(clean)"
MEMBERSHIP = "1 in the circuit, 0 outside"
"""The sign of scores that are none: a published circuit may be a set of edges."""
LEVELS = ("edge", "head", "attention")
METRICS = ("logit_diff", "prob_diff", "kl")
MOST_HALVINGS = 1_000
"""Of the prompts, for cross-fitting: many more than any curve is the better for."""


@dataclass(frozen=True)
class Part:
    """A Parquet file of a run, relative to the store."""

    file: str
    rows: int
    bytes: int
    crc32: str | None = None
    """Of the whole file, in hexadecimal; None before version 3."""

    def __post_init__(self) -> None:
        _check_types(self)


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Curves that were measured in one go: of which sizes there are effects."""

    ablation: str
    split: float | None
    """The share of the prompts that the task ranking is from; the curves are of the others. None: all, of all."""
    sizes: Mapping[str, Mapping[str, tuple[int, ...]]]
    """By level and ranking."""
    cross_fit: int | None = None
    """How many times the prompts are halved, and each half measured by the task rankings of the other. None: never."""

    @classmethod
    def from_plain(cls, record: Mapping[str, Any]) -> "Curves":
        """From what ``run.json`` has; whatever it is not is a TypeError or ValueError."""
        sizes = {
            level: {ranking: tuple(map(int, some)) for ranking, some in dict(rankings).items()}
            for level, rankings in dict(record["sizes"]).items()
        }
        split = None if record["split"] is None else float(record["split"])
        if split is not None and not 0 < split < 1:
            raise ValueError(f"split is {split}")
        halvings = record.get("cross_fit")
        if halvings is not None and not (type(halvings) is int and 0 < halvings <= MOST_HALVINGS):
            raise ValueError(f"cross_fit is {halvings!r}")
        if halvings is not None and split is not None:
            raise ValueError(f"split is {split} and cross_fit {halvings}")
        return cls(ablation=str(record["ablation"]), split=split, sizes=sizes, cross_fit=halvings)

    @property
    def tag(self) -> str:
        """What its parts are called after, so that those of other curves are not taken for them."""
        told = {name: value for name, value in asdict(self).items() if name != "cross_fit" or value}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]

    def prompts(self, count: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Of so many prompts, those that the task ranking is from, and those that the curves are of; ascending.

        >>> chosen, measured = Curves(ablation="corrupt", split=0.4, sizes={}).prompts(5)
        >>> chosen.tolist(), measured.tolist()
        ([2, 4], [0, 1, 3])
        """
        everyone = np.arange(count, dtype=np.int32)
        if self.split is None:
            return everyone, everyone
        shuffled = np.random.default_rng(0).permutation(everyone)
        chosen, measured = np.split(shuffled, [round(self.split * count)])
        return np.sort(chosen), np.sort(measured)

    def folds(self, count: int) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Of so many prompts, those that a task ranking is from and those that are measured by it, for each ranking.

        There is one but for cross-fitting: there the fold 2 r + h measures the half h of the prompts as they are
        halved for the r-th time, by the other half. Halvings depend on the number of prompts alone: each is of a
        shuffle that has its own number for a seed.

        >>> curves = Curves(ablation="corrupt", split=None, sizes={}, cross_fit=1)
        >>> [(rank.tolist(), measured.tolist()) for rank, measured in curves.folds(5)]
        [([0, 1, 3], [2, 4]), ([2, 4], [0, 1, 3])]
        """
        if self.cross_fit is None:
            return [self.prompts(count)]
        folds = []
        for repeat in range(self.cross_fit):
            shuffled = np.random.default_rng(repeat).permutation(np.arange(count, dtype=np.int32))
            first, second = (np.sort(half) for half in np.split(shuffled, [count // 2]))
            folds += [(second, first), (first, second)]
        return folds

    def count(self, prompts: int) -> int:
        """On how many of so many prompts they are measured."""
        return prompts - (0 if self.split is None else round(self.split * prompts))

    def __len__(self) -> int:
        """How many circuits of each prompt they have."""
        return sum(
            len(sizes) * (self.cross_fit or 1 if ranking in RANKINGS else 1)
            for rankings in self.sizes.values()
            for ranking, sizes in rankings.items()
        )

    def without(self, others: Iterable["Curves"]) -> "Curves":
        """What of them is not among others."""
        left = {
            level: {
                ranking: tuple(
                    sorted(
                        set(sizes).difference(*(o.measured(self.ablation, level, ranking) for o in others))
                    )
                )
                for ranking, sizes in rankings.items()
            }
            for level, rankings in self.sizes.items()
        }
        return replace(self, sizes=left)

    def measured(self, ablation: str, level: str, ranking: str) -> tuple[int, ...]:
        """The sizes of one curve."""
        return self.sizes.get(level, {}).get(ranking, ()) if ablation == self.ablation else ()


@dataclass(frozen=True, kw_only=True)
class Run:
    """What ``run.json`` holds: everything needed to repeat the run, and what became of it.

    What is not known (an imported circuit does not say its seed) is None.
    """

    run: str
    model: str
    revision: str | None = None
    base_model: str | None = None
    """The dense model that a gated one came from."""
    config: Mapping[str, Any] = field(default_factory=dict)
    shape: Shape
    task: str | None = None
    seed: int | None = None
    prompts: int
    prompts_hash: str | None = None
    only_correct: bool = False
    """Whether the prompts are those alone that the model gets right."""
    prompts_tried: int | None = None
    """Of how many, then."""
    levels: tuple[str, ...]
    method: str | None = None
    steps: int | None = None
    integration_rule: str | None = None
    metric: str | None = None
    first_token: bool = False
    """Whether answers of several tokens count by their first one."""
    sign: str = SIGN
    ablation: str | None = None
    """Of the scores; curves say their own."""
    protocol: str | None = None
    """The named set of choices that it is one of, if any."""
    dtype: str | None = None
    device: str | None = None
    source: str | None = None
    """The file that an imported run was read from."""
    source_hash: str | None = None
    """SHA-256 of what was read from it."""
    source_sign: str | None = None
    """What its scores were taken for, those of a `loss` or of the `metric`; None where it has none."""
    file: str | None = None
    """The file of prompts or of the circuit, as the call named it."""
    limit: int | None = None
    """How many prompts the call asked for."""
    shard_size: int | None = None
    """How many prompts a part has; None where the version that wrote it did not say."""
    versions: Mapping[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION
    started: str | None = None
    finished: str | None = None
    parts: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)
    """By table."""
    curves: tuple[Curves, ...] = ()
    """Those that are in `effects`."""

    @property
    def wiring(self) -> Wiring:
        """The wiring that its edge ids refer to."""
        return Wiring(self.shape)

    @property
    def stem(self) -> str:
        """What the runs of one call have in common: its name, under a protocol without the ablation at its end."""
        return self.run if self.protocol is None else self.run.removesuffix(f"-{self.ablation}")

    @property
    def helpful_sign(self) -> int:
        """The sign that the score of a unit has that helps: -1, for a metric falls without it; a divergence grows."""
        return 1 if self.metric == "kl" or self.sign == MEMBERSHIP else -1

    @property
    def ranked_by(self) -> NDArray[np.int32]:
        """The prompts that the task ranking of its curves is from: all, or those that a split puts aside for it."""
        return (
            self.curves[0].prompts(self.prompts)[0]
            if self.curves
            else np.arange(self.prompts, dtype=np.int32)
        )

    @property
    def split(self) -> float | None:
        """The share of its prompts that the task ranking is from; None where that is all of them."""
        return self.curves[0].split if self.curves else None

    @property
    def cross_fit(self) -> int | None:
        """How many times its prompts are halved, so that each is measured by the task rankings of others."""
        return self.curves[0].cross_fit if self.curves else None

    @property
    def held_out(self) -> NDArray[np.int32]:
        """The prompts that the task ranking is not from, because its curves are of them; none without a split."""
        if self.split is None:
            return np.empty(0, dtype=np.int32)
        return self.curves[0].prompts(self.prompts)[1]

    def differs_from(self, other: "Run") -> list[str]:
        """What the two calls differ in, whatever became of them and wherever they ran: [] for one call."""
        fate = {"schema_version", "versions", "device", "started", "finished", "parts", "curves"}
        fate |= {"file", "limit", "source_sign"}  # what was read counts, not how it was named
        if self.shard_size is None or other.shard_size is None:
            fate.add("shard_size")
        names = [f.name for f in fields(self) if f.name not in fate]
        return [name for name in names if getattr(self, name) != getattr(other, name)]

    def command(self, store: Path | str, **other: Any) -> list[str]:
        """The words of the command that made it, whatever the machine; `other` is what is to be different."""
        known = {"run": self.run, "ablation": self.ablation, "level": self.levels} | other
        if self.source is not None:
            words = ["wirescope", "import", self.file or self.source, "--model", self.model]
            words += ["--task", self.task] if self.task else []
            words += ["--layers", str(self.shape.layers), "--heads", str(self.shape.heads)]
            words += ["--parallel"] if self.shape.parallel else []
            for option, value in (
                ("method", self.method),
                ("metric", self.metric),
                ("sign", self.source_sign),
            ):
                words += [f"--{option}", value] if value else []
            return [*words, "--store", str(store), "--run", known["run"]]
        count = str(self.limit or self.prompts_tried or self.prompts)
        words = ["wirescope", "extract", "--model", self.model]
        if self.file is not None or self.seed is None:
            words += ["--prompts", self.file or f"{self.task}.jsonl", "--limit", count]
        else:
            words += ["--task", str(self.task), "--limit", count, "--seed", str(self.seed)]
        words += ["--store", str(store), "--run", known["run"]]
        words += [word for level in known["level"] for word in ("--level", level)]
        for option in ("method", "metric", "dtype"):
            words += [f"--{option}", str(getattr(self, option))]
        words += ["--steps", str(self.steps)] if self.steps else []
        words += ["--merge-qkv"] if self.shape.inputs is Inputs.MERGED else []
        words += ["--first-token"] if self.first_token else []
        words += ["--only-correct"] if self.only_correct else []
        words += ["--protocol", self.protocol] if self.protocol else []
        if self.protocol and known["ablation"] is None:  # all of the protocol's
            return words
        return [*words, "--ablation", known["ablation"] or "corrupt"]

    def to_json(self) -> str:
        """The text of ``run.json``."""
        parts = {
            table: [{key: value for key, value in asdict(part).items() if value is not None} for part in some]
            for table, some in self.parts.items()
        }
        plain = asdict(self) | {"shape": self.shape.asdict(), "parts": parts}
        return json.dumps(plain, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Run":
        """The run of a ``run.json``; a text that is none, or a newer one, is an error that says why."""
        try:
            record = json.loads(text)
            json.dumps(
                record, ensure_ascii=False
            ).encode()  # JSON can name half a character, which no text has
            newer = record["schema_version"] > SCHEMA_VERSION
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreError(f"it is not a run.json ({error!r}).") from error
        if newer:
            raise StoreError(
                f"it was written by a newer Wirescope (schema {record['schema_version']}, this one reads up to "
                f"{SCHEMA_VERSION}); update Wirescope to read it."
            )
        known = {f.name for f in fields(cls)}
        try:
            record = {key: value for key, value in record.items() if key in known}
            record["shape"] = Shape(**record["shape"])
            record["levels"] = tuple(record["levels"])
            record["parts"] = {
                table: tuple(Part(**part) for part in parts) for table, parts in record["parts"].items()
            }
            record["curves"] = tuple(map(Curves.from_plain, record.get("curves", ())))
            run = cls(**record)
            run._check()
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise StoreError(f"it is not a run.json ({error!r}).") from error
        return run

    def _check(self) -> None:
        """Refuse what no run has; whatever it is is a TypeError or ValueError."""
        _check_types(self)
        _check_types(self.shape)
        if not all(isinstance(level, str) for level in self.levels):
            raise TypeError(f"levels are {self.levels!r}")
        for what, count in (
            ("prompts", self.prompts),
            ("prompts tried", self.prompts_tried or 0),
            ("steps", self.steps or 0),
            ("prompts a part", self.shard_size or 0),
            ("edges", self.shape.n_edges),
        ):
            if not 0 <= count < 1 << 31:  # ids are int32
                raise ValueError(f"it has {count} {what}")


_types = cache(get_type_hints)


def _check_types(record: Any) -> None:
    """Refuse a record whose values are not of the types that its class names, or too large for any column."""
    for name, kind in _types(record.__class__).items():
        value, origin = getattr(record, name), get_origin(kind)
        plain = kind if origin in (None, UnionType) else origin
        if not isinstance(value, plain) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{name} is {value!r}")
        if isinstance(value, int) and not -1 << 63 <= value < 1 << 63:
            raise ValueError(f"{name} is {value!r}")


def read_run(file: Path) -> Run:
    """The run of a ``run.json`` file; whatever is wrong with it is an error that names the file."""
    try:
        return Run.from_json(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"'{file}' cannot be read: {error}.") from error
    except StoreError as error:
        raise StoreError(f"'{file}' cannot be used: {error}") from error
