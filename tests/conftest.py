"""Small models of each family in native folders, and a client for each served over them.

The weights are random and large, so that attention is far from uniform and every switch shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from fastapi.testclient import TestClient

from model.checkpoints import native
from model.checkpoints.open import open_model
from model.config import GPTConfig
from model.gpt import GPT
from model.tokenizer import Tokenizer, train_tokenizer
from service.app import create_app
from service.settings import Settings

# Slow machines are no reason to fail, and examples that failed once are not kept between runs.
hypothesis.settings.register_profile("fluoroscope", deadline=None, database=None)
hypothesis.settings.load_profile("fluoroscope")

SENTENCES = [
    "The cat chased the mouse because it was hungry.",
    "Once upon a time there was a little girl who lived in a village near the forest.",
    "The animal did not cross the street because it was too tired.",
    "猫追老鼠，因为它饿了。",
    "从前有一个小女孩，她住在森林边的村子里。",
    "I love cats 我爱猫",
] * 3
VOCABULARY = 360
CONTEXT = 64
SHAPE: dict[str, Any] = {"n_layer": 3, "d_model": 48, "vocab_size": VOCABULARY, "n_ctx": CONTEXT}
LLAMA: dict[str, Any] = {
    "rope_pairing": "half",
    "norm": "rmsnorm",
    "norm_bias": False,
    "activation": "swiglu",
    "qkv_bias": False,
    "o_bias": False,
    "mlp_bias": False,
}
CONFIGS = {
    "course": GPTConfig(**SHAPE, n_head=4),
    "grouped": GPTConfig(**SHAPE, **LLAMA, n_head=6, n_kv_head=2, d_head=10, d_mlp=80),
    "learned": GPTConfig(**SHAPE, n_head=4, positions="learned", activation="gelu_tanh", tied=True),
    "parallel": GPTConfig(
        **SHAPE, n_head=4, rope_pairing="half", rotary_dim=6, parallel_residual=True
    ),
}


def with_large_weights(config: GPTConfig, seed: int = 0) -> GPT:
    """Matrices N(0, 0.2²); gains about 1, biases about 0, none of them exactly."""
    model = GPT(config).eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = 0.2 * torch.randn(weight.shape, generator=draw)
        gain = weight.dim() == 1 and name.endswith("weight")
        weight.copy_(1 + noise if gain else noise)
    return model


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer(SENTENCES, VOCABULARY)


@pytest.fixture(scope="session")
def folders(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A native checkpoint of each family, in float32."""
    root = tmp_path_factory.mktemp("models")
    for name, config in CONFIGS.items():
        native.save(root / name, with_large_weights(config), tokenizer, dtype=torch.float32)
    return {name: root / name for name in CONFIGS}


@pytest.fixture(scope="session")
def models(folders: Mapping[str, Path]) -> Mapping[str, GPT]:
    """The same, opened: their weights lie in memory as a server's do, so the bits are the same."""
    cpu = torch.device("cpu")
    return {
        name: open_model(str(folder), device=cpu, dtype=torch.float32).model
        for name, folder in folders.items()
    }


Serve = Callable[..., TestClient]


@pytest.fixture
def serve(folders: Mapping[str, Path]) -> Iterator[Serve]:
    """A client of its own server: `serve("course", max_tokens=8)`."""
    clients: list[TestClient] = []

    def start(family: str = "course", *, open_with: Any = None, **settings: Any) -> TestClient:
        app = create_app(Settings(model=str(folders[family]), **settings), open_with=open_with)
        client = TestClient(app, base_url="http://localhost").__enter__()
        clients.append(client)
        return client

    yield start
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture(scope="session")
def clients(folders: Mapping[str, Path]) -> Iterator[Mapping[str, TestClient]]:
    """One shared server for each family, with default settings."""
    running = {
        name: TestClient(create_app(Settings(model=str(folder))), base_url="http://localhost")
        for name, folder in folders.items()
    }
    for client in running.values():
        client.__enter__()
    yield running
    for client in running.values():
        client.__exit__(None, None, None)


@pytest.fixture(scope="session")
def client(clients: Mapping[str, TestClient]) -> TestClient:
    """The course-like model's server."""
    return clients["course"]


@pytest.fixture(params=list(CONFIGS))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)
