"""The protocol of a run: what run.json has of it, in every version."""

import json
from dataclasses import replace

import pytest
from wirescope.data import SCHEMA_VERSION, Run, find_protocol
from wirescope.errors import InputError, StoreError
from wirescope.graphs import Shape

RUN = Run(
    run="gpt2-ioi-zero",
    model="gpt2",
    shape=Shape(1, 1),
    task="ioi",
    seed=0,
    prompts=4,
    levels=("edge",),
    method="eap",
    metric="logit_diff",
    dtype="float32",
    ablation="zero",
    protocol="published",
)


def test_a_run_keeps_its_protocol_and_older_ones_have_none():
    content = json.loads(RUN.to_json())
    assert (content["protocol"], content["schema_version"]) == ("published", SCHEMA_VERSION)
    assert Run.from_json(RUN.to_json()) == RUN
    del content["protocol"]
    older = Run.from_json(json.dumps(content | {"schema_version": 4}))
    assert (older.protocol, older.stem) == (None, "gpt2-ioi-zero")
    assert RUN.differs_from(older) == ["protocol"]
    assert Run.from_json(json.dumps(content | {"protocol": "of a later version"})).stem == "gpt2-ioi"
    with pytest.raises(StoreError, match="protocol is 3"):
        Run.from_json(json.dumps(content | {"protocol": 3}))


def test_the_stem_of_a_run_is_its_name_without_its_ablation():
    for name, ablation, protocol, stem in (
        ("gpt2-ioi-zero", "zero", "published", "gpt2-ioi"),
        ("gpt2-ioi-mean", "mean", "published", "gpt2-ioi"),
        ("gpt2-ioi-mean", "zero", "published", "gpt2-ioi-mean"),
        ("gpt2-ioi", "corrupt", "contrast", "gpt2-ioi"),
        ("gpt2-ioi-zero", "zero", None, "gpt2-ioi-zero"),  # a name that somebody chose
    ):
        assert replace(RUN, run=name, ablation=ablation, protocol=protocol).stem == stem


def test_the_command_of_a_run_names_its_protocol_ablation_and_name():
    words = RUN.command("s")
    for option, value in (("--protocol", "published"), ("--ablation", "zero"), ("--run", "gpt2-ioi-zero")):
        assert words[words.index(option) + 1] == value
    assert "--protocol" not in replace(RUN, protocol=None).command("s")


def test_a_protocol_that_is_none_is_refused():
    with pytest.raises(InputError, match=r"'contrasts' is not a protocol.*Did you mean 'contrast'"):
        find_protocol("contrasts")
