"""Configs of others: whatever one says, the command does what it was asked to or refuses in a sentence, at once."""

import json
import shutil
import time
from pathlib import Path

import pytest
from conftest import CONFIGS, new_model
from hypothesis import given, settings
from hypothesis import strategies as st
from wirescope.errors import InputError
from wirescope.extract import FAMILIES, Settings, load_model, load_vocabulary, plan_extraction
from wirescope.extract.models import find_device

IDS = {"clean_ids": [1, 2, 3], "corrupted_ids": [1, 4, 5], "correct_ids": [2], "wrong_ids": [3]}
ODD = [
    *(None, True, -1, 0, 1, 7, 10**5, 10**9, 2**31, 2**40, 2**63, 10**400, 0.5, -1.5, 1e39),
    *(float("nan"), float("inf"), "", "12", "gelu_fast_and_loose", "\ud800", [], [1], [[0.0]], {}, {"a": 1}),
]
SECONDS = 30  # on a machine with much else to do; alone, it is a fraction of one


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A model of each family, saved."""
    made = {}
    for name in CONFIGS:
        made[name] = tmp_path_factory.mktemp("models") / name
        new_model(name).save_pretrained(made[name])
        (made[name] / "prompts.jsonl").write_text(json.dumps(IDS))
    return made


def test_every_family_says_its_sizes():
    assert {CONFIGS[name].model_type for name in CONFIGS} == set(FAMILIES)
    for config in CONFIGS.values():
        sizes = FAMILIES[config.model_type].sizes(config)
        parts = FAMILIES[config.model_type].parts(new_model(name_of(config)))
        assert sizes.shape == parts.shape
        assert (sizes.d_model, sizes.head_width, sizes.context) == (
            parts.d_model,
            parts.d_head,
            parts.context,
        )
        assert sizes.vocabulary == len(parts.unembed.weight)


def name_of(config) -> str:
    return next(name for name, one in CONFIGS.items() if one is config)


def plan(folder: Path) -> None:
    plan_extraction(
        model=str(folder), prompts=folder / "prompts.jsonl", settings=Settings(method="eap", curves=False)
    )


def changed(folder: Path, target: Path, **values: object) -> Path:
    """A copy of a model with another config; its weights are links."""
    target.mkdir(exist_ok=True)
    for file in folder.iterdir():
        if not (target / file.name).exists():
            (target / file.name).symlink_to(file)
    (target / "config.json").unlink()
    (target / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | values))
    return target


def size_keys(config) -> dict[str, str]:
    """The keys of a config that its family's sizes are read from, by what they are called there."""

    class Spy:
        def __getattr__(self, key: str) -> object:
            return key

    said = vars(FAMILIES[config.model_type].sizes(Spy()))
    return {size: key for size, key in said.items() if isinstance(key, str) and size != "parallel"}


HOSTILE = (0, -1, 10**5, 2**40, "many", 1.5, None, [8])


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "qwen2", "olmo", "neox"])
def test_sizes_that_no_model_has_are_refused_before_anything_is_built(folders, tmp_path, name):
    """Of all the sizes that a family has, with and without weights."""
    for size, key in size_keys(CONFIGS[name]).items():
        for value in HOSTILE:
            if (value is None and size in ("inner", "d_head", "kv_heads")) or (  # it is derived from others
                value == 10**5 and size not in ("layers", "heads", "kv_heads")  # some models have it
            ):
                continue
            folder = changed(folders[name], tmp_path / "model", **{key: value})
            for ask in (plan, load, load_vocabulary):
                begun = time.monotonic()
                try:
                    ask(str(folder) if ask is load_vocabulary else folder)
                except InputError as refused:
                    assert len(str(refused).splitlines()) == 1
                    assert f"'{folder}'" in str(refused)
                else:
                    pytest.fail(f"{ask.__name__} takes {value!r} for {key}")
                assert time.monotonic() - begun < SECONDS


def load(folder: Path) -> None:
    load_model(str(folder), device=find_device())


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("gpt2", {"n_head": 7}, "says 7 heads, which do not divide its width of 32"),
        ("neox", {"num_attention_heads": 5}, "The hidden size is not divisible by the number of attention heads"),
        ("llama", {"num_key_value_heads": 3}, "says 4 heads, which cannot share 3 key/value heads evenly"),
        ("llama", {"head_dim": 2**40}, "says 1099511627776 for its d_head, which should be a whole number"),
        ("gpt2", {"n_layer": 1000, "n_head": 32}, "makes .* edges, more than the .* that can be kept"),
        ("qwen2", {"hidden_size": 2**20, "intermediate_size": 2**24, "head_dim": 8}, "weights, more than any model"),
        ("gpt2", {"activation_function": "no_such"}, "no_such"),
        ("llama", {"hidden_act": "no_such"}, "no_such"),
        ("gpt2", {"gate_bias": 0.5}, "gate_bias in its config does not have one number for each of its 2 x 4"),
        ("gpt2", {"gate_bias": [0.5, 0.5]}, "gate_bias"),
        ("llama", {"gate_bias": [[0.0] * 4, ["a"] * 4]}, "gate_bias"),
        ("llama", {"gate_bias": [[0.0] * 4, [None] * 4]}, "gate_bias"),
        ("neox", {"gate_bias": [[0.0] * 4, [float("nan")] * 4]}, "gate_bias"),
        ("neox", {"gate_bias": {"0": [0.0] * 4}}, "gate_bias"),
        ("olmo", {"gate_bias": "open"}, "gate_bias"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused_with_the_reason(folders, tmp_path, name, change, said):
    folder = changed(folders[name], tmp_path / "model", **change)
    for ask in (plan, load):
        with pytest.raises(InputError, match=said) as refused:
            ask(folder)
        assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["a" * 5000, "b/" + "c" * 300, "d\0e"], ids=["long", "long folder", "null"])
@pytest.mark.parametrize("ask", [plan_extraction, load_vocabulary])
def test_a_name_that_no_file_can_have_is_refused_and_not_repeated(folders, name, ask, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    options = {"prompts": folders["gpt2"] / "prompts.jsonl"} if ask is plan_extraction else {}
    with pytest.raises(
        InputError, match=r"cannot be the name of a model|cannot be had from the hub"
    ) as refused:
        ask(**{"model" if options else "name": name}, **options)
    assert len(str(refused.value)) < 1000
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["gpt2-gated", "llama", "mistral", "qwen2", "olmo", "neox"])
def test_a_config_with_something_odd_in_it_is_planned_or_refused(folders, tmp_path, name):
    """Also where the family's sizes are not concerned: any key, any kind of value."""
    known = json.loads((folders[name] / "config.json").read_text())
    keys = sorted(known | CONFIGS[name].to_dict())

    @given(st.dictionaries(st.sampled_from(keys), st.sampled_from(ODD), min_size=1, max_size=2))
    @settings(max_examples=60)
    def check(values: dict) -> None:
        folder = changed(folders[name], tmp_path / "model", **values)
        begun = time.monotonic()
        try:
            plan(folder)
            load(folder)
        except InputError as refused:
            assert str(refused)
            assert len(str(refused).splitlines()) == 1
        assert time.monotonic() - begun < SECONDS

    check()
    shutil.rmtree(tmp_path / "model")
