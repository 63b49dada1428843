"""Token bytes and offsets against plain Python's own encoders, published ids, and worked cases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from model.tokenizer import (
    TextError,
    Token,
    TokenIdError,
    Tokenizer,
    TokenizerError,
    train_tokenizer,
)

GPT2 = Path(__file__).parents[2] / ".." / "shared" / "tokenizers" / "gpt2"
END = "<|endoftext|>"
CORPUS = [
    "The cat chased the mouse because it was hungry.",
    "“Where is it?” asked the mouse — ‘under the table’ … said the cat’s friend.",
    "猫追老鼠，因为它饿了。",
    "老鼠没看见它，因为它睡着了。",
    "👍🏽 👍 👍🏻 👩‍👩‍👧 naïve café Привет",
] * 20
CHINESE = "猫追老鼠，因为它饿了。"
FAMILY = "👩\u200d👩\u200d👧"

any_character = st.characters(exclude_categories=["Cs"])
snippets = st.sampled_from(
    [*CORPUS[:5], CHINESE, FAMILY, "👍🏽", " “", "e\u0301", "\ufffd", END, " "]
)
any_text = st.one_of(
    st.text(any_character), st.lists(st.one_of(snippets, st.text(any_character))).map("".join)
)


@pytest.fixture(scope="session")
def trained() -> Tokenizer:
    return train_tokenizer(CORPUS, 360)


@pytest.fixture(scope="session")
def gpt2() -> Tokenizer:
    if not (GPT2 / "encoder.json").exists():
        pytest.skip("GPT-2's encoder.json and vocab.bpe are not there")
    vocab, merges = models.BPE.read_file(str(GPT2 / "encoder.json"), str(GPT2 / "vocab.bpe"))
    return byte_level(models.BPE(vocab, merges))


def byte_level(model: models.Model, normalizer: normalizers.Normalizer | None = None) -> Tokenizer:
    inner = tokenizers.Tokenizer(model)
    if normalizer is not None:
        inner.normalizer = normalizer
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([END])
    return Tokenizer(inner)


def single_bytes() -> models.BPE:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return models.BPE({character: i for i, character in enumerate(alphabet)}, [])


def llama(*, legacy: bool) -> Tokenizer:
    """A SentencePiece vocabulary as converted for Llama: `▁`, byte fallback, `<s>` put first."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += ["▁", "a", "c", "e", "h", "t", "▁c", "at", "▁cat", "▁t", "he", "▁the"]
    merges = [("▁", "c"), ("a", "t"), ("▁c", "at"), ("▁", "t"), ("h", "e"), ("▁t", "he")]
    vocab = {name: i for i, name in enumerate(names)}
    inner = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    if legacy:
        prepend, replace = normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")
        inner.normalizer = normalizers.Sequence([prepend, replace])
    else:
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    spaces, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    inner.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), strip])
    inner.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    inner.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(inner)


def tokens_of(tokenizer: Tokenizer, text: str, **options: bool) -> list[Token]:
    return tokenizer.tokens(tokenizer.read(text, **options))


def characters_touched(text: str, start: int, end: int) -> list[int]:
    """The characters that hold any of the bytes start:end, one after another."""
    touched, begin = [], 0
    for index, character in enumerate(text):
        stop = begin + len(character.encode())
        if begin < end and start < stop:
            touched.append(index)
        begin = stop
    return touched


def check_places(text: str, tokens: list[Token]) -> None:
    """Everything that API.md says of offsets, where the tokens' bytes are the text's bytes."""
    data, utf16 = text.encode(), text.encode("utf-16-le")
    owner: dict[int, int] = {}
    for token in tokens:
        assert token.byte_start is not None
        assert token.byte_end is not None
        assert token.char_start is not None
        assert token.char_end is not None
        assert token.utf16_start is not None
        assert token.utf16_end is not None
        assert data[token.byte_start : token.byte_end] == bytes.fromhex(token.bytes_hex)
        touched = characters_touched(text, token.byte_start, token.byte_end)
        assert list(range(token.char_start, token.char_end)) == touched
        units = utf16[2 * token.utf16_start : 2 * token.utf16_end]
        assert units.decode("utf-16-le") == text[token.char_start : token.char_end]
        assert token.continuation == (data[token.byte_start] & 0b1100_0000 == 0b1000_0000)
        assert token.display == text[token.char_start + token.continuation : token.char_end]
        for character in touched:
            assert owner.setdefault(character, token.group) == token.group
    assert "".join(token.display for token in tokens) == text
    assert [token.index for token in tokens] == list(range(len(tokens)))
    for before, after in pairwise(tokens):
        shared = before.char_end != after.char_start
        assert after.group - before.group == (0 if shared else 1)
    assert not tokens or tokens[0].group == 0


