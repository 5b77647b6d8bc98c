"""Which words a model knows: those that it can repeat.

A tokenizer has tokens for words that a model has hardly seen, and whose embeddings are noise. A word is *known* if the
model gives it a chance where a sentence begins for the third time:

    Then Mary was there. Then Mary was there. Then       -> " Mary"

That is no task of Wirescope's, so prompts are not chosen by whether a model gets them right.
"""

from collections.abc import Sequence

import torch

from ..data import Encode
from .parts import Parts

_AGAIN = "Then {word} was there. Then {word} was there. Then"
_CHANCE = 0.05
_WORDS_AT_A_TIME = 32


@torch.no_grad()
def known_words(parts: Parts, encode: Encode, words: Sequence[str]) -> list[str]:
    """Of words that are one token each, those that a model knows."""
    device = next(parts.base.parameters()).device
    known: list[str] = []
    for first in range(0, len(words), _WORDS_AT_A_TIME):
        some = words[first : first + _WORDS_AT_A_TIME]
        ids = torch.tensor([encode(_AGAIN.format(word=word)) for word in some], device=device)
        tokens = torch.tensor([[encode(f"Then {word}")[-1]] for word in some], device=device)
        state = parts.base(input_ids=ids, use_cache=False).last_hidden_state[:, -1]
        chances = parts.unembed(state).float().softmax(-1).gather(1, tokens)[:, 0]
        known += [word for word, chance in zip(some, chances.tolist(), strict=True) if chance >= _CHANCE]
    return known
