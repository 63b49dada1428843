"""Maps in a notebook, and the forms that other packages take. No server."""

from __future__ import annotations

import re
import struct
import sys
import zlib
from base64 import b64decode
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fluoroscope_client import Tensor
from fluoroscope_client.labels import clipped, padded, visible, width
from fluoroscope_client.png import png
from fluoroscope_client.reading import JSON, read_reading
from fluoroscope_client.shades import MASKED, pooled, shaded

from tests.clients.test_reading import as_json

AXES = ("layer", "head", "query", "key")
EVIL = '<img src=x onerror="alert(1)">'


def maps(
    layers: int, heads: int, tokens: tuple[str, ...], length: int | None = None, **more: Any
) -> Tensor:
    n = length or len(tokens)
    values = np.random.default_rng(0).random((layers, heads, n, n), dtype=np.float32)
    return Tensor(values, "attn.pattern", "attn.pattern", AXES, tokens=tokens, **more)


def html(thing: Any) -> str:
    """The page's HTML, after a parser has closed every tag that it opened."""
    text = thing._repr_html_()
    opened: list[str] = []

    class Checked(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            if tag not in ("img", "image", "rect") or tag == "rect":
                opened.append(tag)

        def handle_startendtag(self, tag: str, attrs: Any) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert opened.pop() == tag

    parser = Checked()
    parser.feed(text)
    parser.close()
    assert opened == []
    assert isinstance(text, str)
    return text


def pixels(data: bytes) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A palette PNG read by the specification: colours of every pixel, and its indices."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length]) == (
            zlib.crc32(kind + body),
        )
        chunks[kind] = body
        at += 12 + length
    columns, rows, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 3, 0, 0, 0]
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(rows, columns + 1)
    assert not lines[:, 0].any()
    palette = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
    return palette[lines[:, 1:]], lines[:, 1:]


def test_png_holds_the_pixels_that_were_given() -> None:
    given = np.array([[0, 1, 2], [2, 1, 0]], np.uint8)
    colours, indices = pixels(png(given, [(255, 0, 0), (0, 255, 0), (1, 2, 3)]))
    np.testing.assert_array_equal(indices, given)
    assert colours[0, 2].tolist() == [1, 2, 3]


def test_larger_is_darker_and_minus_infinity_is_apart() -> None:
    shades = shaded(np.array([0.0, 0.25, 1.0, -np.inf], np.float32))
    assert shades.of.tolist() == [0, 64, 254, MASKED]
    colours = [sum(shades.palette[shade]) for shade in range(255)]
    assert colours == sorted(colours, reverse=True) and colours[0] == 765
    signed = shaded(np.array([-2.0, 0.0, 1.0], np.float32))
    assert (signed.of.tolist(), signed.signed) == ([0, 127, 190], True)
    assert signed.palette[127] == (255, 255, 255)
    assert shaded(np.zeros(2, np.float32)).of.tolist() == [0, 0]
    assert shaded(np.full(2, -np.inf, np.float32)).of.tolist() == [MASKED, MASKED]


def test_pooling_keeps_the_peaks() -> None:
    values = np.zeros((1000, 5), np.float32)
    values[501, 3] = -7
    values[:10] = -np.inf
    small = pooled(values, 100, 2)
    assert small.shape == (100, 2)
    assert small[50, 1] == -7 and (small[0] == -np.inf).all()
    assert np.abs(small[1:]).sum() == 7


def test_map_of_one_head_shows_words_and_numbers() -> None:
    text = html(maps(3, 2, ("猫", " 追", "\n")).sel(layer=2, head=1))
    assert "layer 2 · head 1" in text
    assert re.findall(r"<text[^>]*>(.*?)</text>", text) == ["猫", "追", "⏎"] * 2
    assert text.count("<title>") == 9
    value = maps(3, 2, ("猫", " 追", "\n")).values[2, 1, 0, 1]
    assert f"<title>猫 追: {value:.4g}</title>" in text
    (data,) = re.findall(r"base64,([^\"]+)", text)
    colours, _ = pixels(b64decode(data))
    assert colours.shape == (3, 3, 3)
    darkest = np.unravel_index(colours.sum(-1).argmin(), (3, 3))
    whole = maps(3, 2, ("猫", " 追", "\n")).values[2, 1]
    assert darkest == np.unravel_index(whole.argmax(), (3, 3))


def test_tokens_are_escaped() -> None:
    tensor = maps(1, 1, (EVIL, "&", '"'))
    texts = [html(tensor.sel(layer=0, head=0))]
    answer = as_json(
        tokens=[{"id": 1, "index": 0, "display": EVIL}],
        model={"id": EVIL},
        predictions=[{"position": 0, "top": [{"id": 1, "text": EVIL, "probability": 0.5}]}],
    )
    texts.append(html(read_reading(JSON, answer)))
    for text in texts:
        assert "<img src=x" not in text
        assert "&lt;img" in text


@pytest.mark.parametrize(
    "tensor",
    [
        maps(12, 12, (), 512),
        maps(1, 1, tuple("ab" * 1024), 2048).sel(layer=0, head=0),
        maps(1, 1, tuple("x" * 300 for _ in range(32))).sel(layer=0, head=0),
    ],
    ids=["144 maps", "2048 tokens", "long tokens"],
)
def test_large_maps_stay_small_on_the_page(tensor: Tensor) -> None:
    assert len(html(tensor)) < 300_000


