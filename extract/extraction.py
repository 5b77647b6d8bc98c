"""Extraction: the scores of a model on prompts, for every prompt, into a store.

Prompts are cut into shards, in their order; a shard's size depends on the wiring and the prompts, never on batch size
or processes. A shard is scored in batches of prompts of similar length and then written, one file a table: it is done
when its files are there. So an interrupted run loses one shard at most, and the same call goes on.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from ..data import (
    LEVELS,
    Prompt,
    Run,
    RunWriter,
    check_run,
    check_task,
    encode_pairs,
    join_run,
    make_task,
    prompt_table,
    prompts_hash,
    read_pairs,
    write_run,
)
from ..graphs import InputError, Inputs, Shape, Wiring, one_of
from .attribution import INTEGRATION_RULE, Attributor, Batch, Means, Scores
from .exact import Exact
from .metrics import METRICS
from .models import DTYPES, Model, find_device, load_model
from .rows import score_tables
from .taps import Tape
from .workers import Workers, all_workers, local_rank

METHODS = ("eap-ig", "eap", "exact")
ABLATIONS = ("corrupt", "zero", "mean")
_TASK_PROMPTS = 100
_PROMPTS_AT_A_TIME = 16
_UNITS_AT_A_TIME = 64
_SHARD_PROMPTS = 32
_SHARD_SCORES = 1 << 24
_TRY = (
    "try --dtype bfloat16, a smaller --batch-size, shorter prompts, --merge-qkv, or a device with more memory"
)
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
_BYTES = {"edge": 4.0, "head": 8.0, "attention": 8.0}
"""About what a score takes on disk; attention has a weight with it."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is scored, and how."""

    levels: tuple[str, ...] = ("edge",)
    method: str = "eap-ig"
    steps: int = 5
    metric: str = "logit_diff"
    ablation: str = "corrupt"
    merged: bool = False
    """One input a head instead of q, k and v."""
    batch_size: int | None = None
    """Prompts at a time; units at a time for `exact`."""

    def check(self) -> None:
        """Refuse what makes no sense, before anything is loaded."""
        for level in self.levels:
            one_of("level", level, LEVELS)
        one_of("method", self.method, METHODS)
        one_of("metric", self.metric, METRICS)
        one_of("ablation", self.ablation, ABLATIONS)
        if not self.levels:
            raise InputError(f"There is no level to score: choose from {', '.join(LEVELS)}.")
        if self.steps < 1:
            raise InputError(f"eap-ig needs at least one step, not {self.steps}.")
        if self.batch_size is not None and self.batch_size < 1:
            raise InputError(f"A batch needs at least one prompt, not {self.batch_size}.")
        if self.ablation == "mean" and "attention" in self.levels:
            raise InputError(
                "The ablation 'mean' is not defined at the level 'attention', where each prompt has edges of its own: "
                "choose corrupt or zero."
            )
        if self.metric == "kl" and self.method == "eap":
            raise InputError(
                "The metric 'kl' is smallest at the clean run, so its gradient there is zero, and so is every score by "
                "'eap': choose --method eap-ig or exact."
            )


@dataclass(frozen=True)
class Outcome:
    """What an extraction did."""

    run: str
    fresh: int
    """Prompts that were scored by this call."""
    prompts: int
    undefined: tuple[int, ...]
    """Prompts whose metric is the same clean and corrupted: no effect to explain."""


class Listener(Protocol):
    """Is told how an extraction goes."""

    def begin(self, plan: str, prompts: int, done: int) -> None:
        """The long part begins."""

    def advance(self, prompts: int) -> None:
        """So many more prompts are done."""

    def note(self, message: str) -> None:
        """Something happened that the user should know."""


class _Deaf:
    """Does not listen."""

    def begin(self, plan: str, prompts: int, done: int) -> None: ...

    def advance(self, prompts: int) -> None: ...

    def note(self, message: str) -> None: ...


_DEFAULT, _DEAF = Settings(), _Deaf()


