"""The inventory against the real module, on the meta device, and against a real file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from model.checkpoints import native
from model.config import GPTConfig
from model.gpt import GPT
from model.parameters import ParameterError, differences, inventory, report
from model.presets import PRESETS


def on_meta(config: GPTConfig) -> GPT:
    with torch.device("meta"):
        return GPT(config)


def assert_is_the_module(config: GPTConfig) -> None:
    model, tensors = on_meta(config), inventory(config)
    state = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    assert {tensor.name: tensor.shape for tensor in tensors} == state
    stored = [(tensor.name, tensor.count) for tensor in tensors if tensor.tied_to is None]
    assert stored == [(name, weight.numel()) for name, weight in model.named_parameters()]


@pytest.mark.parametrize("name", PRESETS)
def test_inventory_of_preset_is_the_module(name: str) -> None:
    assert_is_the_module(PRESETS[name])


@given(config=st.from_type(GPTConfig))
@settings(deadline=None)
def test_inventory_of_any_config_is_the_module(config: GPTConfig) -> None:
    assert_is_the_module(config)


def test_axes_have_the_shape_and_layers_the_name() -> None:
    config = PRESETS["smollm2-135m"]
    sizes = {"vocab": 49152, "d_model": 576, "d_mlp": 1536, "head*d_head": 9 * 64}
    sizes["kv_head*d_head"] = 3 * 64
    for tensor in inventory(config):
        assert tensor.shape == tuple(sizes[axis] for axis in tensor.axes)
        if tensor.layer is not None:
            assert tensor.name.startswith(f"blocks.{tensor.layer}.")


def test_tied_unembedding_names_where_it_is_stored() -> None:
    tied = [tensor for tensor in inventory(PRESETS["gpt2"]) if tensor.tied_to]
    assert [(tensor.name, tensor.tied_to) for tensor in tied] == [
        ("unembed.weight", "embed.weight")
    ]
    assert not any(tensor.tied_to for tensor in inventory(PRESETS["course"]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [False, True])
def test_bytes_are_those_of_the_written_file(tmp_path: Path, dtype: str, tied: bool) -> None:
    config = replace(PRESETS["nano"], tied=tied)
    folder = tmp_path / "model"
    native.save(folder, GPT(config), None, dtype=getattr(torch, dtype))
    file = folder / "model.safetensors"
    tensors = [t for t in inventory(config, dtype=dtype) if t.tied_to is None]
    header = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    assert sum(tensor.bytes for tensor in tensors) == file.stat().st_size - header
    with safe_open(file, framework="pt") as held:
        for tensor in tensors:
            assert held.get_tensor(tensor.name).nbytes == tensor.bytes


def test_unknown_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ParameterError, match=r"float8.*bfloat16"):
        inventory(PRESETS["nano"], dtype="float8")


def test_differences_name_missing_extra_and_misshapen_tensors() -> None:
    config = PRESETS["nano"]
    held = {name: tuple(weight.shape) for name, weight in GPT(config).state_dict().items()}
    assert differences(inventory(config), held) == []
    del held["blocks.1.mlp.up.bias"]
    held["blocks.0.attn.q.weight"] = (48, 47)
    held["lm_head.bias"] = (3,)
    assert differences(inventory(config), held) == [
        ("blocks.0.attn.q.weight", (48, 48), (48, 47)),
        ("blocks.1.mlp.up.bias", (192,), None),
        ("lm_head.bias", None, (3,)),
    ]


def test_tied_matrix_may_be_missing_from_a_file_but_an_untied_one_may_not() -> None:
    untied, tied = PRESETS["nano"], replace(PRESETS["nano"], tied=True)
    held = {t.name: t.shape for t in inventory(untied) if t.name != "unembed.weight"}
    assert differences(inventory(tied), held) == []
    assert differences(inventory(untied), held) == [("unembed.weight", (3, 48), None)]


def test_report_agrees_with_the_module_and_notices_a_missing_tensor() -> None:
    config = replace(PRESETS["nano"], tied=True)
    held = {name: tuple(weight.shape) for name, weight in on_meta(config).state_dict().items()}
    agreement = report(config, held=held).agreement
    assert agreement.exact
    assert agreement.leaves == agreement.tensors == agreement.held == 85_584
    del held["ln_final.bias"]
    agreement = report(config, held=held).agreement
    assert not agreement.exact
    assert agreement.held == 85_584 - 48
    assert agreement.differences == ("ln_final.bias: [48] by the config, absent in the model",)