@settings(deadline=None, max_examples=150)
@given(text=any_text)
def test_offsets_of_any_text(trained: Tokenizer, text: str) -> None:
    check_places(text, tokens_of(trained, text))


@settings(deadline=None, max_examples=60)
@given(text=any_text)
def test_offsets_of_any_text_with_gpt2(gpt2: Tokenizer, text: str) -> None:
    check_places(text, tokens_of(gpt2, text))


@settings(deadline=None, max_examples=100)
@given(text=any_text, parse_special=st.booleans())
def test_decode_of_encoded_text_gives_it_back(
    trained: Tokenizer, text: str, parse_special: bool
) -> None:
    assert trained.decode(trained.encode(text, parse_special=parse_special)) == text


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_offsets_of_any_ids_point_into_the_decoded_text(
    trained: Tokenizer, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, trained.vocab_size - 1)))
    encoded = trained.read_ids(ids)
    assert encoded.text == b"".join(map(trained.token_bytes, ids)).decode("utf-8", "replace")
    assert encoded.ids == ids
    tokens = trained.tokens(encoded)
    assert "".join(token.display for token in tokens) == encoded.text
    written = encoded.text.encode()
    for token in tokens:
        if token.special:
            continue
        assert token.byte_start is not None
        covered = encoded.text[token.char_start : token.char_end]
        exact = written[token.byte_start : token.byte_end] == bytes.fromhex(token.bytes_hex)
        assert exact or "\ufffd" in covered
        assert characters_touched(encoded.text, token.byte_start, token.byte_end or 0) == list(
            range(token.char_start or 0, token.char_end or 0)
        )


@pytest.mark.parametrize(
    "text",
    [
        "",
        CHINESE,
        "👍🏽",
        FAMILY,
        "cat 猫 cat 👍🏽!",
        "e\u0301te\u0301",
        " “hi” — naïve",
        "a\r\n\t b",
        "\x00",
    ],
)
def test_offsets_of_plain_cases(trained: Tokenizer, text: str) -> None:
    check_places(text, tokens_of(trained, text))


def test_chinese_is_one_token_a_character_after_training(trained: Tokenizer) -> None:
    tokens = tokens_of(trained, CHINESE)
    assert [token.display for token in tokens if token.display] == list(CHINESE)
    enough = train_tokenizer(CORPUS, 1000)
    assert [token.text for token in tokens_of(enough, CHINESE)] == list(CHINESE)
    assert [token.raw for token in tokens_of(enough, "猫")] == [
        "çĮ«"
    ]  # e7 8c ab in GPT-2's letters


