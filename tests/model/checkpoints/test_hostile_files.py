"""Files that are cut off, damaged or made to hurt: an error, and no memory beyond the file's size.

Memory is the process's peak while the file is opened, over what it held before (Linux only).
"""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from model.checkpoints import native
from model.checkpoints.contents import CheckpointError
from model.checkpoints.open import open_model
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
}


def open_it(path: Path) -> None:
    open_model(str(path), device=torch.device("cpu"), dtype=torch.float32)


Refused = Callable[[Path, str], None]


@pytest.fixture
def refused(memory_within: Any) -> Refused:
    """Opens what must not open, and watches the memory meanwhile."""

    def refuse(path: Path, says: str) -> None:
        files = [path] if path.is_file() else list(path.iterdir())
        size = sum(file.stat().st_size for file in files)
        with memory_within(size + ALLOWED), pytest.raises(CheckpointError, match=says):
            open_it(path)

    return refuse


def test_the_measure_of_memory_sees_what_is_taken(memory_within: Any) -> None:
    with pytest.raises(AssertionError, match="MiB taken"), memory_within(64 * 2**20):
        assert bytearray(b"1") * (100 * 2**20)


# safetensors, in a folder of ours


def safetensors(
    header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None
) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def of(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def native_folder(folder: Path, weights: bytes, **config: Any) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(weights)
    description = {
        "format": native.FORMAT,
        "config": CONFIG.to_dict() | config,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }
    (folder / "config.json").write_text(json.dumps(description))
    return folder


def good_weights() -> bytes:
    return save({name: weight.clone() for name, weight in GPT(CONFIG).state_dict().items()})


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (b"", r"model\.safetensors"),
        (b"\x01", r"model\.safetensors"),
        (safetensors(b"{", length=2**62), r"claims 4,611,686,018,427,387,904 bytes"),
        (safetensors(b"{}", length=5_000_000), r"model\.safetensors"),
        (safetensors(b"[" * 100_000), r"model\.safetensors"),
        (safetensors({"embed.weight": of([10**12, 10**3], 0, 4 * 10**15)}), r"model\.safetensors"),
        (safetensors({"embed.weight": of([2**40, 2**40], 0, 4)}, b"1234"), r"model\.safetensors"),
        (safetensors({"embed.weight": of([1], -4, 0)}, b"1234"), r"model\.safetensors"),
        (
            safetensors({"a": of([1], 0, 4), "b": of([1], 0, 4)}, b"1234"),
            r"model\.safetensors",
        ),
        (safetensors({"embed.weight": of([10**15, 0], 0, 0)}), r"1000000000000000, 0\]"),
        (safetensors(b" " * 50_000_000), r"claims 50,000,000 bytes"),
    ],
)
def test_a_safetensors_file_that_lies(
    refused: Refused, weights: bytes, says: str, tmp_path: Path
) -> None:
    refused(native_folder(tmp_path / "model", weights), says)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"n_layer": 10**12}, r"1000000000000 layers"),
        ({"vocab_size": 10**15}, r"embed\.weight has shape"),
        ({"d_model": 2 * 10**17, "vocab_size": 10**17}, r"no model can have|has shape"),
        ({"d_mlp": 10**14}, r"mlp\.up\.weight has shape"),
        ({"n_ctx": 10**15, "positions": "learned"}, r"pos_embed\.weight is missing"),
        ({"n_layer": "two"}, r"n_layer is 'two'"),
        ({"rope_scaling": {"kind": "linear"}}, r"config\.json"),
        ({"rope_scaling": {"kind": "longrope", "factor": 2.0}}, r"kind is 'longrope'"),
        ({"norm": "batchnorm"}, r"norm is 'batchnorm'; it must be one of layernorm, rmsnorm"),
        ({"rope_scaling": 7}, r"config\.json"),
        ({"windowed_layers": 7}, r"config\.json"),
    ],
)
def test_a_config_that_lies(
    refused: Refused, config: dict[str, Any], says: str, tmp_path: Path
) -> None:
    refused(native_folder(tmp_path / "model", good_weights(), **config), says)


