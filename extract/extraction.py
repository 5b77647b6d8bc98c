"""Extraction: the scores of a model on prompts and the curves of its circuits, for every prompt, into a store.

Prompts are cut into shards, in their order. A shard is scored and then written, one file a table: it is done when its
files are there, and so are its curves. So an interrupted run loses one shard at most, and the same call goes on. The
run is finished, and readers see it, when the scores are there; curves are added to it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np

from ..data import (
    FOLDS,
    LEVELS,
    PROTOCOLS,
    Curves,
    Performance,
    Prompt,
    Run,
    RunWriter,
    check_run,
    doubted,
    find_run,
    join_run,
    performance_of,
    prompts_hash,
    schema_of,
    trailing_spaces,
    write_run,
)
from ..errors import ExtractionError, InputError, one_of
from ..graphs import Inputs, Wiring
from .asked import Asked, ask
from .attribution import INTEGRATION_RULE
from .curves import add_curves, ask_curves, measure
from .job import Job, shard_size, shards_of
from .memory import no_room, out_of_memory
from .models import DTYPES, Model, find_device, load_model
from .placement import find_devices
from .planning import with_room
from .scoring import score
from .selecting import right_prompts
from .settings import Deaf, Listener, Settings, left_out
from .workers import Workers, all_workers, local_rank

_DEFAULT, _DEAF = Settings(), Deaf()


@dataclass(frozen=True)
class Outcome:
    """What an extraction did."""

    run: str
    levels: tuple[str, ...]
    """Of its scores."""
    fresh: int
    """Prompts that were scored by this call."""
    circuits: int
    """Circuits that were measured by this call."""
    prompts: int
    performance: Performance
    """How well the model does the task."""
    undefined: tuple[int, ...]
    """Prompts whose metric is the same clean and corrupted: no effect to explain."""


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
    device_map: str | None = None,
    listener: Listener = _DEAF,
) -> Outcome:
    """Score a model on a file of prompts or a task and measure its circuits, into a store.

    Go on with it if it was interrupted; add to it if other curves are asked for. A device map, `auto` or a file,
    spreads the model over several accelerators of this machine.
    """
    (outcome,) = extract_each(
        model=model,
        store=store,
        prompts=prompts,
        task=task,
        run=run,
        settings={"": settings},
        limit=limit,
        seed=seed,
        device=device,
        dtype=dtype,
        device_map=device_map,
        listener=listener,
    )
    return outcome


def extract_each(
    *,
    model: str,
    store: Path | str,
    settings: Mapping[str, Settings],
    prompts: Path | str | None = None,
    task: str | None = None,
    run: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    device_map: str | None = None,
    listener: Listener = _DEAF,
) -> tuple[Outcome, ...]:
    """The same for several settings, as `settings_under` makes them of a protocol: a run each, one after the other.

    They are on the same prompts, and the model is loaded once. Settings go by what the name of their run ends in.
    """
    for own in settings.values():
        own.check()
    one_of("dtype", dtype, DTYPES)
    first = next(iter(settings.values()))  # it has all levels
    asked = ask(model, prompts, task, limit, seed, first)
    run = run_name(model, asked.name) if run is None else run
    for ending in settings:
        check_run(store, run + ending)
    devices = [find_device(device, local_rank())] if device_map is None else find_devices(device, device_map)
    where = devices[-1]
    try:
        with all_workers(where) as workers:
            loaded = load_model(model, device=where, dtype=dtype, device_map=device_map, devices=devices)
            tried = given = asked.encoded(loaded.vocabulary)
            if workers.rank == 0 and (spaced := trailing_spaces(tried, loaded.vocabulary)):
                listener.note(
                    f"wirescope: {spaced:,} of {len(tried):,} prompts end in a space, which the model reads as a token "
                    "of its own; answers that begin with one follow a prompt without."
                )
            if first.only_correct:
                given = right_prompts(loaded, tried, first, workers, listener)
                if workers.rank == 0:
                    listener.note(
                        f"Of {len(tried):,} prompts the model gets {len(given):,} right; they alone are taken."
                    )
            if workers.rank == 0:
                for message in left_out(settings):
                    listener.note(message)
            outcomes = []
            for ending, own in settings.items():
                record = _record(loaded, given, len(tried), run + ending, asked, own)
                if workers.rank == 0:
                    _introduce(record, own, listener)
                roomy = with_room(own, given, loaded, workers, listener)
                outcomes.append(_extract(loaded, given, store, record, roomy, workers, listener))
            return tuple(outcomes)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, ExtractionError) or not out_of_memory(error):
            raise
        raise no_room(where) from error


def run_name(model: str, task: str) -> str:
    """What a run is called unless it is told: model and task.

    >>> run_name("allenai/OLMo-7B-hf", "ioi")
    'OLMo-7B-hf-ioi'
    """
    name = f"{Path(model).resolve().name if Path(model).is_dir() else model.split('/')[-1]}-{task}"
    return "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._+@-") else "-" for letter in name
    )


def _introduce(record: Run, settings: Settings, listener: Listener) -> None:
    """Say under which protocol a run is made, or that it is not."""
    if record.protocol:
        listener.note(f"Run '{record.run}', protocol {record.protocol}, ablation {record.ablation}:")
    elif settings.protocol:
        known = ", ".join(PROTOCOLS[settings.protocol].ablations)
        listener.note(
            f"wirescope: the ablation {settings.ablation} is none of the protocol {settings.protocol} ({known}): the "
            "run is not named after it."
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
    lengths = [len(prompt.clean_ids) for prompt in prompts]
    curves = ask_curves(settings, record.shape, lengths) if settings.curves else None
    with ExitStack() as stack:
        try:
            if workers.rank == 0:
                record = _adopted(store, record, curves)
                record = replace(record, shard_size=shard_size(prompts, record.shape, record.levels))
                writer = stack.enter_context(write_run(store, record))
        except Exception:
            workers.agree(False)
            raise
        if not workers.agree(True):
            raise InputError("The first process refused the call, and says why.")
        if workers.rank:
            writer = join_run(store, record.run)
        record = writer.run  # the scores are those of the run that is there
        scoring = replace(settings, levels=record.levels, ablation=record.ablation or settings.ablation)
        wiring = Wiring(record.shape)
        if workers.rank == 0:
            writer.write_wiring(wiring)
            if curves is not None and scoring.ablation != settings.ablation:
                listener.note(
                    f"The scores of the run '{record.run}' are by the ablation {record.ablation} and stay as they "
                    f"are; its circuits are measured with {settings.ablation}. For scores by {settings.ablation}, "
                    "choose another name with --run."
                )
        shards = shards_of(prompts, shard_size(prompts, record.shape, record.levels))
        job = Job(model, prompts, shards, wiring, settings.metric, writer, workers, listener)
        fresh = score(job, scoring)
        workers.wait()
        performance = _performance(writer)
        if workers.rank == 0:
            _tell(performance, record, (scoring.ablation, settings.ablation if curves else None), listener)
        circuits = sum(
            measure(job, settings, lacking) for lacking in record.curves
        )  # where parts were broken
        workers.wait()
        if workers.rank == 0:
            writer.finish()
        if curves is not None:
            circuits += add_curves(job, settings, curves)
        undefined = tuple(_undefined(writer)) if "corrupt" in (scoring.ablation, settings.ablation) else ()
        return Outcome(record.run, record.levels, fresh, circuits, len(prompts), performance, undefined)


def _adopted(store: Path | str, record: Run, curves: Curves | None) -> Run:
    """The run of a call; if the call adds curves to one that is there, that run's.

    Its scores stay as they are: the ablation of the call is that of its curves, and its levels may be fewer.
    """
    there = find_run(store, record.run)
    if there is None or curves is None or not set(record.levels) <= set(there.levels):
        return record
    if there.curves and (was := _ranking_options(there.curves[0])) != (now := _ranking_options(curves)):
        neither = f"no {(was or now).split()[0]}"
        raise InputError(
            f"The run '{there.run}' has curves with {was or neither}, and this call has {now or neither}: their task "
            "rankings differ; choose another name with --run."
        )
    if curves.cross_fit and there.schema_version < FOLDS:
        raise InputError(
            f"The run '{there.run}' is of an older Wirescope (schema {there.schema_version}), which has no place for "
            "what --cross-fit measures: choose another name with --run."
        )
    if not (there.finished or there.curves):
        return record
    protocol = record.protocol or there.protocol
    return replace(record, levels=there.levels, ablation=there.ablation, protocol=protocol)


def _ranking_options(curves: Curves) -> str:
    """What of a call says which prompts rank for which; empty where all do for all."""
    if curves.cross_fit is not None:
        return f"--cross-fit {curves.cross_fit}"
    return "" if curves.split is None else f"--split {curves.split}"


def _record(
    model: Model, prompts: Sequence[Prompt], tried: int, run: str, asked: Asked, settings: Settings
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
        task=asked.name,
        seed=asked.seed,
        file=asked.file,
        limit=asked.count,
        prompts=len(prompts),
        prompts_hash=prompts_hash(prompts),
        only_correct=settings.only_correct,
        prompts_tried=tried if settings.only_correct else None,
        levels=tuple(level for level in LEVELS if level in settings.levels),
        method=settings.method,
        steps=settings.steps if integrated else None,
        integration_rule=INTEGRATION_RULE if integrated else None,
        metric=settings.metric,
        first_token=settings.first_token,
        ablation=settings.ablation,
        protocol=settings.protocol_kept,
        dtype=model.dtype_name,
        device=model.device.type,
        versions={name: version(name) for name in ("torch", "transformers")},
    )


def _performance(writer: RunWriter) -> Performance:
    """From the prompts that are in the store, which may be those of an older schema."""
    there = schema_of("prompts", writer.run.schema_version).names
    wanted = ("metric_clean", "metric_corrupted", "is_right", "answer_rank")
    rows = writer.read("prompts", [name for name in wanted if name in there])
    return performance_of(rows, writer.run.metric)


def _tell(performance: Performance, run: Run, ablations: Iterable[str | None], listener: Listener) -> None:
    """Say how well the model does the task, before circuits are measured that say nothing about it."""
    if said := performance.said(run.metric):
        listener.note(f"{said.replace('accuracy', 'Accuracy', 1)}.")  # the name of a metric stays as it is
    if doubts := performance.doubts(ablations):
        listener.note(
            f"wirescope: the model {doubted(doubts)}.\n"
            "  Are right and wrong answers exchanged? Do the answers follow the prompts (which end without a space)?"
            + (
                ""
                if run.only_correct
                else "\n  --only-correct takes those prompts alone that the model gets right."
            )
        )


def _undefined(writer: RunWriter) -> Iterator[int]:
    rows = writer.read("prompts", ["prompt_id", "metric_clean", "metric_corrupted"])
    same = np.asarray(rows["metric_clean"]) == np.asarray(rows["metric_corrupted"])
    yield from np.asarray(rows["prompt_id"])[same].tolist()
