"""Stories that a model writes itself, a document a line, to make its sparse twin with.

    python pair/stories.py --model stories --out stories.jsonl [--count 6144] [--seed 0]

Each is drawn token by token from all that the model says may come next, from its beginning to where the model begins
another, or to the end of its context. A twin is held to what its dense model predicts, and there is no better text for
that than the model's own: there can be as much of it as one likes, so that none is learnt by heart.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, StaticCache
from transformers.utils.logging import disable_progress_bar
from wirescope.data import replacing

AT_A_TIME = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="stories")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=6_144)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    generator = torch.Generator().manual_seed(options.seed)
    with replacing(options.out) as file:
        for first in range(0, options.count, AT_A_TIME):
            for ids in write(model, min(AT_A_TIME, options.count - first), generator):
                text = tokenizer.decode(until_the_next(ids.tolist(), tokenizer.bos_token_id))
                file.write((json.dumps({"text": text}) + "\n").encode())
            print(f"{min(first + AT_A_TIME, options.count):,} stories", file=sys.stderr, flush=True)


@torch.no_grad()
def write(model: PreTrainedModel, count: int, generator: torch.Generator) -> Tensor:
    """As many stories as there is context for, [story, position], without what each begins with."""
    context = model.config.max_position_embeddings
    cache = StaticCache(model.config, max_cache_len=context)
    ids = torch.full((count, 1), model.config.bos_token_id)
    written = []
    for _ in range(context - 1):
        logits = model(input_ids=ids, past_key_values=cache, use_cache=True).logits[:, -1]
        ids = drawn(logits.float(), generator)
        written.append(ids)
    return torch.cat(written, 1)


def drawn(logits: Tensor, generator: torch.Generator) -> Tensor:
    """A token for each row, as likely as the logits say, [row, 1]."""
    upto = logits.softmax(-1).cumsum(-1)  # [row, token]
    at = torch.rand(len(logits), 1, generator=generator) * upto[:, -1:]
    return torch.searchsorted(upto, at, right=True).clamp(max=logits.shape[1] - 1)


def until_the_next(ids: list[int], begins: int) -> list[int]:
    """One story of several.

    >>> until_the_next([5, 6, 1, 7], begins=1)
    [5, 6]
    """
    return ids[: ids.index(begins)] if begins in ids else ids


if __name__ == "__main__":
    main()
