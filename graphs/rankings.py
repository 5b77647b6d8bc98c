"""Rankings: by what the units of a circuit are ordered, the strongest first.

A ranking of the task is a name and a function: from the mean scores of the units over the prompts that rank, and the
sign that the score of a helpful unit has, to the units' strengths. All that orders units (curves, circuits, figures)
takes it from `RANKINGS`, so that one more is one more entry here.

A score is metric(ablated) - metric(clean): what helps has a negative one, the sign is -1. Of a divergence, which
grows without what helps, it is 1.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import one_of
from .wiring import Ids

Scores = NDArray[np.float32]


@dataclass(frozen=True)
class Ranking:
    """By what units are ordered."""

    about: str
    """What the strength of a unit is, as captions say it."""
    strength: Callable[[Scores, int], Scores]
    """Of each unit, from its score and the sign that helps."""


RANKINGS = {
    "task": Ranking("|mean score|", lambda scores, _: np.abs(scores)),
    "signed": Ranking("how much they help (mean score)", lambda scores, sign: sign * scores),
}
"""Those of the task, by name. `signed` has the most helpful first, and what works against the behaviour last."""


def strengths(scores: Scores, by: str = "task", *, sign: int = -1) -> Scores:
    """How strong each unit is in a ranking, from its score and the sign that a helpful one has."""
    return RANKINGS[one_of("ranking", by, tuple(RANKINGS))].strength(scores, sign)


def ranking(scores: Scores, by: str = "task", *, sign: int = -1) -> Ids:
    """Indices of the scores, the strongest first, ties by index.

    >>> scores = np.array([0.2, -0.5, 0.9])
    >>> ranking(scores).tolist(), ranking(scores, "signed").tolist(), ranking(scores, "signed", sign=1).tolist()
    ([2, 1, 0], [1, 0, 2], [2, 0, 1])
    """
    return np.argsort(-strengths(scores, by, sign=sign), kind="stable").astype(np.int32)
