"""Oracles for the checkpoint tests: random transformers models, and comparison in every number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from model.capture import Capture
from model.gpt import GPT
from model.sites import SITES
from model.tap import Probe

Numbers = tuple[Tensor, Tensor]


class Oracles:
    """Small models of transformers with random weights, and what they and ours compute."""

    gate = 2e-5
    vocabulary = 61
    tokens = 72

    def make(self, kind: str, choices: dict[str, Any]) -> Any:
        """A model whose attention is far from uniform; `kind` as GPT2LMHead, Llama, …"""
        config = getattr(transformers, f"{kind.removesuffix('LMHead')}Config")
        named = f"{kind}Model" if kind.endswith("LMHead") else f"{kind}ForCausalLM"
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        made = getattr(transformers, named)(
            config(**(choices | ends), attn_implementation="eager")
        ).eval()
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, weight in made.named_parameters():
                noise = torch.randn(weight.shape, generator=draw)
                gain = 0.0 if weight.dim() > 1 or name.endswith("bias") else 1.0
                weight.copy_(0.17 * noise + gain)
        return made

    def ids(self) -> Tensor:
        draw = torch.Generator().manual_seed(7)
        return torch.randint(self.vocabulary, (1, self.tokens), generator=draw)

    @torch.no_grad()
    def ours(self, model: GPT) -> Numbers:
        """logits (T, V), patterns (L, H, T, T)"""
        sites = [SITES["attn.pattern"], SITES["logits"]]
        probe = Probe([Capture.resolve(site, {}, model.config, self.tokens) for site in sites])
        model(self.ids(), tap=probe)
        pattern, logits = (recording.values for recording in probe.recordings)
        assert pattern is not None and logits is not None
        return logits, pattern

    @torch.no_grad()
    def theirs(self, made: Any) -> Numbers:
        answer = made(self.ids(), output_attentions=True, use_cache=False)
        pattern = torch.stack(answer.attentions)[:, 0]
        assert pattern.std(-1).mean() > 0.02, "attention too uniform for this to show anything"
        return answer.logits[0], pattern

    @staticmethod
    def error(ours: Numbers, theirs: Numbers) -> float:
        """The largest difference of either, relative to magnitudes over 1."""
        pairs = zip(ours, theirs, strict=True)
        return max(float((a - b).abs().max() / max(1.0, float(b.abs().max()))) for a, b in pairs)


@pytest.fixture(scope="session")
def oracles() -> Oracles:
    return Oracles()


def status(key: str) -> int:
    """One of the kernel's counts of this process's memory, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    pytest.skip("this kernel does not say")


@contextmanager
def within(allowed: float) -> Iterator[None]:
    try:
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is held now
    except OSError:
        pytest.skip("the peak of memory cannot be set back here")
    before = status("VmRSS")
    yield
    grown = status("VmHWM") - before
    assert grown <= allowed, f"{grown / 2**20:.0f} MiB taken, {allowed / 2**20:.0f} allowed"


@pytest.fixture
def memory_within() -> Callable[[float], AbstractContextManager[None]]:
    """memory_within(n): fails where the process's peak grows by more than n bytes (Linux only)."""
    return within
