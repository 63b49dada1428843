"""Files of every format damaged at random and cut off anywhere: they open or are refused, with the
one error that opening has; nothing in them is unpickled, and memory stays within their size.

Memory is the process's peak while the files are opened, over what it held before (Linux only).
"""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from model.checkpoints.contents import CheckpointError
from model.checkpoints.families import FAMILIES
from model.checkpoints.native import FORMAT
from model.checkpoints.open import open_model
from model.checkpoints.settings import Settings
from model.config import GPTConfig
from model.gpt import GPT

ALLOWED = 64 * 2**20
CONFIG = GPTConfig(n_layer=1, d_model=8, n_head=2, vocab_size=11, n_ctx=6)
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 11,
    "max_position_embeddings": 16,
    "tie_word_embeddings": False,
}
NANO = {"n_layer": 1, "n_head": 2, "n_embd": 8, "block_size": 6, "vocab_size": 11, "bias": False}


def opens(path: Path) -> bool:
    """Whether it opened. Whatever is raised but CheckpointError goes through to the test."""
    try:
        open_model(str(path), device=torch.device("cpu"), dtype=torch.float32)
    except CheckpointError:
        return False
    return True


# One checkpoint of each format: a folder's files by name, or a single file.


def native_files() -> dict[str, bytes]:
    weights = save({name: weight.clone() for name, weight in GPT(CONFIG).state_dict().items()})
    described = {"format": FORMAT, "config": CONFIG.to_dict(), "weights_sha256": ""}
    return {"model.safetensors": weights, "config.json": json.dumps(described).encode()}


def llama_tensors() -> dict[str, Tensor]:
    family = FAMILIES["LlamaForCausalLM"]
    wanted = family.wanted(family.config(Settings(LLAMA, "here")))
    return {name: torch.full(want.shape, 0.1) for name, want in wanted.items()}


def hugging_face_files() -> dict[str, bytes]:
    return {
        "model.safetensors": save(llama_tensors()),
        "config.json": json.dumps(LLAMA).encode(),
        "generation_config.json": b'{"eos_token_id": 2}',
    }


def torch_files(*, zipped: bool) -> dict[str, bytes]:
    return {
        "pytorch_model.bin": saved(llama_tensors(), zipped=zipped),
        "config.json": json.dumps(LLAMA).encode(),
    }


def saved(value: Any, *, zipped: bool = True) -> bytes:
    import io

    out = io.BytesIO()
    torch.save(value, out, _use_new_zipfile_serialization=zipped)
    return out.getvalue()


def nanogpt_files() -> dict[str, bytes]:
    shapes = {"attn.c_attn": (24, 8), "attn.c_proj": (8, 8)}
    shapes |= {"mlp.c_fc": (32, 8), "mlp.c_proj": (8, 32)}
    made = {"transformer.wte.weight": torch.ones(11, 8), "transformer.wpe.weight": torch.ones(6, 8)}
    made |= {f"transformer.h.0.{name}.weight": torch.ones(s) for name, s in shapes.items()}
    for norm in ("h.0.ln_1", "h.0.ln_2", "ln_f"):
        made[f"transformer.{norm}.weight"] = torch.ones(8)
    made["lm_head.weight"] = made["transformer.wte.weight"]
    return {"ckpt.pt": saved({"model": made, "model_args": NANO})}


def llama2c_files() -> dict[str, bytes]:
    wide, mlp, layers, heads, vocabulary, context = 8, 16, 1, 2, 11, 16
    count = vocabulary * wide + layers * (4 * wide**2 + 3 * wide * mlp + 2 * wide) + wide
    count += context * wide // heads
    sizes = struct.pack("<7i", wide, mlp, layers, heads, heads, vocabulary, context)
    return {"m.bin": sizes + np.full(count, 0.1, "<f4").tobytes()}


