"""Kept keys and values: what is put in comes out, room doubles, copies part."""

from __future__ import annotations

import torch
from torch import Tensor

from model.cache import Cache
from model.config import GPTConfig

CONFIG = GPTConfig(n_layer=2, d_model=24, n_head=4, n_kv_head=2, vocab_size=9, n_ctx=300)


def drawn(n_tokens: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(1, 2, n_tokens, 6, generator=draw).to(dtype)


def test_layers_get_back_all_that_they_put_in() -> None:
    cache = Cache(CONFIG)
    for sizes in ((5, 1, 1), (70, 1, 60, 1), (1, 299)):
        cache = Cache(CONFIG)
        parts: list[list[Tensor]] = [[], []]
        for number, size in enumerate(sizes):
            for layer in range(2):
                k, v = drawn(size, 2 * number + layer), drawn(size, 90 + 2 * number + layer)
                parts[layer].append(torch.stack((k, v)))
                keys, values = cache.extend(layer, k, v)
                expected = torch.cat(parts[layer], dim=3)
                assert torch.equal(keys, expected[0]) and torch.equal(values, expected[1])
            cache.n_tokens += size


def test_what_was_not_counted_is_written_over() -> None:
    cache = Cache(CONFIG)
    cache.extend(0, drawn(4, 0), drawn(4, 1))
    cache.n_tokens = 4
    cache.extend(0, drawn(2, 2), drawn(2, 3))  # a step that ended early
    keys, _ = cache.extend(0, drawn(1, 4), drawn(1, 5))
    assert torch.equal(keys, torch.cat((drawn(4, 0), drawn(1, 4)), dim=2))


def test_room_doubles_so_that_steps_seldom_copy() -> None:
    cache = Cache(CONFIG)
    addresses = []
    for _ in range(300):
        keys, _ = cache.extend(0, drawn(1, 0), drawn(1, 1))
        cache.n_tokens += 1
        addresses.append(keys.data_ptr())
    moves = [n + 1 for n in range(1, 300) if addresses[n] != addresses[n - 1]]
    assert moves[0] == 2  # the first keys are handed back as they came
    assert moves[1:] == [65, 129, 257]


def test_bytes_are_those_of_the_buffers() -> None:
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 2)):
        for n_tokens, room in ((1, 64), (64, 64), (65, 128), (200, 256), (257, 300), (300, 300)):
            cache = Cache(CONFIG)
            for layer in range(2):
                cache.extend(layer, drawn(n_tokens, 0, dtype), drawn(n_tokens, 1, dtype))
            by_hand = 2 * 2 * 2 * room * 6 * size  # layers, k and v, heads, room, d_head
            assert cache.n_bytes == Cache.bytes_for(CONFIG, n_tokens, dtype) == by_hand


def test_copy_goes_its_own_way() -> None:
    cache = Cache(CONFIG)
    cache.extend(0, drawn(3, 0), drawn(3, 1))
    cache.n_tokens = 3
    other = cache.copy()
    keys, _ = cache.extend(0, drawn(1, 2), drawn(1, 3))
    others, _ = other.extend(0, drawn(1, 4), drawn(1, 5))
    assert torch.equal(keys, torch.cat((drawn(3, 0), drawn(1, 2)), dim=2))
    assert torch.equal(others, torch.cat((drawn(3, 0), drawn(1, 4)), dim=2))
