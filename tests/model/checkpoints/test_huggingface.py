"""Hugging Face folders: made by transformers, saved, opened here, compared in every number."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoints.assemble import assemble
from model.checkpoints.contents import CheckpointError
from model.checkpoints.open import describe, open_model
from model.gpt import GPT

CPU = torch.device("cpu")
Saved = Callable[..., tuple[Any, Path]]
VOCABULARY = 61
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 40, "n_layer": 2, "n_head": 5, "n_positions": 80}
NEOX = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 80,
    "max_position_embeddings": 80,
}
LLAMA = NEOX | {"num_attention_heads": 6, "num_key_value_heads": 2, "bos_token_id": None}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 20,
}
LLAMA3 = YARN | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
# The family, what its config says, and a wrong choice that must show in the numbers.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "GPT-2": ("GPT2LMHead", GPT2, {"activation": "gelu"}),
    "GPT-2, untied, erf, its own width": (
        "GPT2LMHead",
        GPT2 | {"tie_word_embeddings": False, "activation_function": "gelu", "n_inner": 50},
        {"activation": "gelu_tanh"},
    ),
    "GPT-2, unscaled": (
        "GPT2LMHead",
        GPT2 | {"scale_attn_weights": False},
        {"score_scale": None},
    ),
    "Pythia": ("GPTNeoX", NEOX, {"parallel_residual": False}),
    "GPT-NeoX, sequential, all rotated, no attention bias": (
        "GPTNeoX",
        NEOX
        | {
            "use_parallel_residual": False,
            "attention_bias": False,
            "rope_parameters": {"rope_theta": 5e3, "partial_rotary_factor": 1.0},
        },
        {"rope_pairing": "interleaved"},
    ),
    "Llama": ("Llama", LLAMA, {"rope_pairing": "interleaved"}),
    "Llama, tied, biases": (
        "Llama",
        LLAMA | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        {"norm_eps": 1e-2},
    ),
    "Llama, linear": (
        "Llama",
        LLAMA | {"rope_parameters": YARN | {"rope_type": "linear"}},
        {"rope_scaling": None},
    ),
    "Llama, dynamic": (
        "Llama",
        LLAMA
        | {
            "max_position_embeddings": 20,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
        },
        {"rope_scaling": None},
    ),
    "Llama, yarn": ("Llama", LLAMA | {"rope_parameters": YARN}, {"rope_scaling": None}),
    "Llama, llama3": ("Llama", LLAMA | {"rope_parameters": LLAMA3}, {"rope_scaling": None}),
    "Mistral": ("Mistral", LLAMA | {"sliding_window": 20, "head_dim": 10}, {"window": 21}),
    "Mistral without a window": ("Mistral", LLAMA | {"sliding_window": None}, {"window": 30}),
    "Qwen2": (
        "Qwen2",
        LLAMA | {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
        {"windowed_layers": (0, 1)},
    ),
    "Qwen2 without windows": ("Qwen2", LLAMA, {"rope_base": 9e3}),
    "Qwen3": ("Qwen3", LLAMA | {"head_dim": 12}, {"rope_pairing": "interleaved"}),
}
CASES["Llama, linear"][1]["rope_parameters"].pop("original_max_position_embeddings")


@pytest.fixture
def saved(oracles: Any, tmp_path: Path) -> Saved:
    """Makes the oracle of a case, writes it, and gives both."""

    def save(name: str = "Llama") -> tuple[Any, Path]:
        kind, settings, _ = CASES[name]
        made = oracles.make(kind, settings)
        made.save_pretrained(tmp_path / "saved")
        return made, tmp_path / "saved"

    return save


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in values.items() if v != "REMOVED"}))


def opened(folder: Path | str) -> GPT:
    return open_model(str(folder), device=CPU, dtype=torch.float32).model


@pytest.mark.parametrize("name", CASES)
def test_a_saved_model_opens_to_the_same_numbers(name: str, saved: Saved, oracles: Any) -> None:
    made, folder = saved(name)
    theirs = oracles.theirs(made)
    contents = describe(str(folder))
    model = assemble(contents, device=CPU, dtype=torch.float32)
    assert oracles.error(oracles.ours(model), theirs) < oracles.gate

    changed = replace(contents.config, **CASES[name][2])
    wrong = GPT(changed).eval()
    wrong.load_state_dict(model.state_dict())
    assert oracles.error(oracles.ours(wrong), theirs) > 5 * oracles.gate


def old_style(values: dict[str, Any]) -> dict[str, Any]:
    """A config as transformers 4 and older wrote it."""
    values = dict(values)
    rope = values.pop("rope_parameters")
    values["torch_dtype"] = values.pop("dtype")
    if values["model_type"] == "gpt_neox":
        values["rotary_emb_base"] = rope["rope_theta"]
        values["rotary_pct"] = rope["partial_rotary_factor"]
        return values
    values["rope_theta"] = rope.pop("rope_theta")
    if rope["rope_type"] != "default":
        rope["type"] = rope.pop("rope_type")
        values["rope_scaling"] = rope
    return values


@pytest.mark.parametrize("name", ["Pythia", "Llama", "Llama, llama3", "Llama, yarn", "Qwen2"])
def test_old_spellings_of_rotation_mean_the_same(name: str, saved: Saved) -> None:
    _, folder = saved(name)
    new = describe(str(folder)).config
    file = folder / "config.json"
    values = old_style(json.loads(file.read_text()))
    values.pop("layer_types", None)
    file.write_text(json.dumps(values))
    assert describe(str(folder)).config == new


@pytest.mark.parametrize("name", ["GPT-2", "Pythia", "Qwen2"])
def test_shards_open_as_the_whole(name: str, saved: Saved, tmp_path: Path) -> None:
    made, folder = saved(name)
    whole = open_model(str(folder), device=CPU, dtype=torch.float32)
    made.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    parts = open_model(str(tmp_path / "shards"), device=CPU, dtype=torch.float32)
    assert same(whole.model, parts.model)
    assert parts.weights_sha256 != whole.weights_sha256 and len(parts.weights_sha256) == 64


def test_shards_of_torch_open_as_the_whole(saved: Saved) -> None:
    made, folder = saved("Llama")
    expected = opened(folder)
    (folder / "model.safetensors").unlink()
    state = list(made.state_dict().items())
    where = {}
    for part in (0, 1):
        name = f"pytorch_model-0000{part + 1}-of-00002.bin"
        torch.save(dict(state[part::2]), folder / name)
        where |= {tensor: name for tensor, _ in state[part::2]}
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    assert same(opened(folder), expected)


def test_a_weight_file_stands_for_its_folder(saved: Saved) -> None:
    _, folder = saved()
    assert same(opened(folder / "model.safetensors"), opened(folder))


def same(one: GPT, other: GPT) -> bool:
    other_state = other.state_dict()
    return all(torch.equal(w, other_state[name]) for name, w in one.state_dict().items())


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_pytorch_model_bin_opens_as_safetensors_does(name: str, zipped: bool, saved: Saved) -> None:
    made, folder = saved(name)
    expected = opened(folder)
    (folder / "model.safetensors").unlink()
    state = made.state_dict()  # a tied head is in there a second time
    file = folder / "pytorch_model.bin"
    torch.save(state, file, _use_new_zipfile_serialization=zipped)
    assert same(opened(folder), expected)


def test_a_bare_gpt2_with_its_tables_opens(saved: Saved) -> None:
    """gpt2 on the hub has no `transformer.` prefix, and holds the causal masks as tensors."""
    _, folder = saved("GPT-2")
    expected = opened(folder)
    weights = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
    bare |= {f"h.{i}.attn.bias": torch.ones(1, 1, 80, 80).tril() for i in range(2)}
    save_file(bare, folder / "model.safetensors")
    edit_config(folder, architectures=["GPT2Model"])
    assert same(opened(folder), expected)


def test_half_precision_weights_open_in_the_dtype_asked_for(saved: Saved) -> None:
    _, folder = saved()
    weights = load_file(folder / "model.safetensors")
    save_file({k: w.bfloat16() for k, w in weights.items()}, folder / "model.safetensors")
    model = open_model(str(folder), device=CPU, dtype=torch.float32).model
    assert model.embed.weight.dtype == torch.float32
    assert torch.equal(model.embed.weight, weights["model.embed_tokens.weight"].bfloat16().float())


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("Llama", {"architectures": ["GemmaForCausalLM"]}, r"'GemmaForCausalLM'.*LlamaForCausalLM"),
    ("Llama", {"architectures": None, "model_type": "mamba"}, r"'mamba'.*GPT2LMHeadModel"),
    ("Llama", {"final_logit_softcapping": 30.0}, r"final_logit_softcapping = 30"),
    ("Llama", {"quantization_config": {"bits": 4}}, r"quantization_config"),
    ("Llama", {"hidden_act": "relu"}, r"hidden_act 'relu'.*'silu'"),
    ("Llama", {"sliding_window": 16}, r"sliding_window = 16"),
    ("Llama", {"hidden_size": "wide"}, r"config\.json"),
    ("Llama", {"hidden_size": None}, r"hidden_size is missing"),
    ("Llama", {"num_key_value_heads": 4}, r"n_head 6 is not divisible by n_kv_head 4"),
    ("Llama", {"num_hidden_layers": 10**9}, r"1000000000 layers, but there are only 21 tensors"),
    ("Llama", {"vocab_size": 10**15}, r"asks for \[1000000000000000, 48\]"),
    ("Llama", {"rope_parameters": {"rope_type": "longrope"}}, r"rope_type 'longrope'"),
    ("Llama", {"rope_parameters": YARN | {"mscale": 0.7}}, r"rope_parameters: .*mscale = 0.7"),
    ("Llama", {"rope_parameters": YARN | {"truncate": False}}, r"truncate False"),
    ("Llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, r"partial_rotary_factor 0.5"),
    ("Llama", {"rope_parameters": {"rope_type": "linear"}}, r"factor is missing"),
    ("GPT-2", {"scale_attn_by_inverse_layer_idx": True}, r"scale_attn_by_inverse_layer_idx True"),
    ("GPT-2", {"add_cross_attention": True}, r"add_cross_attention True"),
    ("GPT-2", {"activation_function": "relu"}, r"'relu'.*'gelu_new'"),
    ("Qwen2", {"layer_types": ["linear_attention"] * 2}, r"linear_attention"),
    ("Mistral", {"layer_types": ["sliding_attention"]}, r"layer_types"),
]


@pytest.mark.parametrize(("name", "change", "says"), REFUSED)
def test_what_is_not_implemented_is_refused_by_name(
    name: str, change: dict[str, Any], says: str, saved: Saved
) -> None:
    _, folder = saved(name)
    describe(str(folder))
    edit_config(folder, **change)
    with pytest.raises(CheckpointError, match=says):
        describe(str(folder))


def test_every_missing_extra_and_misshapen_tensor_is_listed(saved: Saved) -> None:
    _, folder = saved()
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    weights["model.layers.0.extra"] = torch.zeros(2)
    weights["lm_head.weight"] = torch.zeros(3, 48)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        describe(str(folder))
    assert "model.norm.weight is missing" in str(caught.value)
    assert "model.layers.0.extra is not part of this model" in str(caught.value)
    assert "lm_head.weight has shape [3, 48], the config asks for [61, 48]" in str(caught.value)


def test_a_tied_head_that_is_not_the_embedding_is_refused(saved: Saved) -> None:
    _, folder = saved("GPT-2")
    weights = load_file(folder / "model.safetensors")
    same_head = weights["transformer.wte.weight"].clone()
    save_file(weights | {"lm_head.weight": same_head}, folder / "model.safetensors")
    describe(str(folder))
    save_file(weights | {"lm_head.weight": same_head + 1}, folder / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"ties lm_head\.weight to transformer\.wte\.weight, but"
    ):
        describe(str(folder))


def test_integer_weights_are_refused(saved: Saved) -> None:
    _, folder = saved()
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"].to(torch.int8)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is torch\.int8"):
        opened(folder)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), r"no model\.safetensors"),
        (lambda folder: (folder / "config.json").write_text("{"), r"config\.json: not JSON"),
        (lambda folder: (folder / "config.json").write_text("[1]"), r"holds list"),
        (lambda folder: (folder / "config.json").write_bytes(b"\xff"), r"not JSON"),
        (lambda folder: (folder / "config.json").unlink(), r"without config\.json"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(
    spoil: Callable[[Path], object], says: str, saved: Saved
) -> None:
    _, folder = saved()
    spoil(folder)
    with pytest.raises(CheckpointError, match=says):
        opened(folder)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ({"weight_map": {"a": "../../elsewhere.safetensors"}}, r"elsewhere.*not a file beside"),
        ({"weight_map": {"a": "gone.safetensors"}}, r"'gone\.safetensors' is not a file"),
        ({"weight_map": []}, r"weight_map"),
        ({}, r"weight_map"),
    ],
)
def test_an_index_that_lies_is_refused(index: Any, says: str, saved: Saved) -> None:
    _, folder = saved()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=says):
        opened(folder)


@pytest.fixture
def cache(saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache with one model in it, and no network: a snapshot that a branch points to."""
    _, folder = saved()
    repository = tmp_path / "hub" / "models--some--llama"
    (repository / "snapshots").mkdir(parents=True)
    (repository / "refs").mkdir()
    folder.rename(repository / "snapshots" / COMMIT)
    (repository / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return repository / "snapshots" / COMMIT


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_name_on_the_hub_opens_from_the_cache_without_network(cache: Path) -> None:
    found = open_model("some/llama", device=CPU, dtype=torch.float32)
    assert (found.id, found.source) == ("some/llama", f"some/llama@{COMMIT}")
    assert same(found.model, opened(cache))
    at_commit = open_model("some/llama", device=CPU, dtype=torch.float32, revision=COMMIT)
    assert at_commit.source == found.source
    in_the_name = open_model(f"some/llama@{COMMIT}", device=CPU, dtype=torch.float32)
    assert (in_the_name.id, in_the_name.source) == (found.id, found.source)
    with pytest.raises(CheckpointError, match="the revision is in the name, and 'v2' is given"):
        open_model(f"some/llama@{COMMIT}", device=CPU, dtype=torch.float32, revision="v2")


@pytest.mark.parametrize(("name", "revision"), [("some/other", None), ("some/llama", "v2")])
def test_what_is_not_in_the_cache_is_an_error_without_network(
    name: str, revision: str | None, cache: Path
) -> None:
    with pytest.raises(CheckpointError, match=f"{name} could not be had from the hub"):
        open_model(name, device=CPU, dtype=torch.float32, revision=revision)


def test_a_path_comes_before_a_name_on_the_hub(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "some" / "llama").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"without config\.json"):
        open_model("some/llama", device=CPU, dtype=torch.float32)
