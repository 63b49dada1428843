"""Excerpts and pictures of a tensor, against slicing and torch's own pooling."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from model.config import GPTConfig
from model.gpt import GPT
from model.parameters import Excerpt, ParameterError, TensorInfo, inventory, of_head
from model.selection import SelectionError, Span

CONFIG = GPTConfig(
    n_layer=2, d_model=20, n_head=4, n_kv_head=2, d_head=6, vocab_size=17, n_ctx=9, qk_norm=True
)
MODEL = GPT(CONFIG, seed=3)
INFO = {tensor.name: tensor for tensor in inventory(CONFIG)}
STATE = MODEL.state_dict()


def named(name: str) -> tuple[TensorInfo, Tensor]:
    return INFO[name], STATE[name]


def test_whole_tensor_shares_memory_and_keeps_its_axes() -> None:
    excerpt = Excerpt.of(*named("embed.weight"))
    assert excerpt.axes == ("vocab", "d_model")
    assert excerpt.indices == (range(17), range(20))
    assert excerpt.values.data_ptr() == STATE["embed.weight"].data_ptr()


def test_tensor_of_another_shape_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"embed.weight has shape \[3, 20\].*\[17, 20\]"):
        Excerpt.of(INFO["embed.weight"], torch.zeros(3, 20))


def test_rows_and_columns_come_in_the_order_asked_for() -> None:
    excerpt = Excerpt.of(*named("embed.weight")).select([5, -1, 0], Span(start=4, stop=12, step=3))
    assert excerpt.indices == ((5, 16, 0), range(4, 12, 3))
    assert torch.equal(excerpt.values, STATE["embed.weight"][[5, 16, 0]][:, 4:12:3])


def test_selecting_twice_keeps_the_first_coordinates() -> None:
    first = Excerpt.of(*named("embed.weight")).select([9, 3, 11, 2], Span(start=10))
    second = first.select([1, 3], [2])
    assert second.indices == ((3, 2), range(12, 13))
    assert torch.equal(second.values, STATE["embed.weight"][[3, 2]][:, 12:13])


@pytest.mark.parametrize(("rows", "message"), [([17], "vocab 17"), ([], "no vocab"), ([1, 1], "1")])
def test_rows_outside_the_tensor_are_refused(rows: list[int], message: str) -> None:
    with pytest.raises(SelectionError, match=message):
        Excerpt.of(*named("embed.weight")).select(rows)


def test_vector_has_rows_and_no_columns() -> None:
    gains = Excerpt.of(*named("ln_final.weight"))
    assert gains.select([3, 4]).indices == (range(3, 5),)
    with pytest.raises(ParameterError, match="vector over d_model"):
        gains.select("all", [0])


@pytest.mark.parametrize("head", range(4))
def test_head_gives_its_rows_of_q_and_its_columns_of_o(head: int) -> None:
    here = slice(6 * head, 6 * head + 6)
    q = of_head(CONFIG, *named("blocks.1.attn.q.weight"), head=head)
    assert q.axes == ("d_head", "d_model")
    assert torch.equal(q.values, STATE["blocks.1.attn.q.weight"][here])
    bias = of_head(CONFIG, *named("blocks.1.attn.q.bias"), head=head)
    assert torch.equal(bias.values, STATE["blocks.1.attn.q.bias"][here])
    o = of_head(CONFIG, *named("blocks.1.attn.o.weight"), head=head - 4)
    assert o.axes == ("d_model", "d_head")
    assert torch.equal(o.values, STATE["blocks.1.attn.o.weight"][:, here])


def test_heads_slices_reproduce_what_the_head_writes() -> None:
    """x W_Oᵀ over each head's own columns sums to W_o itself, as attn.result has it."""
    o = STATE["blocks.0.attn.o.weight"]
    z = torch.randn(24, generator=torch.Generator().manual_seed(1))
    parts = [
        of_head(CONFIG, *named("blocks.0.attn.o.weight"), head=head).values
        @ z[6 * head : 6 * head + 6]
        for head in range(4)
    ]
    assert torch.allclose(torch.stack(parts).sum(0), o @ z, atol=1e-6)


def test_query_head_on_keys_means_the_key_head_that_it_reads() -> None:
    for head, kv_head in enumerate([0, 0, 1, 1]):
        key = named("blocks.0.attn.k.weight")
        by_query = of_head(CONFIG, *key, head=head)
        assert torch.equal(by_query.values, key[1][6 * kv_head : 6 * kv_head + 6])
        assert torch.equal(by_query.values, of_head(CONFIG, *key, kv_head=kv_head).values)


def test_rows_of_a_head_count_within_the_head() -> None:
    excerpt = of_head(CONFIG, *named("blocks.0.attn.q.weight"), head=2).select([1])
    assert excerpt.indices[0] == range(1, 2)
    assert torch.equal(excerpt.values[0], STATE["blocks.0.attn.q.weight"][13])


