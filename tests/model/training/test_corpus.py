"""Files → documents → tokens: what is read, what is refused, what is never trained on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from model.tokenizer import Tokenizer, train_tokenizer
from model.training.corpus import (
    SECTION_CHARACTERS,
    CorpusError,
    find_sources,
    is_held_out,
    read_documents,
)
from model.training.tokens import cut_source


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["the cat and the dog 猫狗"] * 4, 300)


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def texts(path: Path) -> list[str]:
    return [document.text for document in read_documents(path)]


def test_txt_is_cut_at_separator_lines_only(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "one\n<|endoftext|>\nsays <|endoftext|> inside\n\ntwo\n")
    assert texts(path) == ["one", "says <|endoftext|> inside\n\ntwo"]


def test_tsv_gives_both_orders_in_one_unit(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", 'Hi.\t你好。\tby "someone\nRun.\t跑。\n')
    documents = read_documents(path)
    assert [d.text for d in documents] == ["Hi.\n你好。", "你好。\nHi.", "Run.\n跑。", "跑。\nRun."]
    assert [d.unit for d in documents] == [0, 0, 1, 1]


def test_tsv_translations_of_one_sentence_share_a_unit(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "Wait!\t等等！\nGo.\t走。\nWait!\t等一下！\n")
    assert {d.unit for d in read_documents(path) if "Wait!" in d.text} == {0}


def test_jsonl_gives_the_text_field(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "猫\n狗"}), "", json.dumps({"text": "b", "id": 3})]
    assert texts(write(tmp_path, "a.jsonl", "\n".join(lines))) == ["猫\n狗", "b"]


def test_same_text_twice_is_one_document(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "x\n<|endoftext|>\ny\n<|endoftext|>\nx\n")
    assert texts(path) == ["x", "y"]


def test_long_text_is_cut_at_line_ends(tmp_path: Path) -> None:
    lines = [f"{number:05d} ghi" for number in range(2 * SECTION_CHARACTERS // 10)]
    sections = texts(write(tmp_path, "a.txt", "\n".join(lines)))
    assert len(sections) == 2
    assert all(len(s) <= SECTION_CHARACTERS and s.endswith("ghi") for s in sections)
    assert "\n".join(sections).split("\n") == lines


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "holds no text"),
        ("a.txt", b" \n<|endoftext|>\n\n", "holds no text"),
        ("a.txt", b"ab\ncd\xff", r"byte 0xff at offset 5 \(line 2\)"),
        ("a.txt", b"\xef\xbb\xbfab\xff", r"byte 0xff at offset 5 \(line 1\)"),
        ("a.tsv", b"a\tb\nalone\n", "line 2 has no two columns"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 3}\n', "line 2 has no text field"),
        ("a.jsonl", b"{oops\n", "line 1 is not JSON"),
        ("a.csv", b"a", "ends in none of"),
    ],
)
def test_file_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(CorpusError, match=message) as caught:
        read_documents(path)
    assert str(path) in str(caught.value)


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "a.txt"
    folder.mkdir()
    with pytest.raises(CorpusError, match=r"a\.txt cannot be read"):
        read_documents(folder)


def test_folder_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="holds no source"):
        find_sources(tmp_path)
    with pytest.raises(CorpusError, match="is no folder"):
        find_sources(tmp_path / "missing")


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "x")
    write(tmp_path, "a.tsv", "x\ty")
    with pytest.raises(CorpusError, match="both named 'a'"):
        find_sources(tmp_path)


def test_one_unit_in_so_many_is_held_out() -> None:
    assert [unit for unit in range(150) if is_held_out(unit, 50)] == [49, 99, 149]


def test_split_never_leaks(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pairs = [f"sentence {i % 30}\t句子 {i}" for i in range(90)]
    path = write(tmp_path, "p.tsv", "\n".join(pairs))
    source = cut_source("p", path, tokenizer, every=10)
    sides = [
        {line for index in side for line in tokenizer.decode(source.document(index)).split("\n")}
        for side in (source.train, source.held_out)
    ]
    assert sides[0] and sides[1] and not sides[0] & sides[1]
    assert len(source.train) + len(source.held_out) == 180


def test_cut_source_counts_bytes_of_each_document(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path, "a.txt", "猫狗\n<|endoftext|>\nthe cat\n")
    source = cut_source("a", path, tokenizer, every=50)
    assert source.sizes.tolist() == [6, 7]
    assert tokenizer.decode(source.document(0)) == "猫狗"


def test_cache_is_used_and_follows_the_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path, cache = write(tmp_path, "a.txt", "the cat"), tmp_path / "cache"
    first = cut_source("a", path, tokenizer, every=50, cache=cache)
    kept = list(cache.iterdir())
    again = cut_source("a", path, tokenizer, every=50, cache=cache)
    assert np.array_equal(first.ids, again.ids) and list(cache.iterdir()) == kept
    write(tmp_path, "a.txt", "the dog")
    changed = cut_source("a", path, tokenizer, every=50, cache=cache)
    assert tokenizer.decode(changed.document(0)) == "the dog"


@pytest.mark.parametrize("suffix", [".npy", ".bin"])
def test_ids_already_cut_are_taken(tmp_path: Path, tokenizer: Tokenizer, suffix: str) -> None:
    end = tokenizer.eos_id
    assert end is not None
    words = [tokenizer.encode("the cat"), tokenizer.encode("猫")]
    ids = np.array([end, *words[0], end, *words[1]], dtype=np.uint16)
    path = tmp_path / f"cut{suffix}"
    np.save(path, ids) if suffix == ".npy" else ids.tofile(path)
    source = cut_source("cut", path, tokenizer, every=50)
    assert [source.document(i).tolist() for i in range(2)] == words
    assert source.sizes.tolist() == [7, 3]


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    np.save(tmp_path / "cut.npy", np.array([1, 999], dtype=np.uint16))
    with pytest.raises(CorpusError, match="ids from 1 to 999; the vocabulary has 0 to 2"):
        cut_source("cut", tmp_path / "cut.npy", tokenizer, every=50)


def test_file_of_ids_that_holds_none_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write(tmp_path, "a.npy", "no array")
    write(tmp_path, "b.bin", "")
    np.save(tmp_path / "c.npy", np.ones(3))
    for name, message in (("a.npy", "cannot be read"), ("b.bin", "no token"), ("c.npy", "float64")):
        with pytest.raises(CorpusError, match=message):
            cut_source("x", tmp_path / name, tokenizer, every=50)