def gguf_files(folder: Path) -> dict[str, bytes]:
    writer = gguf.GGUFWriter(folder / "made.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(16)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    shapes = {"token_embd": (11, 8), "output_norm": (8,), "output": (11, 8)}
    shapes |= {f"blk.0.attn_{name}": (8, 8) for name in ("q", "k", "v", "output")}
    shapes |= {"blk.0.attn_norm": (8,), "blk.0.ffn_norm": (8,)}
    shapes |= {"blk.0.ffn_gate": (16, 8), "blk.0.ffn_up": (16, 8), "blk.0.ffn_down": (8, 16)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.full(shape, 0.1, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {"m.gguf": (folder / "made.gguf").read_bytes()}


FORMATS: dict[str, Callable[[Path], dict[str, bytes]]] = {
    "native": lambda _: native_files(),
    "Hugging Face": lambda _: hugging_face_files(),
    "torch, zip": lambda _: torch_files(zipped=True),
    "torch, legacy": lambda _: torch_files(zipped=False),
    "nanoGPT": lambda _: nanogpt_files(),
    "llama2.c": lambda _: llama2c_files(),
    "GGUF": gguf_files,
}


class Checkpoint:
    """Files that can be put down whole or with one of them changed."""

    def __init__(self, folder: Path, files: dict[str, bytes]) -> None:
        self.folder, self.files = folder, files
        self.main = next(iter(files))
        self.path = folder if len(files) > 1 else folder / self.main
        folder.mkdir()

    def put(self, **changed: bytes) -> Path:
        """The path to open. A native folder says the hash of what was put down, so that damage
        meets what reads it and not the hash alone."""
        files = self.files | {self.main: changed.get("main", self.files[self.main])}
        if "config" in changed:
            files["config.json"] = changed["config"]
        if "native" in self.folder.name and "config" not in changed:
            described = json.loads(files["config.json"])
            described["weights_sha256"] = hashlib.sha256(files[self.main]).hexdigest()
            files["config.json"] = json.dumps(described).encode()
        for name, data in files.items():
            (self.folder / name).write_bytes(data)
        return self.path


@pytest.fixture(params=list(FORMATS))
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    kind = str(request.param)
    return Checkpoint(tmp_path / kind.replace(" ", "-"), FORMATS[kind](tmp_path))


@pytest.fixture(autouse=True)
def unpickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own unpickling, through which a file could call what it likes, is not to be met."""

    def met(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, met)


@pytest.fixture
def watched(checkpoint: Checkpoint, memory_within: Any) -> Iterator[Checkpoint]:
    assert opens(checkpoint.put()), "the whole one must open"
    with memory_within(sum(map(len, checkpoint.files.values())) + ALLOWED):
        yield checkpoint


def boundaries(data: bytes) -> list[int]:
    """Where to cut: each of the first and last bytes, around what looks like an edge within (a
    change from zeros or weights to something else, every power of two), and evenly between."""
    size = len(data)
    near = set(range(min(48, size))) | set(range(max(0, size - 24), size))
    edges = {2**power + by for power in range(3, 24) for by in (-1, 0, 1)}
    for mark in (b"PK", b"}", b"weight", b"GGUF", b".", b"\x80\x02"):
        place = data.find(mark)
        while place >= 0 and len(edges) < 400:
            edges |= {place, place + len(mark)}
            place = data.find(mark, place + max(1, size // 60))
    even = set(range(0, size, max(1, size // 60)))
    return sorted(cut for cut in near | edges | even if 0 <= cut < size)


def test_file_that_is_cut_off_anywhere_is_refused(watched: Checkpoint) -> None:
    whole = watched.files[watched.main]
    for cut in boundaries(whole):
        assert not opens(watched.put(main=whole[:cut])), f"cut at {cut} of {len(whole)}"


DAMAGE = st.lists(
    st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8), st.booleans()),
    min_size=1,
    max_size=4,
)
MANY = settings(
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@MANY
@given(damage=DAMAGE, at_the_head=st.booleans())
def test_damaged_file_opens_or_is_refused(
    damage: list[tuple[float, bytes, bool]], at_the_head: bool, watched: Checkpoint
) -> None:
    data = bytearray(watched.files[watched.main])
    for where, new, inserted in damage:
        place = int(where * (min(len(data), 600) if at_the_head else len(data)))
        data[place : place if inserted else place + len(new)] = new
    opens(watched.put(main=bytes(data)))


NUMBERS = st.integers() | st.floats() | st.sampled_from([0, -1, 2**31, 2**63, 10**30, 0.5])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=6) | st.just("llama3"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=5,
)


@pytest.mark.parametrize("checkpoint", ["native", "Hugging Face"], indirect=True)
@MANY
@given(data=st.data())
def test_config_with_any_value_anywhere_opens_or_is_refused(
    data: st.DataObject, watched: Checkpoint
) -> None:
    config = json.loads(watched.files["config.json"])
    weights = watched.files[watched.main]
    if "weights_sha256" in config:
        config["weights_sha256"] = hashlib.sha256(weights).hexdigest()
    fields = config["config"] if isinstance(config.get("config"), dict) else config
    more = ["rope_scaling", "rope_theta", "head_dim", "num_key_value_heads", "hidden_act"]
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from([*fields, *more]))
        fields[name] = data.draw(JSON)
        if data.draw(st.booleans()):
            del fields[name]
    opens(watched.put(config=json.dumps(config).encode()))


@pytest.mark.parametrize("checkpoint", ["Hugging Face"], indirect=True)
@MANY
@given(text=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_config_that_is_anything_at_all_is_refused(text: bytes, watched: Checkpoint) -> None:
    assert not opens(watched.put(config=text))


def test_unpickling_would_be_noticed() -> None:
    with pytest.raises(AssertionError, match="unpickled"):
        pickle.loads(b"N.")


@pytest.mark.parametrize("checkpoint", ["torch, zip", "torch, legacy", "nanoGPT"], indirect=True)
def test_pickle_that_names_a_call_is_refused_by_every_reader(checkpoint: Checkpoint) -> None:
    """A protocol-2 pickle, by hand: os.system("…") where the tensors should be."""
    called = b"\x80\x02cos\nsystem\nq\x00X\x04\x00\x00\x00exitq\x01\x85q\x02Rq\x03."
    assert not opens(checkpoint.put(main=called))
