"""Which names a model knows: those that it can repeat."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from wirescope.data import TASKS, known_names, make_task, words
from wirescope.extract import find_device, load_vocabulary
from wirescope.extract import models as models_module
from wirescope.extract.knowledge import known_words
from wirescope.extract.models import load_untapped, vocabulary_of

OTHERS = "Then was there . <unk>".split()
KNOWN = ["Adam", "Alice", "Amy", "Jack", "Kate", "Mary"]


def save(folder: Path, known: list[str]) -> Path:
    """A model that copies, made by hand: at `Then` its one head finds what came after the last `Then`.

    Values of names that it knows are written out; those of others are nothing. The state is [token | token before |
    position], each one-hot but for the position, and only the first part is read by the unembedding.
    """
    vocabulary = [*OTHERS, *words.NAMES, *words.PLACES, *words.OBJECTS]
    every = " ".join((*words.IOI, *words.IOI_LONG, *words.MEANWHILE)).replace("{", " ").replace("}", " ")
    vocabulary += [word for word in dict.fromkeys(Whitespace().pre_tokenize_str(every)) if word not in vocabulary] if False else []
    vocabulary += sorted({word for word, _ in Whitespace().pre_tokenize_str(every)} - set(vocabulary))
    size = len(vocabulary)
    config = GPT2Config(
        vocab_size=size, n_embd=size + 2, n_layer=1, n_head=1, n_positions=64, bos_token_id=None, eos_token_id=None,
        tie_word_embeddings=False,
    )
    model = GPT2LMHeadModel(config)
    for weight in model.parameters():
        torch.nn.init.zeros_(weight)
    return model, vocabulary, config, folder
