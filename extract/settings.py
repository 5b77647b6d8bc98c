"""What is scored and measured, and how: all that a call can choose, and who is told how it goes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from .. import graphs
from ..data import LEVELS, METRICS, MOST_HALVINGS, PROTOCOLS, find_protocol
from ..errors import InputError, one_of

METHODS = ("eap-ig", "eap", "exact")
ABLATIONS = ("corrupt", "zero", "mean")
RANKINGS = ("prompt", *graphs.RANKINGS)
"""Those that can be asked for; `random` is measured beside them."""
MIB = "mib"
"""As sizes: the ten of the MIB benchmark."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is scored and measured, and how."""

    levels: tuple[str, ...] = ("edge",)
    method: str = "eap-ig"
    steps: int = 5
    metric: str = "logit_diff"
    first_token: bool = False
    """Whether answers of several tokens count by their first one."""
    ablation: str = "corrupt"
    protocol: str | None = None
    """The named set of choices that this is one of; `settings_under` makes them."""
    merged: bool = False
    """One input a head instead of q, k and v."""
    only_correct: bool = False
    """Whether to take those prompts alone that the model gets right."""
    curves: bool = True
    """Whether circuits are measured after scoring."""
    rankings: tuple[str, ...] = ("prompt", "task")
    sizes: tuple[int, ...] | str | None = None
    """Of circuits; "mib": the ten of that benchmark; None: from 1 to everything."""
    split: float | None = None
    """The share of the prompts that the task ranking is from; all curves are then of the others."""
    cross_fit: int | None = None
    """How many times the prompts are halved: in each, each half is measured by the task rankings of the other."""
    batch_size: int | None = None
    """Prompts at a time; units at a time for `exact`; circuits at a time for curves."""

    @property
    def protocol_kept(self) -> str | None:
        """The protocol, unless the ablation is another one's: that it is named by then would be wrong."""
        return (
            self.protocol if self.protocol and self.ablation in PROTOCOLS[self.protocol].ablations else None
        )

    def check(self) -> None:
        """Refuse what makes no sense, before anything is loaded."""
        for level in self.levels:
            one_of("level", level, LEVELS)
        one_of("method", self.method, METHODS)
        one_of("metric", self.metric, METRICS)
        one_of("ablation", self.ablation, ABLATIONS)
        if self.protocol is not None:
            find_protocol(self.protocol)
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
        if self.curves:
            self._check_curves()
        elif (self.sizes, self.split, self.cross_fit) != (None, None, None):
            raise InputError("--no-curves measures no circuits: leave out --sizes, --split and --cross-fit.")

    def _check_curves(self) -> None:
        for ranking in self.rankings:
            one_of("ranking", ranking, RANKINGS)
        if not self.rankings:
            raise InputError(
                f"There is no ranking to measure circuits of: choose from {', '.join(RANKINGS)}."
            )
        if "prompt" not in self.rankings and "attention" in self.levels:
            raise InputError(
                "At the level 'attention' each prompt has edges of its own, and there is no ranking of the task: "
                "choose --ranking prompt as well, or leave the level out."
            )
        if self.sizes is not None and self.sizes != MIB:
            self._check_sizes(self.sizes)
        if self.split is not None and not 0 < self.split < 1:
            raise InputError(f"--split {self.split} is not a share of the prompts: it lies between 0 and 1.")
        if self.cross_fit is not None and not 0 < self.cross_fit <= MOST_HALVINGS:
            raise InputError(
                f"--cross-fit {self.cross_fit} is not how many times the prompts are halved: choose from 1 to "
                f"{MOST_HALVINGS:,}."
            )
        if self.split is not None and self.cross_fit is not None:
            raise InputError(
                f"--split {self.split} and --cross-fit {self.cross_fit} both say which prompts rank for which: choose "
                "one of them."
            )

    def _check_sizes(self, sizes: tuple[int, ...] | str) -> None:
        if isinstance(sizes, str):
            raise InputError(f"--sizes {sizes} are no sizes: write them as 1,10,100, or {MIB}.")
        if not len(sizes):
            raise InputError("--sizes names no size: write them as 1,10,100.")
        for size in sizes:
            if int(size) != size:
                raise InputError(f"A circuit has a whole number of units, not {size} (--sizes).")
            if size < 1:
                raise InputError(f"A circuit has at least one unit, not {size} (--sizes).")


def settings_under(protocol: str | None, **given: Any) -> dict[str, Settings]:
    """The settings of the runs that a protocol makes, by what their names end in; what is given wins.

    Without a protocol, or where it comes to one ablation, it is one run. Under the ablation `mean` the level
    `attention` is left out, and without another level there is no such run.

    >>> {ending: one.ablation for ending, one in settings_under("published").items()}
    {'-zero': 'zero', '-mean': 'mean'}
    >>> list(settings_under("published", ablation="zero")), list(settings_under("contrast"))
    ([''], [''])
    """
    known = {name: value for name, value in given.items() if value is not None}
    if protocol is None:
        return {"": Settings(**known)}
    found = find_protocol(protocol)
    first = Settings(
        **{"ablation": found.ablations[0], "rankings": found.rankings, "protocol": protocol} | known
    )
    if "ablation" in known or len(found.ablations) == 1:
        return {"": first}
    made = {}
    for ablation in found.ablations:
        levels = tuple(level for level in first.levels if ablation != "mean" or level != "attention")
        if levels or not first.levels:
            made[f"-{ablation}"] = replace(first, ablation=ablation, levels=levels)
    return made


def left_out(settings: Mapping[str, Settings]) -> list[str]:
    """What is said of the levels that some of the runs of a protocol do not have."""
    first = next(iter(settings.values()))
    if "" in settings or "attention" not in first.levels:
        return []
    if len(settings) == 1:
        return [
            "wirescope: the ablation mean is not defined at the level attention: under the protocol "
            f"{first.protocol} there is the run with {first.ablation} alone."
        ]
    return [
        f"wirescope: the ablation {own.ablation} is not defined at the level attention: the run with it has the levels "
        f"{', '.join(own.levels)}."
        for own in settings.values()
        if "attention" not in own.levels
    ]


class Listener(Protocol):
    """Is told how an extraction goes."""

    def begin(self, plan: str, what: str, total: int, done: int) -> None:
        """A long part begins: so many prompts, or circuits, of which some are done already."""

    def advance(self, count: int) -> None:
        """So many more are done."""

    def note(self, message: str) -> None:
        """Something happened that the user should know."""

    def status(self, text: str) -> None:
        """How it stands, in place of what was said of that before."""


class Deaf:
    """Does not listen."""

    def begin(self, plan: str, what: str, total: int, done: int) -> None:
        """Hear nothing."""

    def advance(self, count: int) -> None:
        """Hear nothing."""

    def note(self, message: str) -> None:
        """Hear nothing."""

    def status(self, text: str) -> None:
        """Hear nothing."""
