"""Tokenizers of every format against the libraries they come from, and with the right offsets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import sentencepiece
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from model.checkpoints import spm
from model.checkpoints.contents import CheckpointError
from model.checkpoints.gguf_header import read_header
from model.checkpoints.gguf_tokenizer import tokenizer_of
from model.checkpoints.llama2c import read_tokenizer
from model.checkpoints.tokenizer_files import tokenizer_in
from model.tokenizer import Tokenizer, train_tokenizer

SHARED = Path(__file__).parents[4] / "shared"
TEXTS = [
    "The cat chased the mouse because it was hungry.",
    "the cat's mice weren't theirs: they'll see 2026 more",
    "  two  spaces and a\ttab\n",
    "猫追老鼠，因为它饿了。",
    "今天的猫 and the mouse 一起玩",
    "naïve café — “quoted” ﬁne ①",
    "👩‍🔬👍🏽",
    "1234567 in 12 parts",
]
CORPUS = [text for text in TEXTS for _ in range(3)] + [f"{i} {i * 7}" for i in range(30)]


def displayed(tokenizer: Tokenizer, text: str) -> str:
    return "".join(token.display for token in tokenizer.tokens(tokenizer.read(text, add_bos=False)))


# SentencePiece

KINDS: dict[str, dict[str, Any]] = {
    "as Llama's": {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
        "vocab_size": 420,
    },
    "bpe with its defaults": {"model_type": "bpe", "vocab_size": 150, "character_coverage": 0.98},
    "without a space before": {
        "model_type": "bpe",
        "byte_fallback": True,
        "add_dummy_prefix": False,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "vocab_size": 420,
        "user_defined_symbols": ["<sep>"],
    },
    "unigram": {"model_type": "unigram", "vocab_size": 100},
    "unigram with bytes": {"model_type": "unigram", "vocab_size": 360, "byte_fallback": True},
}


@pytest.fixture(scope="module", params=KINDS)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Any, Tokenizer]:
    """A SentencePiece model trained here: its name, itself, and ours of the same file."""
    folder = tmp_path_factory.mktemp("spm")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(folder / "tokenizer"),
        minloglevel=3,
        num_threads=1,
        **KINDS[request.param],
    )
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    ours = tokenizer_in(folder)
    assert ours is not None
    return request.param, theirs, ours


@pytest.mark.parametrize("text", TEXTS)
def test_a_sentencepiece_model_gives_the_ids_of_its_own_library(
    text: str, pair: tuple[str, Any, Tokenizer]
) -> None:
    _, theirs, ours = pair
    assert ours.encode(text, add_bos=False) == theirs.encode(text)


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from("the catmous猫追老鼠，饿é  \n12<s>")))
def test_any_mixture_gives_the_ids_of_its_own_library(
    pair: tuple[str, Any, Tokenizer], text: str
) -> None:
    name, theirs, ours = pair
    if name in ("as Llama's", "without a space before"):
        assert ours.encode(text, add_bos=False) == theirs.encode(text)
        assert displayed(ours, text) == text
        assert ours.decode(ours.encode(text, add_bos=False)) == text


def test_sentencepiece_begins_with_bos_unless_told_otherwise(
    pair: tuple[str, Any, Tokenizer], tmp_path: Path
) -> None:
    _, theirs, ours = pair
    assert ours.adds_bos and ours.encode("cat")[0] == theirs.bos_id() == ours.bos_id
    assert ours.eos_id == theirs.eos_id() and ours.vocab_size == theirs.vocab_size()
    (tmp_path / "tokenizer.model").write_bytes(theirs.serialized_model_proto())
    about = {
        "add_bos_token": False,
        "added_tokens_decoder": {
            "1": {"content": "<s>", "special": True},
            str(theirs.vocab_size()): {"content": "<|im_start|>", "special": True},
        },
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    other = tokenizer_in(tmp_path)
    assert other is not None and not other.adds_bos
    assert other.encode("<|im_start|>", parse_special=True) == [theirs.vocab_size()]


def message(*fields: tuple[int, bytes | int]) -> bytes:
    """A protobuf message of small fields."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += bytes([number << 3, value])
        else:
            out += bytes([number << 3 | 2, len(value)]) + value
    return out


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x0a\xff\xff\xff\xff\x7f", r"a field of 34,359,738,367 bytes"),
        (b"\x0a\x05ab", r"a field of 5 bytes"),
        (b"\xff" * 12, r"a number without end"),
        (b"\x0b", r"wire type 3"),
        (message((2, message((3, 3)))), r"model type 3"),
        (message((1, message((1, b"\xff")))), r"not a SentencePiece model"),
        (message((2, message((3, 2))), (1, message((1, b"a"))), (1, message((1, b"a")))), r"twice"),
        (message((1, message((1, b"a")))), r"needs an unknown piece"),
    ],
)
def test_a_damaged_sentencepiece_model_is_refused(data: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(CheckpointError, match=says):
        tokenizer_in(tmp_path)


# Byte-level BPE


@pytest.fixture(scope="module")
def bpe() -> dict[str, Any]:
    """Vocabulary and merges of a small byte-level BPE."""
    model: dict[str, Any] = json.loads(train_tokenizer(CORPUS, 420).to_str())["model"]
    return model


def write_bpe(folder: Path, bpe: dict[str, Any], **about: Any) -> None:
    merges = "".join(f"{left} {right}\n" for left, right in bpe["merges"])
    (folder / "vocab.json").write_text(json.dumps(bpe["vocab"]), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + merges, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


def test_gpt2_s_published_ids() -> None:
    folder = SHARED / "tokenizers" / "gpt2"
    if not folder.is_dir():
        pytest.skip("no ../shared/tokenizers/gpt2")
    gpt2 = tokenizer_in(folder)
    assert gpt2 is not None
    assert gpt2.encode("Hello, my dog is cute") == [15496, 11, 616, 3290, 318, 13779]
    assert gpt2.encode("<|endoftext|>", parse_special=True) == [50256] == [gpt2.bos_id]
    assert gpt2.vocab_size == 50257 and not gpt2.adds_bos
    assert [displayed(gpt2, text) for text in TEXTS] == TEXTS


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "Qwen2Tokenizer"])
def test_vocab_and_merges_give_the_ids_of_transformers(
    kind: str, bpe: dict[str, Any], tmp_path: Path
) -> None:
    merges = [tuple(pair) for pair in bpe["merges"]]
    theirs = getattr(transformers, kind)(vocab=bpe["vocab"], merges=merges)
    write_bpe(tmp_path, bpe, tokenizer_class=kind)
    ours = tokenizer_in(tmp_path)
    assert ours is not None
    for text in TEXTS:
        assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids
        assert displayed(ours, text) == text


