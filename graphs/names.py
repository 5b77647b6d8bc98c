"""Edges by the names that other tools give them, as names of ours and back.

    ours, MIB, EAP-IG   auto-circuit   ACDC, its hooks                      ACDC, its drawings
    ------------------  -------------  -----------------------------------  ------------------
    input               Resid Start    blocks.0.hook_resid_pre[:]           <embed>
    a9.h3               A9.3           blocks.9.attn.hook_result[:, :, 3]   <a9.3>
    m9                  MLP 9          blocks.9.hook_mlp_out[:]             <m9>
    ->a9.h3<q>          ->A9.3.Q       ->blocks.9.hook_q_input[:, :, 3]     -><a9.3_q>
    ->a9.h3             ->A9.3                                              -><a9.3>
    ->m9                ->MLP 9        ->blocks.9.hook_mlp_in[:]            -><m9>
    ->logits            ->Resid End    ->blocks.11.hook_resid_post[:]       -><resid_post>

The first three rows write to the residual stream, the others read from it; a head has one input where q, k and v are
not told apart. ACDC also has edges *inside* a component, such as ``hook_q_input`` to ``hook_q`` to ``hook_result``:
every head has them, and they are no edges of a wiring. A head is known here by its layer and number, an edge by its
two ends; whether a model has it is for `Wiring` to say.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from ..errors import InputError, did_you_mean


@dataclass(frozen=True)
class Convention:
    """How a tool writes the two ends of an edge: pairs of our template and its own, today's spelling first."""

    outputs: tuple[tuple[str, str], ...]
    inputs: tuple[tuple[str, str], ...]
    inside: tuple[str, ...] = ()
    """Nodes between the inputs of a component and its output."""


_OUTPUTS = ("input", "a{layer}.h{head}", "m{layer}")
_INPUTS = ("a{layer}.h{head}<{slot}>", "a{layer}.h{head}", "a{layer}.kv{kv}<{slot}>", "m{layer}", "logits")

CONVENTIONS: Mapping[str, Convention] = {
    "Wirescope": Convention(
        tuple(zip(_OUTPUTS, _OUTPUTS, strict=True)), tuple(zip(_INPUTS, _INPUTS, strict=True))
    ),
    "auto-circuit": Convention(
        outputs=(
            ("input", "Resid Start"),
            ("a{layer}.h{head}", "A{layer}.{head}"),
            ("m{layer}", "MLP {layer}"),
        ),
        inputs=(
            ("a{layer}.h{head}<{slot}>", "A{layer}.{head}.{SLOT}"),
            ("a{layer}.h{head}", "A{layer}.{head}"),
            ("m{layer}", "MLP {layer}"),
            ("logits", "Resid End"),
        ),
    ),
    "ACDC": Convention(
        outputs=(
            ("input", "blocks.0.hook_resid_pre[:]"),
            ("a{layer}.h{head}", "blocks.{layer}.attn.hook_result[:, :, {head}]"),
            ("m{layer}", "blocks.{layer}.hook_mlp_out[:]"),
        ),
        inputs=(
            ("a{layer}.h{head}<{slot}>", "blocks.{layer}.hook_{slot}_input[:, :, {head}]"),
            ("m{layer}", "blocks.{layer}.hook_mlp_in[:]"),
            ("m{layer}", "blocks.{layer}.hook_resid_mid[:]"),  # in older versions
            ("logits", "blocks.{last}.hook_resid_post[:]"),
        ),
        inside=("blocks.{layer}.attn.hook_{slot}[:, :, {head}]",),
    ),
    "ACDC drawing": Convention(
        outputs=(("input", "<embed>"), ("a{layer}.h{head}", "<a{layer}.{head}>"), ("m{layer}", "<m{layer}>")),
        inputs=(
            ("a{layer}.h{head}<{slot}>", "<a{layer}.{head}_{slot}>"),
            ("a{layer}.h{head}", "<a{layer}.{head}>"),
            ("m{layer}", "<m{layer}>"),
            ("logits", "<resid_post>"),
        ),
    ),
}
"""By name; where none fits better, an edge is taken to be in ours, and `Wiring` says what is wrong with it."""

_PARTS = {"slot": "[qkv]", "SLOT": "[QKV]"}


@dataclass(frozen=True)
class Renamed:
    """Edges in our names, without those inside a component, and what the names say of the model."""

    names: list[str]
    at: list[int]
    """Where each was among the edges that were given."""
    closed: set[str]
    """Inputs, by our name, whose edge into their own component is among the absent ones: nothing arrives."""
    layers: int
    """The least number that the names need; all, where they say which layer is the last."""
    heads: int
    """The least number that the names need."""
    says_layers: bool
    convention: str
    """Whose names they are, one of `CONVENTIONS`."""


