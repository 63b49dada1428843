"""nanoGPT's ckpt.pt and minGPT's model.pt, laid out as their code does, against its formulas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model.checkpoints.contents import CheckpointError
from model.checkpoints.open import open_model

CPU = torch.device("cpu")
C, HEADS, LAYERS, CONTEXT, VOCABULARY = 30, 3, 2, 20, 25
ARGUMENTS: dict[str, Any] = {
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_embd": C,
    "block_size": CONTEXT,
    "bias": True,
    "vocab_size": VOCABULARY,
    "dropout": 0.0,
}
State = dict[str, Tensor]


def state(*, bias: bool, tied: bool) -> State:
    """Tensors named and shaped as both codebases do, Linear weights (out, in)."""
    draw = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return 0.2 * torch.randn(shape, generator=draw)

    made = {"transformer.wte.weight": random(VOCABULARY, C)}
    made["transformer.wpe.weight"] = random(CONTEXT, C)
    shapes = {"attn.c_attn": (3 * C, C), "attn.c_proj": (C, C)}
    shapes |= {"mlp.c_fc": (4 * C, C), "mlp.c_proj": (C, 4 * C)}
    norms = ["transformer.ln_f"]
    for layer in range(LAYERS):
        prefix = f"transformer.h.{layer}"
        norms += [f"{prefix}.ln_1", f"{prefix}.ln_2"]
        for name, shape in shapes.items():
            made[f"{prefix}.{name}.weight"] = random(*shape)
            if bias:
                made[f"{prefix}.{name}.bias"] = random(shape[0])
        made[f"{prefix}.attn.bias"] = torch.ones(1, 1, CONTEXT, CONTEXT).tril()
    for name in norms:
        made[f"{name}.weight"] = 1 + random(C)
        if bias:
            made[f"{name}.bias"] = random(C)
    made["lm_head.weight"] = made["transformer.wte.weight"] if tied else random(VOCABULARY, C)
    return made


def logits_of(s: State, ids: Tensor, gelu: str) -> Tensor:
    """The forward of both models, from their formulas; ids (T,) -> (T, V)."""
    x = s["transformer.wte.weight"][ids] + s["transformer.wpe.weight"][: len(ids)]

    def normed(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (C,), s[f"{name}.weight"], s.get(f"{name}.bias"), 1e-5)

    def projected(x: Tensor, name: str) -> Tensor:
        return F.linear(x, s[f"{name}.weight"], s.get(f"{name}.bias"))

    for layer in range(LAYERS):
        prefix = f"transformer.h.{layer}"
        qkv = projected(normed(x, f"{prefix}.ln_1"), f"{prefix}.attn.c_attn")
        q, k, v = (each.view(len(ids), HEADS, -1).transpose(0, 1) for each in qkv.split(C, dim=1))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + projected(z.transpose(0, 1).reshape(len(ids), C), f"{prefix}.attn.c_proj")
        up = projected(normed(x, f"{prefix}.ln_2"), f"{prefix}.mlp.c_fc")
        x = x + projected(F.gelu(up, approximate=gelu), f"{prefix}.mlp.c_proj")
    return F.linear(normed(x, "transformer.ln_f"), s["lm_head.weight"])


def assert_opens_to(file: Path, s: State, gelu: str, format_: str) -> None:
    opened = open_model(str(file), device=CPU, dtype=torch.float32)
    assert opened.format == format_
    ids = torch.randint(VOCABULARY, (CONTEXT,), generator=torch.Generator().manual_seed(1))
    logits = opened.model(ids[None])
    assert logits is not None
    expected = logits_of(s, ids, gelu)
    scale = max(1.0, float(expected.abs().max()))
    assert (logits[0] - expected).abs().max() < 2e-5 * scale
    other = logits_of(s, ids, "none" if gelu == "tanh" else "tanh")
    assert (logits[0] - other).abs().max() > 4e-5 * scale


def nanogpt(tmp_path: Path, s: State, prefix: str = "", **changes: Any) -> Path:
    """ckpt.pt as nanoGPT's train.py writes it, optimizer and all."""
    checkpoint = {
        "model": {prefix + name: weight for name, weight in s.items()},
        "optimizer": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(5)}}},
        "model_args": ARGUMENTS | changes,
        "iter_num": 600_000,
        "best_val_loss": torch.tensor(1.5),
        "config": {"out_dir": "out", "learning_rate": 6e-4, "compile": True},
    }
    torch.save(checkpoint, tmp_path / "ckpt.pt")
    return tmp_path / "ckpt.pt"


@pytest.mark.parametrize("prefix", ["", "_orig_mod."], ids=["plain", "compiled"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_nanogpt_opens(bias: bool, prefix: str, tmp_path: Path) -> None:
    s = state(bias=bias, tied=True)
    assert_opens_to(nanogpt(tmp_path, s, prefix, bias=bias), s, "none", "nanoGPT")


def test_nanogpt_whose_head_is_not_its_embedding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"ties lm_head\.weight to transformer\.wte"):
        assert_opens_to(nanogpt(tmp_path, state(bias=True, tied=False)), {}, "none", "")


@pytest.mark.parametrize(
    "config",
    [
        {"model": {"n_layer": LAYERS, "n_head": HEADS, "n_embd": C, "vocab_size": None}},
        {"n_layer": LAYERS, "n_head": HEADS, "n_embd": C, "block_size": CONTEXT},
    ],
    ids=["as minGPT writes it", "the model's part alone"],
)
def test_mingpt_opens_with_its_config_beside_it(config: Any, tmp_path: Path) -> None:
    s = state(bias=True, tied=False)
    torch.save(s, tmp_path / "model.pt")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_opens_to(tmp_path / "model.pt", s, "tanh", "minGPT")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n_head": 7}, r"d_model 30 is not divisible by n_head 7"),
        ({"n_layer": 10**9}, r"1000000000 layers"),
        ({"n_layer": 3}, r"transformer\.h\.2\.attn\.c_attn\.weight is missing"),
        ({"n_embd": 33}, r"has shape \[25, 30\], the config asks for \[25, 33\]"),
        ({"rotary": True}, r"not implemented: rotary = true"),
        ({"bias": False}, r"c_attn\.bias is not part of this model"),
        ({"n_head": None}, r"n_head is missing"),
    ],
)
def test_model_args_that_do_not_fit_are_refused(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    file = nanogpt(tmp_path, state(bias=True, tied=True), **changes)
    with pytest.raises(CheckpointError, match=says):
        open_model(str(file), device=CPU, dtype=torch.float32)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (None, r"the number of heads is in no tensor's shape"),
        ({"n_layer": LAYERS, "n_embd": C}, r"n_head"),
        ({"model_type": "gpt-nano"}, r"asks for \[25, 48\]"),
        ({"n_layer": LAYERS, "n_head": HEADS, "n_embd": C, "block_size": 99}, r"block_size 99"),
    ],
)
def test_mingpt_without_a_fitting_config_is_refused(config: Any, says: str, tmp_path: Path) -> None:
    torch.save(state(bias=True, tied=False), tmp_path / "model.pt")
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=says):
        open_model(str(tmp_path / "model.pt"), device=CPU, dtype=torch.float32)