def extract(
    *,
    model: str,
    store: Path | str,
    prompts: Path | str | None = None,
    task: str | None = None,
    run: str | None = None,
    settings: Settings = _DEFAULT,
    limit: int | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    listener: Listener = _DEAF,
) -> Outcome:
    """Score a model on a file of prompts or a task, into a store; go on with it if it was interrupted."""
    settings.check()
    one_of("dtype", dtype, DTYPES)
    if (prompts is None) == (task is None):
        raise InputError("Give either --task NAME or --prompts FILE: what the model is scored on.")
    if limit is not None and limit < 1:
        raise InputError(f"--limit {limit} leaves no prompts.")
    if task is not None:
        check_task(task)
    name = task or Path(str(prompts)).stem
    run = run_name(model, name) if run is None else run
    check_run(store, run)
    pairs = None if prompts is None else read_pairs(prompts, limit)
    where = find_device(device, local_rank())
    try:
        with all_workers(where) as workers:
            loaded = load_model(model, device=where, dtype=dtype)
            if pairs is not None:
                given = encode_pairs(pairs, loaded.vocabulary)
            else:
                given = make_task(name, loaded.vocabulary, limit or _TASK_PROMPTS, seed)
            record = _record(loaded, given, run, name, seed if task else None, settings)
            return _extract(loaded, given, store, record, settings, workers, listener)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, ExtractionError) or not _out_of_memory(error):
            raise
        raise ExtractionError(f"There is not enough memory on {where} for the model: {_TRY}.") from error


def run_name(model: str, task: str) -> str:
    """What a run is called unless it is told: model and task.

    >>> run_name("allenai/OLMo-7B-hf", "ioi")
    'OLMo-7B-hf-ioi'
    """
    name = f"{Path(model).resolve().name if Path(model).is_dir() else model.split('/')[-1]}-{task}"
    return "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._+@-") else "-" for letter in name
    )


def _extract(
    model: Model,
    prompts: Sequence[Prompt],
    store: Path | str,
    record: Run,
    settings: Settings,
    workers: Workers,
    listener: Listener,
) -> Outcome:
    wiring = Wiring(record.shape)
    shards = _shards(prompts, wiring, settings.levels)
    with ExitStack() as stack:
        try:
            writer = (
                join_run(store, record) if workers.rank else stack.enter_context(write_run(store, record))
            )
        except Exception:
            workers.agree(False)
            raise
        if not workers.agree(True):
            raise InputError("The first process refused the call, and says why.")
        if workers.rank == 0:
            writer.write_wiring(wiring)
        fresh = _score_shards(model, prompts, shards, writer, wiring, settings, workers, listener)
        workers.wait()
        undefined = tuple(_undefined(writer))
        return Outcome(record.run, fresh, len(prompts), undefined)


def _score_shards(
    model: Model,
    prompts: Sequence[Prompt],
    shards: Sequence[range],
    writer: RunWriter,
    wiring: Wiring,
    settings: Settings,
    workers: Workers,
    listener: Listener,
) -> int:
    """Score the shards of this process that are not there yet; how many prompts all processes did."""
    tables = [*(f"{level}_scores" for level in settings.levels), "prompts"]
    missing = [i for i in range(len(shards)) if not all(writer.has(table, i) for table in tables)]
    left = sum(len(shards[i]) for i in missing)
    listener.begin(_plan(model, prompts, wiring, settings, workers), len(prompts), len(prompts) - left)
    workers.wait()  # so that all processes see the same shards as missing
    means = None
    if settings.ablation == "mean" and missing:
        means = _means(model, prompts, shards, settings, workers)
    scorer = _Scorer(model, wiring, settings, means, workers, listener)
    for i in filter(workers.does, missing):
        shard = shards[i]
        scores = scorer([prompts[p] for p in shard])
        _check_finite(shard, scores, model)
        for table, rows in score_tables(wiring, shard, scores).items():
            writer.write(table, rows, i)
        metrics = [s.metric_clean[0] for s in scores], [s.metric_corrupted[0] for s in scores]
        writer.write("prompts", prompt_table([prompts[p] for p in shard], shard.start, *metrics), i)
    return left