def renamed(
    edges: Sequence[tuple[str, str]], absent: Iterable[int] = (), *, among: Iterable[str] = CONVENTIONS
) -> Renamed:
    """Edges, given by their two ends, in our names; the convention is the one that fits most sources.

    >>> renamed([("Resid Start", "A0.1.Q"), ("A0.1", "Resid End")]).names
    ['input->a0.h1<q>', 'a0.h1->logits']

    `absent` are the numbers of edges that are said not to be there.
    """
    sources = dict.fromkeys(source for source, _ in edges)
    every = list(sources | dict.fromkeys(destination for _, destination in edges))
    name = max(
        among, key=lambda name: sum(_ours(CONVENTIONS[name].outputs, one) is not None for one in sources)
    )
    convention = CONVENTIONS[name]
    outputs = {end: _ours(convention.outputs, end) for end in every}
    inputs = {end: _ours(convention.inputs, end) for end in every}
    if name == "Wirescope":
        outputs = inputs = {end: end for end in every}
    else:
        _check_known(convention, every, outputs, inputs)
    names, at, closed, gone = [], [], set(), set(absent)
    for number, (source, destination) in enumerate(edges):
        start, end = outputs[source], inputs[destination]
        if start is not None and end is not None:
            names.append(f"{start}->{end}")
            at.append(number)
        elif number in gone and (cut := inputs[source]) is not None:
            closed.add(cut)
    numbers = [_numbers(convention, end) for end in every]
    return Renamed(
        names,
        at,
        closed,
        layers=1 + max((one[key] for one in numbers for key in ("layer", "last") if key in one), default=0),
        heads=1 + max((one["head"] for one in numbers if "head" in one), default=0),
        says_layers=any("last" in one for one in numbers),
        convention=name,
    )


def spelled(names: Iterable[str], convention: str, layers: int) -> list[str]:
    """Our edge names as a tool writes them; a model has so many layers.

    >>> spelled(["a9.h9->a11.h10<q>", "m0->logits"], "auto-circuit", layers=12)
    ['A9.9->A11.10.Q', 'MLP 0->Resid End']
    """
    theirs = CONVENTIONS[convention]

    @cache
    def end(templates: tuple[tuple[str, str], ...], name: str) -> str:
        for ours, other in templates:
            match = _pattern(ours).fullmatch(name)
            if match:
                parts = match.groupdict()
                return other.format(**parts, SLOT=parts.get("slot", "").upper(), last=layers - 1)
        raise InputError(f"{convention} has no name for '{name}'.")

    pairs = (name.split("->") for name in names)
    return [
        f"{end(theirs.outputs, source)}->{end(theirs.inputs, destination)}" for source, destination in pairs
    ]


def _check_known(
    convention: Convention,
    every: Iterable[str],
    outputs: Mapping[str, str | None],
    inputs: Mapping[str, str | None],
) -> None:
    known = [name for name in every if outputs[name] or inputs[name]]
    for name in every:
        inside = any(_pattern(template).fullmatch(name) for template in convention.inside)
        if not inside and outputs[name] is None and inputs[name] is None:
            example = convention.inputs[0][1].format(layer=9, head=3, slot="q", SLOT="Q")
            raise InputError(
                f"{name!r} is not a component of a transformer; in this convention one is called {example}."
                f"{did_you_mean(name, known)}"
            )


def _ours(templates: tuple[tuple[str, str], ...], name: str) -> str | None:
    for ours, other in templates:
        match = _pattern(other).fullmatch(name)
        if match:
            parts = match.groupdict()
            return ours.format(**({"slot": parts["SLOT"].lower()} if "SLOT" in parts else {}), **parts)
    return None


def _numbers(convention: Convention, name: str) -> dict[str, int]:
    """The layer and head in a name, or the ``last`` layer that the logits are said to come after."""
    for _, other in (*convention.inputs, *convention.outputs):
        match = _pattern(other).fullmatch(name)
        if match:
            return {key: int(part) for key, part in match.groupdict().items() if part.isdecimal()}
    return {}


@cache
def _pattern(template: str) -> re.Pattern[str]:
    """What a template of a name matches."""
    escaped = re.escape(template)
    return re.compile(
        re.sub(r"\\{(\w+)\\}", lambda m: f"(?P<{m[1]}>{_PARTS.get(m[1], '[0-9]{1,6}')})", escaped)
    )