@pytest.mark.parametrize("rule", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_a_gguf_tokenizer_cuts_as_its_family_does(
    rule: str, bpe: dict[str, Any], tmp_path: Path
) -> None:
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].get)
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token == "<|endoftext|>" else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in bpe["merges"]])
    writer.add_eos_token_id(bpe["vocab"]["<|endoftext|>"])
    ours = from_gguf(writer, tmp_path)
    assert ours is not None and ours.adds_bos == (rule == "llama-bpe")
    numbers = [token.raw for token in ours.tokens(ours.read("12345", add_bos=False))]
    if rule in ("smollm", "qwen2"):
        assert numbers == ["1", "2", "3", "4", "5"]
    for text in TEXTS:
        assert displayed(ours, text) == text
        assert ours.decode(ours.encode(text, add_bos=False)) == text
    assert ours.encode("<|endoftext|>", add_bos=False, parse_special=True) == [ours.eos_id]


def from_gguf(writer: Any, tmp_path: Path) -> Tokenizer | None:
    writer.add_tensor("a", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokenizer, notes = tokenizer_of(read_header(tmp_path / "t.gguf").metadata, tmp_path)
    assert (tokenizer is None) == bool(notes)
    return tokenizer


def test_a_gguf_vocabulary_of_sentencepiece_is_the_one_it_was_made_from(tmp_path: Path) -> None:
    file = SHARED / "checkpoints" / "stories260K" / "tok512.bin"
    if not file.is_file():
        pytest.skip("no ../shared/checkpoints/stories260K")
    stories = read_tokenizer(file, 512)
    raw = [stories.tokens(stories.read_ids([i]))[0].raw for i in range(512)]
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(raw)
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(512 - 259)])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (512 - 259))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    ours = from_gguf(writer, tmp_path)
    assert ours is not None and ours.adds_bos
    assert [ours.encode(text) for text in TEXTS] == [stories.encode(text) for text in TEXTS]