class _Scorer:
    """Scores prompts in batches, which become smaller where memory is short."""

    def __init__(
        self,
        model: Model,
        wiring: Wiring,
        settings: Settings,
        means: Means | None,
        workers: Workers,
        listener: Listener,
    ) -> None:
        self._model, self._settings, self._workers, self._listener = model, settings, workers, listener
        common: dict[str, Any] = {
            "levels": settings.levels,
            "ablation": settings.ablation,
            "means": means,
        }
        self._one_by_one = settings.method == "exact"
        self._size = settings.batch_size or (_UNITS_AT_A_TIME if self._one_by_one else _PROMPTS_AT_A_TIME)
        self._score: Callable[[Batch], Scores]
        if self._one_by_one:
            exact = Exact(model.taps, wiring, **common)
            self._score = lambda batch: exact(batch, self._size)
        else:
            steps = settings.steps if settings.method == "eap-ig" else None
            self._score = Attributor(model.taps, wiring, steps=steps, **common)

    def __call__(self, prompts: Sequence[Prompt]) -> list[Scores]:
        """The scores of each prompt."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i].clean_ids))  # little padding
        found: dict[int, Scores] = {}
        while len(found) < len(prompts):
            some = order[len(found) : len(found) + (1 if self._one_by_one else self._size)]
            scores = self._tried([prompts[i] for i in some])
            if scores is None:
                self._shrink(len(some), max(len(prompts[i].clean_ids) for i in some))
                continue
            found |= dict(zip(some, scores.by_prompt(), strict=True))
            self._listener.advance(len(some) * self._workers.size)  # the others are taken to be as fast
        return [found[i] for i in range(len(prompts))]

    def _tried(self, prompts: Sequence[Prompt]) -> Scores | None:
        """The scores of a batch, or None where it takes more memory than there is."""
        try:
            return self._score(Batch(prompts, self._model.parts, self._settings.metric))
        except (RuntimeError, MemoryError) as error:
            if _out_of_memory(error):
                return None
            raise

    def _shrink(self, prompts: int, tokens: int) -> None:
        what, size = ("unit", self._size) if self._one_by_one else ("prompt", prompts)
        if size == 1:
            raise ExtractionError(
                f"There is not enough memory on {self._model.device} for one {what} of {tokens} tokens: {_TRY}."
            )
        self._size = size // 2
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()
        some = f"{self._size} {what}{'s' if self._size > 1 else ''}"
        self._listener.note(f"Out of memory: going on with {some} at a time (--batch-size {self._size}).")


class ExtractionError(RuntimeError):
    """An extraction failed for a reason that the user can do something about; the message says what."""


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return any(words in text for words in _NO_MEMORY)


def _check_finite(shard: range, scores: Sequence[Scores], model: Model) -> None:
    """Refuse numbers that are none, which half precision can come to."""
    bad = [prompt for prompt, own in zip(shard, scores, strict=True) if not own.finite()]
    if bad:
        raise ExtractionError(
            f"The scores of {len(bad)} prompts ({', '.join(map(str, bad[:10]))}) are not finite in "
            f"{model.dtype_name}: try --dtype bfloat16 or float32."
        )


@torch.no_grad()
def _means(
    model: Model, prompts: Sequence[Prompt], shards: Sequence[range], settings: Settings, workers: Workers
) -> Means:
    """What nodes write on average over all clean prompts, at each position that any has.

    Sums are taken shard by shard and then added in the order of the shards, whoever computed them.
    """
    parts = model.parts
    longest = max(len(prompt.clean_ids) for prompt in prompts)
    layers, d_model, d_z = parts.shape.layers, parts.d_model, parts.shape.heads * parts.d_head
    widths = [d_model, *[d_z] * layers, *[d_model] * layers]
    total = torch.zeros(longest, sum(widths), device=model.device)
    count = torch.zeros(longest, 1, device=model.device)
    for i, shard in enumerate(shards):
        part = torch.zeros_like(total)
        for first in range(shard.start, shard.stop, _PROMPTS_AT_A_TIME):
            some = prompts[first : min(first + _PROMPTS_AT_A_TIME, shard.stop)]
            batch = Batch(some, parts, settings.metric)
            real = (
                torch.arange(batch.longest, device=model.device) <= batch.last()[:, None]
            )  # [prompt, position]
            count[: batch.longest, 0] += real.sum(0)
            if workers.does(i):
                tape = model.taps.run(batch.clean, Tape())
                written = torch.cat([tape.input, *tape.z, *tape.mlp], dim=-1).float()
                part[: batch.longest] += (written * real[..., None]).sum(0)
        total += workers.share(part, i)
    found_input, *others = (total / count).split(widths, dim=-1)
    return Means(found_input, others[:layers], others[layers:])


def _record(
    model: Model, prompts: Sequence[Prompt], run: str, task: str, seed: int | None, settings: Settings
) -> Run:
    shape = replace(model.shape, inputs=Inputs.MERGED) if settings.merged else model.shape
    integrated = settings.method == "eap-ig"
    return Run(
        run=run,
        model=model.name,
        revision=model.revision,
        base_model=model.config.get("base_model"),
        config=model.config,
        shape=shape,
        task=task,
        seed=seed,
        prompts=len(prompts),
        prompts_hash=prompts_hash(prompts),
        levels=tuple(level for level in LEVELS if level in settings.levels),
        method=settings.method,
        steps=settings.steps if integrated else None,
        integration_rule=INTEGRATION_RULE if integrated else None,
        metric=settings.metric,
        ablation=settings.ablation,
        dtype=model.dtype_name,
        device=model.device.type,
        versions={name: version(name) for name in ("torch", "transformers")},
    )


def _units(level: str, shape: Shape, tokens: int) -> int:
    heads = shape.layers * shape.heads
    return {"edge": shape.n_edges, "head": heads, "attention": heads * tokens * (tokens + 1) // 2}[level]


def _shards(prompts: Sequence[Prompt], wiring: Wiring, levels: Sequence[str]) -> list[range]:
    longest = max(len(prompt.clean_ids) for prompt in prompts)
    scores = max(_units(level, wiring.shape, longest) for level in levels)
    size = max(1, min(_SHARD_PROMPTS, _SHARD_SCORES // scores))
    return [range(first, min(first + size, len(prompts))) for first in range(0, len(prompts), size)]


def _plan(
    model: Model, prompts: Sequence[Prompt], wiring: Wiring, settings: Settings, workers: Workers
) -> str:
    """All that is about to happen, in a line."""
    lengths = [len(prompt.clean_ids) for prompt in prompts]
    size = sum(
        _BYTES[level] * _units(level, wiring.shape, length) for level in settings.levels for length in lengths
    )
    tokens = f"{min(lengths)} to {max(lengths)}" if min(lengths) < max(lengths) else str(max(lengths))
    method = f"eap-ig in {settings.steps} steps" if settings.method == "eap-ig" else settings.method
    processes = f" by {workers.size} processes" if workers.size > 1 else ""
    return (
        f"{model.name} ({model.model_type}): {model.shape}, {wiring.n_edges:,} edges; on {model.device}{processes}, "
        f"{model.dtype_name}; {len(prompts):,} prompts of {tokens} tokens; "
        f"{', '.join(settings.levels)} by {method}; about {_megabytes(size)} on disk."
    )


def _megabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{max(size / 1e6, 0.1):.1f} MB"


def _undefined(writer: RunWriter) -> Iterator[int]:
    rows = writer.read("prompts", ["prompt_id", "metric_clean", "metric_corrupted"])
    same = np.asarray(rows["metric_clean"]) == np.asarray(rows["metric_corrupted"])
    yield from np.asarray(rows["prompt_id"])[same].tolist()