def test_emoji_split_over_tokens_is_whole_on_the_first() -> None:
    tokens = tokens_of(byte_level(single_bytes()), "é👍🏽")
    assert [t.display for t in tokens] == ["é", "", "👍", "", "", "", "🏽", "", "", ""]
    assert [int(t.continuation) for t in tokens] == [0, 1, 0, 1, 1, 1, 0, 1, 1, 1]
    assert [t.group for t in tokens] == [0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert [(t.byte_start, t.byte_end) for t in tokens] == [(i, i + 1) for i in range(10)]
    assert {(t.char_start, t.char_end, t.utf16_start, t.utf16_end) for t in tokens[2:6]} == {
        (1, 2, 1, 3)
    }
    assert tokens[3].text == "\ufffd"
    assert tokens[3].bytes_hex == "9f"


def test_token_with_whole_characters_and_first_bytes_displays_both() -> None:
    vocab = {"a": 0, "Ġ": 1, "â": 2, "Ģ": 3, "ľ": 4, "Ŀ": 5, "Ġâ": 6, "ĠâĢ": 7, "ľa": 8, "ľaâ": 9}
    merges = [("Ġ", "â"), ("Ġâ", "Ģ"), ("ľ", "a"), ("ľa", "â")]
    inner = tokenizers.Tokenizer(models.BPE(vocab, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer(inner)
    # 20 e2 80 | 9c 61 e2 | 80 | 9d: a chain in which two characters are shared.
    tokens = tokens_of(tokenizer, " “a”")
    assert [t.id for t in tokens] == [7, 9, 3, 5]
    assert [t.display for t in tokens] == [" “", "a”", "", ""]
    assert [t.continuation for t in tokens] == [False, True, True, True]
    assert [t.group for t in tokens] == [0, 0, 0, 0]
    assert [(t.byte_start, t.byte_end) for t in tokens] == [(0, 3), (3, 6), (6, 7), (7, 8)]
    assert [(t.char_start, t.char_end) for t in tokens] == [(0, 2), (1, 4), (3, 4), (3, 4)]
    assert [t.text for t in tokens] == [" \ufffd", "\ufffda\ufffd", "\ufffd", "\ufffd"]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello, I'm a language model,", [15496, 11, 314, 1101, 257, 3303, 2746, 11]),
        ("Hello world", [15496, 995]),
        (END, [27, 91, 437, 1659, 5239, 91, 29]),
    ],
)
def test_gpt2_ids_equal_the_published_ones(gpt2: Tokenizer, text: str, ids: list[int]) -> None:
    assert gpt2.encode(text) == ids


def test_gpt2_tokens_of_a_character_and_a_part_of_another_number_59(gpt2: Tokenizer) -> None:
    """55 end with the first bytes of a character, 4 begin with the last bytes of one."""
    first_bytes, last_bytes = 0, 0
    for token_id in range(gpt2.vocab_size):
        data = gpt2.token_bytes(token_id)
        begun = data.lstrip(bytes(range(0x80, 0xC0)))  # what begins in this token
        whole = begun.decode("utf-8", "ignore")
        if whole and begun != whole.encode():
            first_bytes += 1
        elif whole and begun != data:
            last_bytes += 1
    assert (first_bytes, last_bytes) == (55, 4)
    opening, rest = tokens_of(gpt2, " “")
    assert (opening.id, opening.raw, opening.bytes_hex) == (564, "ĠâĢ", "20e280")
    assert (opening.display, opening.continuation) == (" “", False)
    assert (rest.display, rest.continuation, rest.group) == ("", True, 0)
    assert (rest.byte_start, rest.char_start, rest.char_end) == (3, 1, 2)


def test_gpt2_description_says_what_it_is(gpt2: Tokenizer) -> None:
    seen = gpt2.describe()
    assert (seen.kind, seen.vocab_size, seen.bos_id, seen.eos_id) == (
        "byte-level",
        50257,
        50256,
        50256,
    )
    assert (seen.adds_bos, seen.normalizes, seen.special_tokens) == (False, False, {END: 50256})


def test_special_spelling_is_text_unless_parsed(trained: Tokenizer) -> None:
    text = f"猫{END}cat"
    plain = tokens_of(trained, text)
    check_places(text, plain)
    assert not any(token.special for token in plain)
    assert trained.eos_id not in trained.encode(text)

    parsed = tokens_of(trained, text, parse_special=True)
    special = next(token for token in parsed if token.special)
    assert (special.id, special.raw, special.display) == (trained.eos_id, END, END)
    assert (special.byte_start, special.char_end, special.utf16_start) == (None, None, None)
    assert "".join(token.display for token in parsed) == text
    after = parsed[special.index + 1]
    assert (after.byte_start, after.char_start, after.utf16_start) == (16, 14, 14)
    assert after.group == special.group + 1 == parsed[special.index - 1].group + 2


def test_special_parsing_from_many_threads_never_mixes(trained: Tokenizer) -> None:
    def count(turn: int) -> int:
        ids = trained.encode(f"cat{END}" * 50, parse_special=turn % 2 == 1)
        return ids.count(trained.eos_id or 0)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(count, range(400))) == [0, 50] * 200


def test_bos_stands_before_the_text_when_added(trained: Tokenizer) -> None:
    encoded = trained.read(f"{END}cat", add_bos=True)
    bos, *rest = trained.tokens(encoded)
    assert encoded.bos_added
    assert (bos.id, bos.special, bos.byte_start, bos.group) == (trained.bos_id, True, None, 0)
    assert (rest[0].display, rest[0].byte_start, rest[0].group) == ("<", 0, 1)
    assert trained.encode("cat", add_bos=True) == [trained.bos_id, *trained.encode("cat")]


def test_bos_of_ids_stands_before_their_text_when_added(trained: Tokenizer) -> None:
    ids = trained.encode("cat")
    encoded = trained.read_ids(ids, add_bos=True)
    assert (encoded.text, encoded.ids, encoded.bos_added) == ("cat", [trained.bos_id, *ids], True)
    assert trained.tokens(encoded)[1].byte_start == 0
    given_by_hand = trained.read_ids([0, *ids])
    assert (given_by_hand.text, given_by_hand.bos_added) == (END + "cat", False)
    assert trained.tokens(given_by_hand)[1].byte_start == len(END)