def test_a_gguf_tokenizer_that_is_not_implemented_is_noted(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("tekken")
    assert from_gguf(writer, tmp_path) is None


@pytest.mark.parametrize(
    "spoil",
    [
        {"tokenizer.ggml.tokens": ["a", "a"]},
        {"tokenizer.ggml.tokens": 3},
        {"tokenizer.ggml.merges": ["ab"]},
        {"tokenizer.ggml.merges": ["a q"]},
        {"tokenizer.ggml.token_type": [1]},
        {"tokenizer.ggml.bos_token_id": 99},
    ],
)
def test_a_damaged_gguf_tokenizer_is_refused(spoil: dict[str, Any]) -> None:
    whole = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
    }
    assert tokenizer_of(whole, Path("here"))[0] is not None
    with pytest.raises(CheckpointError, match="here: its tokenizer is damaged"):
        tokenizer_of(whole | spoil, Path("here"))


# WordPiece

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "mouse", "cha", "##sed"]
WORDS += [*"猫追老鼠因为它饿了今天的一起玩，。.,':", *"0123456789", "and", "##1", "##2"]


@pytest.mark.parametrize("lower", [True, False])
def test_a_bert_vocabulary_gives_the_ids_of_transformers(lower: bool, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    theirs = transformers.BertTokenizer(
        vocab={word: i for i, word in enumerate(WORDS)}, do_lower_case=lower
    )
    ours = tokenizer_in(tmp_path)
    assert ours is not None and not ours.adds_bos and ours.describe().normalizes
    assert (ours.bos_id, ours.eos_id) == (WORDS.index("[CLS]"), WORDS.index("[SEP]"))
    for text in TEXTS:
        assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids


def test_chinese_through_a_bert_vocabulary_keeps_its_offsets(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    ours = tokenizer_in(tmp_path)
    assert ours is not None
    for text in ("猫追老鼠，因为它饿了。", "今天的猫 and The mouse，一起玩", "龘猫cats"):
        data = text.encode()
        for token in ours.tokens(ours.read(text)):
            assert token.char_start is not None and token.byte_start is not None
            cut = text[token.char_start : token.char_end]
            assert data[token.byte_start : token.byte_end].decode() == cut
            assert cut.strip().lower() in (token.text.strip(), "龘")
    assert ours.decode(ours.encode("猫追老鼠，因为它饿了。")) == "猫追老鼠，因为它饿了。"
    assert ours.decode(ours.encode("the cats chased the mouse.")) == "the cats chased the mouse."


# The folder


def test_a_tokenizer_json_takes_its_bos_policy_from_the_config(tmp_path: Path) -> None:
    trained = train_tokenizer(CORPUS, 300, ["<|begin|>", "<|end|>"])
    (tmp_path / "tokenizer.json").write_text(trained.to_str(), encoding="utf-8")
    for adds in (True, False):
        about = {"add_bos_token": adds, "bos_token": {"content": "<|begin|>"}}
        about["eos_token"] = "<|end|>"
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
        ours = tokenizer_in(tmp_path)
        assert ours is not None
        assert (ours.bos_id, ours.eos_id, ours.adds_bos) == (0, 1, adds)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True}))
    ours = tokenizer_in(tmp_path)
    assert ours is not None and not ours.adds_bos  # no token is named to begin with


def test_no_file_means_no_tokenizer(tmp_path: Path) -> None:
    assert tokenizer_in(tmp_path) is None


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer.json": "{}"},
        {"tokenizer.json": "{"},
        {"vocab.json": "[1]", "merges.txt": ""},
        {"vocab.json": '{"a": 0}', "merges.txt": "a b c\n"},
        {"vocab.json": '{"a": 0}', "merges.txt": "a b\n"},
        {"vocab.txt": "a\na\n"},
        {"tokenizer_config.json": "[", "tokenizer.json": "{}"},
    ],
)
def test_damaged_files_are_refused_by_name(files: dict[str, str], tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match=next(iter(files)).replace(".", r"\.")):
        tokenizer_in(tmp_path)


def test_pieces_are_read_as_they_were_written() -> None:
    """The library's own merges: the pieces with the highest score first."""
    pieces = [spm.Piece("<unk>", 0.0, spm.UNKNOWN)]
    pieces += [spm.Piece(text, -float(i)) for i, text in enumerate(["abc", "ab", "bc", *"abc"])]
    ours = spm.build(spm.Pieces(pieces=pieces, adds_space=False), adds_bos=False)
    model = json.loads(ours.to_str())["model"]
    assert [tuple(pair) for pair in model["merges"]][:2] == [("ab", "c"), ("a", "bc")]
    assert isinstance(tokenizers.Tokenizer.from_str(ours.to_str()), tokenizers.Tokenizer)