def test_weights_that_were_changed_after_they_were_written(
    refused: Refused, tmp_path: Path
) -> None:
    folder = native_folder(tmp_path / "model", good_weights())
    open_it(folder)
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    refused(folder, r"its sha256 is [0-9a-f]{64}, config\.json says")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 200_000, r"not JSON"),
        ('{"a": ' * 100_000, r"not JSON"),
        ("{" + " " * (64 * 2**20), r"are too many for JSON"),
        ('{"num_hidden_layers": 1e400}', r"config\.json"),
    ],
)
def test_a_config_json_made_to_hurt(refused: Refused, text: str, says: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(text)
    refused(folder, says)


# files of torch.save


def hugging_face_folder(folder: Path, weights: bytes) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "pytorch_model.bin").write_bytes(weights)
    return folder


class Calls:
    """Pickled, it asks whoever unpickles it to call a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], Any]:
        return self.call


def zipped(pickled: bytes, compression: int = zipfile.ZIP_STORED, **parts: bytes) -> bytes:
    import io

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", b"3\n")
        archive.writestr("archive/byteorder", b"little")
        for name, part in parts.items():
            archive.writestr(f"archive/{name}", part)
    return out.getvalue()


def pickled_tensor(numel: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    """The pickle of {"w": a tensor}, as torch.save writes it: protocol 2, a persistent storage."""

    class Persistent(pickle._Pickler):  # type: ignore[misc]
        def persistent_id(self, value: Any) -> Any:
            return value[1:] if isinstance(value, tuple) and value[:1] == ("here",) else None

    import io

    out = io.BytesIO()
    storage = ("here", "storage", torch.FloatStorage, "0", "cpu", numel)
    rebuild = torch._utils._rebuild_tensor_v2
    tensor = Calls(rebuild, storage, 0, shape, stride, False, OrderedDict())
    Persistent(out, protocol=2).dump({"w": tensor})
    return out.getvalue()


def test_the_files_made_here_are_like_those_of_torch(refused: Refused, tmp_path: Path) -> None:
    data = zipped(pickled_tensor(4, (2, 2), (2, 1)), **{"data/0": struct.pack("<4f", 1, 2, 3, 4)})
    (tmp_path / "w.pt").write_bytes(data)
    loaded = torch.load(tmp_path / "w.pt", weights_only=True)
    assert torch.equal(loaded["w"], torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    refused(hugging_face_folder(tmp_path / "model", data), r"w is not part of this model")


RUN = pickle.dumps({"w": Calls(print, "this must not be printed")}, protocol=2)
TAKE = pickle.dumps({"w": Calls(bytearray, 10**12)}, protocol=2)
STACK = pickle.dumps({"w": Calls(print, "this must not be printed")}, protocol=4)
PARTS = {"data/0": b"\0" * 16}


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (b"", r"pytorch_model\.bin"),
        (b"PK\x03\x04", r"pytorch_model\.bin"),
        (zipped(RUN)[:-30], r"pytorch_model\.bin"),
        (zipped(RUN), r"its pickle names (builtins|__builtin__) print; only tensors"),
        (RUN, r"names (builtins|__builtin__) print|not a file of torch\.save"),
        (zipped(STACK), r"an object by STACK_GLOBAL"),
        (zipped(TAKE), r"names (builtins|__builtin__) bytearray"),
        (zipped(b"\x80\x02N."), r"holds NoneType, not tensors by name"),
        (zipped(b"\x80\x02}q\x00."), r"asks for 1 layers, but there are only 0 tensors"),
        (zipped(b"\x80\x02]r\xff\xff\xff\x7f."), r"numbers 2,147,483,647 objects"),
        (zipped(b"\x80\x02]\x94."), r"pytorch_model\.bin"),
        (zipped(b"not a pickle"), r"not a file of torch\.save"),
        (zipped(pickle.dumps({"w": 3}, protocol=2)), r"'w' is int, not a tensor"),
        (zipped(pickle.dumps({3: 3}, protocol=2)), r"3 is int, not a tensor"),
        (zipped(pickled_tensor(10**12, (10**6, 10**6), (10**6, 1)), **PARTS), r"model\.bin"),
        (zipped(pickled_tensor(4, (10**6, 10**6), (0, 0)), **PARTS), r"claims .* over 16 bytes"),
        (zipped(pickled_tensor(4, (10**6, 10**6), (10**6, 1)), **PARTS), r"model\.bin"),
        (zipped(pickled_tensor(4, (2, 2), (2, 1))), r"model\.bin"),
        (
            zipped(
                pickled_tensor(2**26, (2**13, 2**13), (2**13, 1)),
                zipfile.ZIP_DEFLATED,
                **{"data/0": b"\0" * 2**28},
            ),
            r"it is compressed",
        ),
    ],
)
def test_a_pickle_that_is_no_state_dict(
    refused: Refused, weights: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(hugging_face_folder(tmp_path / "model", weights), says)
    assert "must not be printed" not in capsys.readouterr().out


def test_a_zip_whose_parts_claim_more_than_there_is(refused: Refused, tmp_path: Path) -> None:
    data = bytearray(zipped(pickled_tensor(4, (2, 2), (2, 1)), **PARTS))
    entry = data.rindex(b"PK\x01\x02")  # the central directory's last: sizes at 20 and 24
    data[entry + 20 : entry + 28] = struct.pack("<II", 2**31, 2**31)
    refused(hugging_face_folder(tmp_path / "model", bytes(data)), r"claim more bytes")


@pytest.mark.parametrize("keep", [0.0, 0.2, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_a_file_of_torch_that_was_cut_off(
    refused: Refused, keep: float, new: bool, tmp_path: Path
) -> None:
    torch.save({"w": torch.zeros(5000)}, tmp_path / "w.pt", _use_new_zipfile_serialization=new)
    data = (tmp_path / "w.pt").read_bytes()
    refused(hugging_face_folder(tmp_path / "model", data[: int(keep * len(data))]), r"model\.bin")


def test_a_legacy_file_that_claims_a_storage_of_terabytes(refused: Refused, tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(5000)}, tmp_path / "w.pt", _use_new_zipfile_serialization=False)
    data = (tmp_path / "w.pt").read_bytes()
    number = b"M" + struct.pack("<H", 5000)  # BININT2, three times: storage, size, and once more
    assert number in data
    huge = b"\x8a\x06" + (10**12).to_bytes(6, "little")  # LONG1
    refused(hugging_face_folder(tmp_path / "model", data.replace(number, huge)), r"model\.bin")


# single files


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("m.pt", b"\x80\x02]q\x00.", r"m\.pt"),
        ("m.pt", zipped(RUN), r"names (builtins|__builtin__) print"),
        ("m.gguf", b"GGUF", r"not a whole GGUF file"),
        ("m.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 0), r"architecture None"),
        (
            "m.gguf",
            b"GGUF"
            + struct.pack("<IQQ", 3, 0, 1)
            + struct.pack("<Q", 1)
            + b"k"
            + struct.pack("<IIQ", 9, 9, 1) * 1000,
            r"a list of type 9",
        ),
        (
            "m.gguf",
            b"GGUF"
            + struct.pack("<IQQ", 3, 0, 1)
            + struct.pack("<Q", 1)
            + b"k"
            + struct.pack("<IIQ", 9, 8, 2**60),
            r"counts",
        ),
        (
            "m.gguf",
            b"GGUF"
            + struct.pack("<IQQ", 3, 0, 1)
            + struct.pack("<Q", 1)
            + b"k"
            + struct.pack("<IIQ", 9, 8, 10**6)
            + b"\0" * 9_000_000,
            r"architecture None|not a whole",
        ),
        ("m.bin", struct.pack("<7i", 2**30, 2**30, 2**30, 2, 2, 2**30, 2**30), r"asks for"),
        ("m.bin", b"\0" * 28, r"n_layer is 0"),
        ("m.bin", b"", r"not a llama2\.c file"),
        ("m.txt", b"hello", r"not a file of a known format"),
    ],
)
def test_a_single_file_that_is_no_checkpoint(
    refused: Refused, name: str, data: bytes, says: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    refused(tmp_path / name, says)
