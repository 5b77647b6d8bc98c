"""Which words a model knows: those that it can repeat.

A tokenizer has tokens for words that a model has hardly seen, and whose embeddings are noise. A word is *known* if the
model gives it a chance where a sentence begins for the third time:

    Then Mary was there. Then Mary was there. Then       -> " Mary"

That is no task of Wirescope's, so prompts are not chosen by whether a model gets them right. It is computed in float32,
so that which words are known does not depend on what the weights are kept in, unless that has rounded them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..data import Encode
from .parts import Parts

_AGAIN = "Then {word} was there. Then {word} was there. Then"
_CHANCE = 0.05
_WORDS_AT_A_TIME = 32


def known_words(parts: Parts, encode: Encode, words: Sequence[str]) -> list[str]:
    """Of words that are one token each, those that a model knows."""
    chances = chances_of(parts, encode, words)
    return [word for word, chance in zip(words, chances, strict=True) if chance >= _CHANCE]


@torch.no_grad()
def chances_of(parts: Parts, encode: Encode, words: Sequence[str]) -> list[float]:
    """The chance that a model gives each word where it is to be repeated."""
    device = next(parts.base.parameters()).device
    chances: list[float] = []
    for first in range(0, len(words), _WORDS_AT_A_TIME):
        some = words[first : first + _WORDS_AT_A_TIME]
        ids = torch.tensor([encode(_AGAIN.format(word=word)) for word in some], device=device)
        tokens = torch.tensor([[encode(f"Then {word}")[-1]] for word in some], device=device)
        with _in_float32(parts.base, parts.unembed):
            state = parts.base(input_ids=ids, use_cache=False).last_hidden_state[:, -1]
            logits = parts.unembed(state)
        chances += logits.softmax(-1).gather(1, tokens)[:, 0].tolist()
    return chances


@contextmanager
def _in_float32(*models: nn.Module) -> Iterator[None]:
    """Let models compute in float32: each part of one has its weights so only while it runs."""
    kept: dict[nn.Module, list[Tensor]] = {}

    def widen(module: nn.Module, _: object) -> None:
        own = [*module.parameters(recurse=False)]
        kept[module] = [weight.data for weight in own]
        for weight in own:
            weight.data = weight.data.float()

    def restore(module: nn.Module, *_: object) -> None:
        for weight, data in zip(module.parameters(recurse=False), kept.pop(module, []), strict=False):
            weight.data = data

    hooks = []
    for module in [module for model in models for module in model.modules()]:
        if any(weight.dtype != torch.float32 for weight in module.parameters(recurse=False)):
            hooks.append(module.register_forward_pre_hook(widen))
            hooks.append(module.register_forward_hook(restore, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
