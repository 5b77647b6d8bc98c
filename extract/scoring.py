"""Scoring: the shards of a job that are not there yet, in batches of prompts of similar length."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..data import prompt_table
from ..errors import ExtractionError
from .attribution import Attributor, Scores
from .exact import Exact
from .job import Job, at_a_time, bytes_on_disk
from .memory import Room
from .rows import score_tables
from .settings import Settings


def score(job: Job, settings: Settings) -> int:
    """Score the shards of this process that are not there yet; how many prompts all processes did."""
    tables = [*(f"{level}_scores" for level in settings.levels), "prompts"]
    missing = [i for i in range(len(job.shards)) if not all(job.writer.has(table, i) for table in tables)]
    left = sum(len(job.shards[i]) for i in missing)
    job.listener.begin(_plan(job, settings), "prompts", len(job.prompts), len(job.prompts) - left)
    job.workers.wait()  # so that all processes see the same shards as missing
    if not missing:
        return 0
    scorer = _Scorer(job, settings)
    for i in filter(job.workers.does, missing):
        shard = job.shards[i]
        scores = scorer(shard)
        _check_finite(job, shard, scores)
        for table, rows in score_tables(job.wiring, shard, scores).items():
            job.writer.write(table, rows, i)
        metrics = [s.metric_clean[0] for s in scores], [s.metric_corrupted[0] for s in scores]
        rows = prompt_table(
            [job.prompts[p] for p in shard],
            shard.start,
            *metrics,
            job.model.vocabulary.name,
            is_right=[None if np.isnan(s.right[0]) else bool(s.right[0]) for s in scores],
            answer_rank=[None if np.isnan(s.answer_rank[0]) else int(s.answer_rank[0]) for s in scores],
        )
        job.writer.write("prompts", rows, i)
    return left


class _Scorer:
    """Scores prompts by one method."""

    def __init__(self, job: Job, settings: Settings) -> None:
        self._job = job
        common: dict[str, Any] = {
            "levels": settings.levels,
            "ablation": settings.ablation,
            "means": job.means if settings.ablation == "mean" else None,
        }
        taps, wiring = job.model.taps, job.wiring
        self._exact = Exact(taps, wiring, **common) if settings.method == "exact" else None
        steps = settings.steps if settings.method == "eap-ig" else None
        self._attributor = Attributor(taps, wiring, steps=steps, **common)
        self._room = Room(at_a_time(settings), job.model.device, job.listener)

    def __call__(self, prompts: Sequence[int]) -> list[Scores]:
        """The scores of each prompt."""
        found: dict[int, Scores] = {}
        for some, scores in self._batches(self._job.by_length(prompts)):
            found |= dict(zip(some, scores.by_prompt(), strict=True))
            self._job.listener.advance(
                len(some) * self._job.workers.size
            )  # the others are taken to be as fast
        return [found[p] for p in prompts]

    def _batches(self, prompts: Sequence[int]) -> Any:
        job = self._job
        if (exact := self._exact) is None:
            return self._room.over(
                prompts, lambda some: self._attributor(job.batch(some)), "prompt", job.tokens
            )
        return (([p], self._scored_exactly(exact, p)) for p in prompts)

    def _scored_exactly(self, exact: Exact, prompt: int) -> Scores:
        batch, room = self._job.batch([prompt]), self._room
        while True:
            scores = room.tried(partial(exact, batch, room.size), room.size, "unit", lambda: batch.longest)
            if scores is not None:
                return scores


def _check_finite(job: Job, shard: range, scores: Sequence[Scores]) -> None:
    """Refuse numbers that are none, which half precision can come to."""
    bad = [prompt for prompt, own in zip(shard, scores, strict=True) if not own.finite()]
    if bad:
        raise ExtractionError(
            f"The scores of {len(bad)} prompts ({', '.join(map(str, bad[:10]))}) are not finite in "
            f"{job.model.dtype_name}: try --dtype bfloat16 or float32."
        )


def _plan(job: Job, settings: Settings) -> str:
    """All that is about to happen, in two lines."""
    model, workers = job.model, job.workers
    lengths = [len(prompt.clean_ids) for prompt in job.prompts]
    size = bytes_on_disk(settings.levels, job.wiring.shape, lengths)
    tokens = f"{min(lengths)} to {max(lengths)}" if min(lengths) < max(lengths) else str(max(lengths))
    method = f"eap-ig in {settings.steps} steps" if settings.method == "eap-ig" else settings.method
    processes = f" by {workers.size} processes" if workers.size > 1 else ""
    return (
        f"{model.name} ({model.model_type}): {model.shape}, {job.wiring.n_edges:,} edges; on "
        f"{' and '.join(map(str, model.places))}"
        f"{processes}, {model.dtype_name}.\n{len(job.prompts):,} prompts of {tokens} tokens; "
        f"{', '.join(settings.levels)} by {method}; about {_megabytes(size)} on disk."
    )


def _megabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{max(size / 1e6, 0.1):.1f} MB"