def test_bos_asked_of_a_tokenizer_without_one_raises() -> None:
    inner = tokenizers.Tokenizer(single_bytes())
    inner.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer(inner)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.adds_bos) == (None, None, False)
    with pytest.raises(TokenizerError, match="no token begins a text"):
        tokenizer.encode("cat", add_bos=True)
    with pytest.raises(TokenizerError, match="no token begins a text"):
        Tokenizer(inner, adds_bos=True)
    with pytest.raises(TokenIdError, match="token id 256 is not in the vocabulary, 0 to 255"):
        Tokenizer(inner, bos_id=256)


def test_invalid_bytes_of_ids_share_one_replacement_character() -> None:
    tokenizer = byte_level(single_bytes())
    id_of = {tokenizer.token_bytes(i): i for i in range(256)}
    # c3 alone, then a thumb cut short after three bytes, then a real U+FFFD, then "é".
    data = b"\xc3" + b"\xf0\x9f\x91" + b"\xef\xbf\xbd" + b"\xc3\xa9"
    encoded = tokenizer.read_ids([id_of[bytes([byte])] for byte in data])
    assert encoded.text == "\ufffd\ufffd\ufffdé"
    tokens = tokenizer.tokens(encoded)
    assert [(t.byte_start, t.byte_end) for t in tokens] == [
        *((0, 3), (3, 6), (3, 6), (3, 6)),
        *((6, 7), (7, 8), (8, 9), (9, 10), (10, 11)),
    ]
    assert [t.char_start for t in tokens] == [0, 1, 1, 1, 2, 2, 2, 3, 3]
    assert [t.group for t in tokens] == [0, 1, 1, 1, 2, 2, 2, 3, 3]
    assert [t.display for t in tokens] == ["\ufffd", "\ufffd", "", "", "\ufffd", "", "", "é", ""]


@pytest.mark.parametrize("bad", [-1, 360, 2**40])
def test_id_outside_the_vocabulary_raises_with_its_index(trained: Tokenizer, bad: int) -> None:
    assert trained.vocab_size == 360
    with pytest.raises(TokenIdError, match=rf"token id {bad} at index 2 .* 0 to 359"):
        trained.decode([0, 1, bad])
    with pytest.raises(TokenIdError, match=rf"token id {bad} is not .* 0 to 359"):
        trained.token_text(bad)


def test_lone_surrogate_raises_with_its_position(trained: Tokenizer) -> None:
    with pytest.raises(TextError, match=r"character 2 is the lone surrogate U\+D83D") as caught:
        trained.encode("猫x\ud83dsecret")
    assert "secret" not in str(caught.value)


def test_training_twice_gives_the_same_tokenizer(trained: Tokenizer) -> None:
    assert train_tokenizer(CORPUS, 360).to_str() == trained.to_str()


def test_trained_vocabulary_holds_every_byte(trained: Tokenizer) -> None:
    spelled = {trained.token_bytes(i) for i in range(trained.vocab_size)}
    assert {bytes([byte]) for byte in range(256)} <= spelled
    least = train_tokenizer([], 257)
    assert least.vocab_size == 257
    assert least.decode(least.encode(CHINESE)) == CHINESE


def test_training_with_too_small_a_vocabulary_raises() -> None:
    with pytest.raises(TokenizerError, match=r"vocab_size is 256; .* need 257"):
        train_tokenizer(CORPUS, 256)


def test_han_characters_are_never_merged_with_their_neighbours() -> None:
    tokenizer = train_tokenizer(["猫猫猫 猫a猫，"] * 100, 2000)
    raw = [token.text for token in tokens_of(tokenizer, "猫猫a猫，")]
    assert raw == ["猫", "猫", "a", "猫", "，"]


def test_file_gives_the_same_tokenizer_back(trained: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(trained.to_str(), encoding="utf-8")
    loaded = Tokenizer.from_file(path)
    assert loaded.describe() == trained.describe()
    assert tokens_of(loaded, CORPUS[4]) == tokens_of(trained, CORPUS[4])


def test_file_that_is_no_tokenizer_raises(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"version": "1.0"}')
    with pytest.raises(TokenizerError, match=r"not a tokenizer\.json"):
        Tokenizer.from_file(path)
    with pytest.raises(FileNotFoundError):
        Tokenizer.from_file(tmp_path / "absent.json")


def test_tokenizer_of_unknown_spelling_raises() -> None:
    inner = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "cat": 1}, unk_token="[UNK]"))
    inner.decoder = decoders.CTC()
    with pytest.raises(TokenizerError, match="CTC is not supported"):
        Tokenizer(inner)


