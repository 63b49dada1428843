"""Taps under torch.compile: a tap is an argument, so it fires there as well."""

from __future__ import annotations

import torch

from model.capture import Capture
from model.config import GPTConfig
from model.edit import Edit
from model.gpt import GPT
from model.sites import SITES
from model.tap import Probe

CONFIG = GPTConfig(n_layer=2, d_model=32, n_head=2, vocab_size=50, n_ctx=16)
IDS = torch.arange(12)[None]


def read(model: torch.nn.Module, *, edited: bool) -> dict[str, torch.Tensor]:
    captures = [
        Capture.resolve(SITES[site], {}, CONFIG, 12)
        for site in ("attn.pattern", "attn.result", "resid_post", "logits")
    ]
    edits = []
    if edited:
        edits = [Edit.resolve("zero", SITES["attn.z"], {"layer": [0], "head": [1]}, CONFIG, 12)]
    probe = Probe(captures, edits)
    with torch.inference_mode():
        model(IDS, tap=probe)
    return {r.capture.name: r.values for r in probe.recordings if r.values is not None}


def test_probe_gives_the_same_under_compile() -> None:
    # The eager backend traces the whole model without needing a compiler on the machine.
    plain = GPT(CONFIG, seed=3).eval()
    compiled = torch.compile(GPT(CONFIG, seed=3).eval(), backend="eager")
    bare, edited = read(plain, edited=False), read(plain, edited=True)
    assert not torch.equal(bare["logits"], edited["logits"])
    for want, got in (
        (bare, read(compiled, edited=False)),
        (edited, read(compiled, edited=True)),
    ):
        assert want.keys() == got.keys()
        for name in want:
            torch.testing.assert_close(got[name], want[name], rtol=0, atol=1e-6)
