"""How well a model does a task, over the prompts of a run, and when circuits of it explain nothing.

accuracy   the share of the prompts on which it is right: it gives the correct answers together more than the wrong
ones or, where no wrong ones are named, the likeliest of all tokens is a correct answer
top1       the share of the prompts on which the likeliest of all tokens is a correct answer
effect     the mean of metric(clean) - metric(corrupted): what the corrupted prompts take from the behaviour. The
metric `kl` is 0 clean and grows, so its effect is metric(corrupted) - metric(clean)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from math import sqrt
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

GROWING = ("kl",)
"""Metrics that grow as the behaviour is lost."""
SIGNED = ("logit_diff", "prob_diff")
"""Metrics that are above 0 where a model is right."""


@dataclass(frozen=True, kw_only=True)
class Performance:
    """How well a model does a task; what is not known, as with an imported circuit, is None."""

    prompts: int
    accuracy: float | None = None
    top1: float | None = None
    metric_clean: float | None = None
    metric_corrupted: float | None = None
    effect: float | None = None
    effect_stderr: float | None = None
    """Over prompts; None for a single one."""

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Performance":
        """That of a row of the view `run_summary`."""
        return cls(**{field.name: row[field.name] for field in fields(cls)})

    def doubts(self, ablations: Iterable[str | None] = ("corrupt",)) -> list[str]:
        """Why circuits explain nothing, if so. The effect matters to those that were ablated with corrupted prompts.

        >>> Performance(prompts=5, accuracy=0.2, effect=-0.58, effect_stderr=0.4).doubts()
        ['its accuracy is 0.2', 'its effect is negative (-0.58 ± 0.4)']
        """
        found = []
        if self.accuracy is not None and self.accuracy < 0.5:
            found.append(f"its accuracy is {self.accuracy:.3g}")
        if self.effect is not None and "corrupt" in ablations:
            if self.effect < 0:
                found.append(f"its effect is negative ({self._effect})")
            elif self.effect <= 2 * (self.effect_stderr or 0.0):
                found.append(f"its effect ({self._effect}) is within two standard errors of zero")
        return found

    def said(self, metric: str | None) -> str | None:
        """All of it in words; None where nothing is known.

        >>> Performance(prompts=1, accuracy=1, top1=0, metric_clean=0, metric_corrupted=1.8, effect=1.8).said("kl")
        'accuracy 1, top-1 0; kl 0 clean, 1.8 corrupted, effect 1.8'
        """
        parts = []
        if self.accuracy is not None:
            top1 = "" if self.top1 is None else f", top-1 {self.top1:.3g}"
            parts.append(f"accuracy {self.accuracy:.3g}{top1}")
        if self.effect is not None:
            clean, corrupted = (f"{value:.3g}" for value in (self.metric_clean, self.metric_corrupted))
            parts.append(f"{metric} {clean} clean, {corrupted} corrupted, effect {self._effect}")
        return "; ".join(parts) or None

    @property
    def _effect(self) -> str:
        stderr = "" if self.effect_stderr is None else f" ± {self.effect_stderr:.2g}"
        return f"{self.effect:.3g}{stderr}"


def doubted(doubts: Sequence[str]) -> str:
    """What is said of a model whose circuits explain nothing, for these reasons."""
    return f"does not do this task: {', and '.join(doubts)}; its circuits say nothing about it"


def performance_of(prompts: pa.Table, metric: str | None) -> Performance:
    """That of rows of the table `prompts`; those of an older schema lack `is_right` and `answer_rank`."""
    clean, corrupted = (_numbers(prompts, name) for name in ("metric_clean", "metric_corrupted"))
    right, rank = (_numbers(prompts, name) for name in ("is_right", "answer_rank"))
    if metric in SIGNED:
        right = np.where(np.isnan(right), clean > 0, right)
    effect = corrupted - clean if metric in GROWING else clean - corrupted
    known = effect[~np.isnan(effect)]
    return Performance(
        prompts=len(prompts),
        accuracy=_mean(right),
        top1=_mean(np.where(np.isnan(rank), np.nan, rank == 1)),
        metric_clean=_mean(clean),
        metric_corrupted=_mean(corrupted),
        effect=_mean(effect),
        effect_stderr=float(known.std(ddof=1) / sqrt(len(known))) if len(known) > 1 else None,
    )


def _numbers(table: pa.Table, name: str) -> NDArray[np.float64]:
    """A column, null as NaN."""
    values = table[name].to_pylist() if name in table.column_names else [None] * len(table)
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _mean(values: NDArray[np.float64]) -> float | None:
    """Of those that are known."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