def test_vocabulary_name_outside_the_byte_alphabet_is_what_it_says() -> None:
    inner = tokenizers.Tokenizer(models.BPE({"a": 0, "<猫>": 1}, []))
    inner.decoder = decoders.ByteLevel()
    assert Tokenizer(inner).decode([1, 0]) == "<猫>a" == inner.decode([1, 0])


def test_truncation_and_padding_of_a_file_are_not_obeyed(trained: Tokenizer) -> None:
    inner = tokenizers.Tokenizer.from_str(trained.to_str())
    inner.enable_truncation(2)
    inner.enable_padding(length=50)
    assert Tokenizer.from_str(inner.to_str()).encode(CORPUS[0]) == trained.encode(CORPUS[0])


@pytest.mark.parametrize("legacy", [True, False])
def test_sentencepiece_offsets_leave_the_added_space_out(legacy: bool) -> None:
    tokenizer = llama(legacy=legacy)
    assert (tokenizer.kind, tokenizer.adds_bos, tokenizer.bos_id, tokenizer.eos_id) == (
        "metaspace",
        True,
        1,
        2,
    )
    text = "the cat 猫"
    bos, *tokens = tokens_of(tokenizer, text)
    assert (bos.raw, bos.byte_start) == ("<s>", None)
    assert [t.raw for t in tokens] == ["▁the", "▁cat", "▁", "<0xE7>", "<0x8C>", "<0xAB>"]
    assert [t.text for t in tokens] == [" the", " cat", " ", "\ufffd", "\ufffd", "\ufffd"]
    assert [t.display for t in tokens] == ["the", " cat", " ", "猫", "", ""]
    assert [t.byte_start for t in tokens] == [0, 3, 7, 8, 9, 10]
    assert [t.char_start for t in tokens] == [0, 3, 7, 8, 8, 8]

    decoded = tokenizer.read_ids([t.id for t in tokens])
    assert decoded.text == text
    assert [t.byte_start for t in tokenizer.tokens(decoded)] == [0, 3, 7, 8, 9, 10]


def test_sentencepiece_without_added_space_keeps_a_first_one() -> None:
    inner = tokenizers.Tokenizer(models.BPE({"▁": 0, "a": 1}, []))
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    tokenizer = Tokenizer(inner)
    assert tokenizer.decode(tokenizer.encode(" a")) == " a"
    check_places(" a a", tokens_of(tokenizer, " a a"))


def test_character_vocabulary_is_read_literally() -> None:
    inner = tokenizers.Tokenizer(models.WordLevel({"猫": 0, "a": 1, " ": 2}, unk_token="a"))
    inner.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    tokenizer = Tokenizer(inner)
    assert tokenizer.encode("猫 a") == [0, 2, 1]
    assert tokenizer.decode([0, 2, 1]) == "猫 a"
    check_places("猫 a", tokens_of(tokenizer, "猫 a"))


def test_offsets_of_a_normalizing_tokenizer_point_into_the_given_text() -> None:
    """NFC makes one character, c3 89, of E and its accent, Lowercase c3 a9 of that.

    The library counts the new character as E's, and the accent as nobody's.
    """
    normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer = byte_level(single_bytes(), normalizer)
    tokens = tokens_of(tokenizer, "👍E\u0301T", add_bos=True)[5:]
    assert tokenizer.describe().normalizes
    assert [t.bytes_hex for t in tokens] == ["c3", "a9", "74"]
    assert [(t.char_start, t.char_end) for t in tokens] == [(1, 2), (1, 2), (3, 4)]
    assert [(t.byte_start, t.byte_end) for t in tokens] == [(4, 5), (4, 5), (7, 8)]
    assert [(t.utf16_start, t.utf16_end) for t in tokens] == [(2, 3), (2, 3), (4, 5)]
    assert [t.display for t in tokens] == ["E", "", "T"]
    assert [t.continuation for t in tokens] == [False, True, False]
    assert [t.group for t in tokens] == [2, 2, 3]


@pytest.mark.parametrize("unit", [CHINESE, "\n \t", "👍🏽", "The cat. "])
def test_tokens_of_64_kib_end_where_the_text_ends(trained: Tokenizer, unit: str) -> None:
    """Anything quadratic in 65,536 bytes would take minutes here."""
    text = unit * (65536 // len(unit.encode()))
    tokens = tokens_of(trained, text)
    assert tokens[-1].byte_end == len(text.encode())
    assert tokens[-1].utf16_end == len(text.encode("utf-16-le")) // 2