def test_maps_that_are_left_out_are_counted() -> None:
    text = html(maps(5, 5, ("a",)))
    assert "24 of 25 maps" in text
    assert text.count("<figcaption>") == 24


def test_row_has_a_map_and_a_number_none() -> None:
    row = maps(1, 1, ("a", "b")).sel(layer=0, head=0, query=1)
    assert html(row).count("<title>") == 2
    assert row.sel(key=0)._repr_html_() is None
    assert Tensor(np.zeros((0, 2), np.float32), "x", "x", ("a", "b"))._repr_html_() is None


def test_reading_shows_its_first_tensor() -> None:
    text = html(read_reading(JSON, as_json()))
    assert "5 tokens" in text and "猫" in text and "base64" in text


@pytest.mark.parametrize(
    ("token", "shown", "columns"),
    [
        ("cat", "cat", 3),
        (" cat", "cat", 3),
        ("猫", "猫", 2),
        ("，", "，", 2),
        ("é", "é", 1),
        ("e\u0301", "e\u0301", 1),
        (" ", "␣", 1),
        ("\n", "⏎", 1),
        ("\x1b[31m", "\\x1b[31m", 8),
        ("\u202e", "\\u202e", 6),
        ("ｶ", "ｶ", 1),
    ],
)
def test_label_is_one_line_of_known_width(token: str, shown: str, columns: int) -> None:
    assert visible(token) == shown
    assert width(shown) == columns


def test_label_is_cut_by_columns_not_characters() -> None:
    assert clipped("老鼠追猫", 8) == "老鼠追猫"
    assert clipped("老鼠追猫", 7) == "老鼠追…"
    assert clipped("老鼠追猫", 6) == "老鼠…"
    assert clipped("猫", 1) == "…" and clipped("猫", 0) == ""
    assert padded("老鼠追猫", 6) == "老鼠… "
    assert padded("猫", 4, right=True) == "  猫"


def test_bertviz_gets_a_tensor_a_layer_and_the_tokens() -> None:
    """Its `head_view(attention, tokens)`: a list of one FloatTensor a layer, of shape
    (batch of 1, heads, length, length), which it squeezes and stacks."""
    tensor = maps(3, 2, ("a", "b", "c", "d"))
    given = tensor.to_bertviz()
    assert given["tokens"] == ["a", "b", "c", "d"]
    assert [one.shape for one in given["attention"]] == [(1, 2, 4, 4)] * 3
    stacked = torch.stack([one.squeeze(0) for one in given["attention"]])
    np.testing.assert_array_equal(stacked.numpy(), tensor.values)
    (one,) = tensor.sel(layer=1, head=0).to_bertviz()["attention"]
    np.testing.assert_array_equal(one.numpy()[0, 0], tensor.values[1, 0])


def test_circuitsvis_gets_all_heads_and_their_names() -> None:
    """Its `attention_heads(attention, tokens, attention_head_names)`: shape (heads, destination,
    source)."""
    tensor = maps(2, 3, ("a", "b"))
    given = tensor.sel(layer=[1]).to_circuitsvis()
    np.testing.assert_array_equal(given["attention"], tensor.values[1])
    assert given["attention_head_names"] == ["L1H0", "L1H1", "L1H2"]
    both = tensor.to_circuitsvis()
    assert both["attention"].shape == (6, 2, 2)
    assert both["attention_head_names"][4] == "L1H1"
    one = tensor.sel(layer=1, head=2).to_circuitsvis()
    assert one["attention"].shape == (1, 2, 2)
    assert one["attention_head_names"] == ["L1H2"]


@pytest.mark.parametrize("form", ["to_bertviz", "to_circuitsvis"])
def test_part_of_a_map_is_not_shown_as_a_whole_one(form: str) -> None:
    tensor = maps(1, 1, ("a", "b"))
    for wrong, reason in (
        (tensor.sel(query=[0]), "whole"),
        (tensor.sel(query=0), "query and key"),
        (maps(1, 1, (), 2), "tokens"),
    ):
        with pytest.raises(ValueError, match=reason):
            getattr(wrong, form)()


def test_xarray_gets_axes_true_indices_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """xarray.DataArray(data, coords, dims, name, attrs): a coordinate is a list for its own
    dimension, or (dimension, list)."""
    made: dict[str, Any] = {}

    def data_array(data: Any, **given: Any) -> str:
        made.update(given, data=data)
        return "an array"

    monkeypatch.setitem(sys.modules, "xarray", SimpleNamespace(DataArray=data_array))
    tensor = maps(3, 2, ("a", "b", "c")).sel(layer=2, head=[1], query=slice(1, None))
    assert tensor.to_xarray() == "an array"
    assert made["data"] is tensor.values
    assert made["dims"] == ("head", "query", "key")
    assert made["name"] == "attn.pattern"
    assert made["coords"] == {
        "layer": 2,
        "head": [1],
        "query": [1, 2],
        "query_token": ("query", ["b", "c"]),
        "key": [0, 1, 2],
        "key_token": ("key", ["a", "b", "c"]),
    }


def test_statistics_keep_their_names_in_xarray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "xarray", SimpleNamespace(DataArray=lambda data, **given: given["coords"])
    )
    stats = Tensor(np.zeros((1, 5), np.float32), "s", "s", ("position", "stat"))
    assert stats.to_xarray()["stat"] == ["mean", "variance", "norm", "min", "max"]


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match="xarray"):
        maps(1, 1, ("a",)).to_xarray()