@pytest.mark.parametrize(
    ("name", "asked", "message"),
    [
        ("embed.weight", {"head": 0}, "not shared out by head.*vocab, d_model"),
        ("blocks.0.attn.o.bias", {"head": 0}, "not shared out by head"),
        ("blocks.0.attn.q_norm.weight", {"head": 0}, "not shared out by head"),
        ("blocks.0.attn.q.weight", {"kv_head": 0}, "ask for head"),
        ("blocks.0.attn.q.weight", {}, "one of head and kv_head"),
        ("blocks.0.attn.k.weight", {"head": 0, "kv_head": 0}, "one of head and kv_head"),
    ],
)
def test_head_of_a_tensor_without_such_heads_is_refused(
    name: str, asked: dict[str, int], message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        of_head(CONFIG, *named(name), **asked)


@pytest.mark.parametrize(
    ("asked", "valid"), [({"head": 4}, "-4 to 3"), ({"kv_head": 2}, "-2 to 1")]
)
def test_head_that_does_not_exist_is_refused(asked: dict[str, int], valid: str) -> None:
    with pytest.raises(SelectionError, match=valid):
        of_head(CONFIG, *named("blocks.0.attn.k.weight"), **asked)


def matrix(rows: int, columns: int) -> Excerpt:
    draw = torch.Generator().manual_seed(rows)
    values = torch.randn(rows, columns, generator=draw)
    return Excerpt(values, ("vocab", "d_model"), (range(rows), range(columns)), (1, 1))


def test_picture_that_divides_evenly_is_torchs_pooling() -> None:
    whole = matrix(12, 20)
    for how, pool in (
        ("mean", torch.nn.functional.avg_pool2d),
        ("max", torch.nn.functional.max_pool2d),
    ):
        small = whole.picture(how, 4, 5)  # type: ignore[arg-type]
        expected = pool(whole.values[None], (3, 4))[0]
        assert torch.allclose(small.values, expected, atol=1e-6)
        assert (small.indices, small.cell) == ((range(0, 12, 3), range(0, 20, 4)), (3, 4))
    assert torch.equal(whole.picture("stride", 4, 5).values, whole.values[::3, ::4])


@pytest.mark.parametrize(("rows", "columns"), [(13, 7), (3, 19), (1, 1), (100, 100), (7, 2)])
def test_picture_with_smaller_last_cells_is_the_mean_and_maximum_of_each(
    rows: int, columns: int
) -> None:
    whole = matrix(13, 19)
    mean, most = (whole.picture(how, rows, columns) for how in ("mean", "max"))  # type: ignore[arg-type]
    assert whole.picture_shape(rows, columns) == tuple(mean.values.shape)
    assert mean.values.shape[0] <= rows and mean.values.shape[1] <= columns
    for i, top in enumerate(mean.indices[0]):
        for j, left in enumerate(mean.indices[1]):
            cell = whole.values[top : top + mean.cell[0], left : left + mean.cell[1]]
            assert mean.values[i, j].item() == pytest.approx(cell.double().mean().item(), abs=1e-6)
            assert most.values[i, j] == cell.max()
    covered = sum(
        whole.values[top : top + mean.cell[0], left : left + mean.cell[1]].numel()
        for top in mean.indices[0]
        for left in mean.indices[1]
    )
    assert covered == 13 * 19


def test_picture_of_a_vector_and_of_a_selection_keeps_true_coordinates() -> None:
    bias = Excerpt.of(INFO["blocks.0.attn.q.bias"], torch.arange(24.0))
    small = bias.picture("mean", 5, 1)
    assert small.values.tolist() == [2.0, 7.0, 12.0, 17.0, 21.5]
    assert small.indices == (range(0, 24, 5),)
    some = Excerpt.of(*named("embed.weight")).select([8, 3, 16, 1], "all").picture("max", 2, 1)
    assert some.indices == ((8, 16), range(0, 20, 20))
    assert some.values[0, 0] == STATE["embed.weight"][[8, 3]].max()


def test_picture_of_half_precision_is_averaged_in_full() -> None:
    """4,096 times 1 + 2⁻⁷ adds up to 4,096 exactly, were it summed in bfloat16."""
    values = torch.full((64, 64), 1 + 2**-7, dtype=torch.bfloat16)
    whole = Excerpt(values, ("vocab", "d_model"), (range(64), range(64)), (1, 1))
    assert whole.picture("mean", 1, 1).values.item() == 1 + 2**-7


def test_picture_without_cells_is_refused() -> None:
    with pytest.raises(ParameterError, match="0 × 5"):
        matrix(3, 3).picture("mean", 0, 5)


def test_tensor_is_left_as_it_was() -> None:
    before = STATE["embed.weight"].clone()
    whole = Excerpt.of(*named("embed.weight"))
    for how in ("mean", "max", "stride"):
        whole.picture(how, 3, 3).values.zero_()  # type: ignore[arg-type]
        whole.picture(how, 99, 99)  # type: ignore[arg-type]
    assert torch.equal(STATE["embed.weight"], before)


def test_full_size_picture_in_float32_is_the_tensor_itself() -> None:
    whole = replace(matrix(3, 4))
    assert torch.equal(whole.picture("stride", 3, 4).values, whole.values)
