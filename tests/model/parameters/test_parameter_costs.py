"""Costs against torch's FlopCounterMode, real tensors, a real optimizer and counting by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from model.config import GPTConfig
from model.gpt import GPT
from model.parameters import ParameterError, costs
from model.parameters.costs import WORK, keys_seen, pairs_seen
from model.presets import PRESETS

TOKENS = 100


def count_flops(run: Any, *arguments: Any, **options: Any) -> dict[str, int]:
    """By operation. FlopCounterMode counts matrix multiplications and nothing else."""
    with FlopCounterMode(display=False) as counter:
        run(*arguments, **options)
    return {str(op): flops for op, flops in counter.get_flop_counts()["Global"].items()}


def batched(flops: dict[str, int]) -> int:
    """q·k and pattern·v: the only products in which both sides depend on the tokens."""
    return sum(count for op, count in flops.items() if op.endswith("bmm"))


@pytest.mark.parametrize("name", ["course", "gpt2", "smollm2-135m", "qwen2.5-0.5b", "qwen3-0.6b"])
def test_prompt_flops_are_those_torch_counts_in_the_same_forward(name: str) -> None:
    config = PRESETS[name]
    with torch.device("meta"):
        model, ids = GPT(config), torch.zeros(1, TOKENS, dtype=torch.long)
    flops = count_flops(model, ids)
    bill = costs(config, TOKENS)
    # The explicit attention computes whole rows and masks them, hence the square.
    assert sum(flops.values()) == bill.prompt_square.total.count
    assert batched(flops) == bill.prompt_square.by_component["attention_over_context"].count
    assert bill.prompt.total.count < bill.prompt_square.total.count
    over = [
        b.by_component["attention_over_context"].count for b in (bill.prompt, bill.prompt_square)
    ]
    assert over[0] / over[1] == pytest.approx((TOKENS + 1) / (2 * TOKENS), rel=1e-12)


def test_flops_by_component_are_those_of_each_module() -> None:
    config = PRESETS["smollm2-135m"]
    with torch.device("meta"):
        model, ids = GPT(config), torch.zeros(1, TOKENS, dtype=torch.long)
    with FlopCounterMode(display=False, depth=6) as counter:
        model(ids)
    counts = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    layers = range(config.n_layer)
    of = {
        "attention_projections": [f"GPT.blocks.{n}.attn.{w}" for n in layers for w in "qkvo"],
        "feed_forward": [f"GPT.blocks.{n}.mlp" for n in layers],
        "unembedding": ["GPT.unembed"],
    }
    bill = costs(config, TOKENS).prompt_square.by_component
    for name, modules in of.items():
        assert bill[name].count == sum(counts[module] for module in modules)


def test_prompt_flops_are_those_of_transformers_eager_gpt2_and_llama() -> None:
    gpt2, llama = PRESETS["gpt2"], PRESETS["smollm2-135m"]
    with torch.device("meta"):
        ids = torch.zeros(1, TOKENS, dtype=torch.long)
        theirs = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(attn_implementation="eager")
        ).eval()
        flops = count_flops(theirs, ids)
        assert sum(flops.values()) == costs(gpt2, TOKENS).prompt_square.total.count
        theirs = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                num_hidden_layers=llama.n_layer,
                hidden_size=llama.d_model,
                num_attention_heads=llama.n_head,
                num_key_value_heads=llama.n_kv_head,
                intermediate_size=llama.d_mlp,
                vocab_size=llama.vocab_size,
                attn_implementation="eager",
            )
        ).eval()
        flops = count_flops(theirs, ids)
    assert sum(flops.values()) == costs(llama, TOKENS).prompt_square.total.count


@pytest.mark.parametrize("name", ["course", "llama-3.2-1b"])
def test_token_flops_are_those_of_its_row_of_the_prompt(name: str) -> None:
    """The last token costs what the whole prompt costs more than the prompt without it."""
    config = PRESETS[name]
    more, less = costs(config, 300), costs(config, 299)
    assert more.token.total.count == more.prompt.total.count - less.prompt.total.count
    for part in WORK:
        by = [bill.prompt.by_component[part].count for bill in (more, less)]
        assert more.token.by_component[part].count == by[0] - by[1]


@pytest.mark.parametrize("context", [1, 512, 1024])
def test_token_flops_of_the_course_model_worked_by_hand(context: int) -> None:
    bill = costs(PRESETS["course"], context)
    assert bill.token.total.count == 59_831_040 + 9_216 * context


def test_training_flops_are_those_torch_counts_forward_and_backward() -> None:
    config = GPTConfig(n_layer=2, d_model=24, n_head=3, vocab_size=50, n_ctx=40)
    model = GPT(config)

    def step() -> None:
        logits = model(torch.zeros(1, 40, dtype=torch.long))
        assert logits is not None
        logits.sum().backward()

    training = costs(config, 40).training
    assert sum(count_flops(step).values()) == training.per_sequence.count
    assert training.per_token.count * 40 == training.per_sequence.count
    assert training.multiplying_parameters.count == 2 * 12 * 24**2 + 50 * 24


@given(config=st.from_type(GPTConfig), data=st.data())
@settings(deadline=None, max_examples=60)
def test_formulas_of_any_config_work_out(
    config: GPTConfig, data: st.DataObject, arithmetic: Any
) -> None:
    bill = costs(config, data.draw(st.integers(1, config.n_ctx)))
    memory = bill.memory
    formulas = [
        *memory.weights.values(),
        *memory.kv_cache.values(),
        memory.attention_maps,
        memory.attention_results,
        memory.logits,
        memory.gradients,
        memory.optimizer,
        bill.training.multiplying_parameters,
        bill.training.per_token,
        bill.training.per_sequence,
    ]
    for flops in (bill.token, bill.prompt, bill.prompt_square):
        formulas += [flops.total, *flops.by_component.values()]
        assert flops.total.count == sum(part.count for part in flops.by_component.values())
    for formula in formulas:
        left, right = formula.worked.split(" = ")
        assert arithmetic(left) == arithmetic(right) == formula.count
        assert arithmetic(formula.text, formula.symbols) == formula.count


@given(config=st.from_type(GPTConfig), context=st.integers(1, 40))
@settings(deadline=None, max_examples=60)
def test_keys_and_pairs_are_those_the_mask_leaves(config: GPTConfig, context: int) -> None:
    query, key = torch.arange(context)[:, None], torch.arange(context)[None, :]
    pairs = keys = 0
    for layer in range(config.n_layer):
        window = config.window_of(layer) or context
        seen = (key <= query) & (key > query - window)
        pairs, keys = pairs + int(seen.sum()), keys + int(seen[-1].sum())
    assert pairs_seen(config, context) == pairs
    assert keys_seen(config, context - 1) == keys


def test_windowed_layers_cost_less_and_the_formula_says_why() -> None:
    config = replace(PRESETS["course"], window=100, windowed_layers=(0, 2, 4))
    token = costs(config, 1000).token.by_component["attention_over_context"]
    assert token.text == "4·S·d"
    assert token.count == 4 * 384 * (3 * 1000 + 3 * 100)
    assert costs(config, 100).token == costs(PRESETS["course"], 100).token
    assert costs(config).balance is None


def test_bytes_are_those_of_real_tensors() -> None:
    config = GPTConfig(n_layer=2, d_model=24, n_head=4, n_kv_head=2, vocab_size=50, n_ctx=40)
    memory, tokens = costs(config, 40).memory, 40
    model = GPT(config)
    assert memory.weights["float32"].count == sum(p.nbytes for p in model.parameters())
    keys = torch.zeros(config.n_layer, tokens, config.n_kv_head, config.d_head)
    assert memory.kv_cache["float32"].count == 2 * keys.nbytes
    assert memory.kv_cache["bfloat16"].count == 2 * keys.bfloat16().nbytes
    maps = torch.zeros(config.n_layer, config.n_head, tokens, tokens)
    assert memory.attention_maps.count == maps.nbytes
    results = torch.zeros(config.n_layer, config.n_head, tokens, config.d_model)
    assert memory.attention_results.count == results.nbytes
    assert memory.logits.count == torch.zeros(tokens, config.vocab_size).nbytes
    assert costs(replace(config, tied=True), 40).memory.weights["bfloat16"].count == sum(
        p.nbytes for p in GPT(replace(config, tied=True)).bfloat16().parameters()
    )


def test_optimizer_and_gradients_are_those_of_a_real_adamw() -> None:
    config = GPTConfig(n_layer=1, d_model=12, n_head=2, vocab_size=9, n_ctx=5, tied=True)
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters())
    logits = model(torch.zeros(1, 5, dtype=torch.long))
    assert logits is not None
    logits.sum().backward()
    optimizer.step()
    moments = [value for state in optimizer.state.values() for value in state.values()]
    memory = costs(config, 5).memory
    assert memory.optimizer.count == sum(m.nbytes for m in moments if m.dim() > 0)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert memory.gradients.count == sum(gradient.nbytes for gradient in gradients)


def test_shares_add_up_and_attention_grows_with_the_context() -> None:
    shares = costs(PRESETS["gpt2"], 700).shares
    assert [share.context for share in shares] == [128, 256, 512, 700, 1024]
    for share in shares:
        assert sum(share.shares.values()) == pytest.approx(1, abs=1e-12)
    over = [share.shares["attention_over_context"] for share in shares]
    assert over == sorted(over)
    assert over[-1] == pytest.approx(4 * 12 * 1024 * 768 / shares[-1].flops)


@pytest.mark.parametrize(("name", "context"), [("course", 4 * 384), ("gpt2", 4 * 768)])
def test_balance_is_where_looking_back_costs_as_much_as_the_feed_forward(
    name: str, context: int
) -> None:
    config = replace(PRESETS[name], n_ctx=2 * context)
    assert costs(config).balance == context
    token = costs(config, context).token.by_component
    assert token["attention_over_context"].count == token["feed_forward"].count
    before = costs(config, context - 1).token.by_component
    assert before["attention_over_context"].count < before["feed_forward"].count


@pytest.mark.parametrize("context", [0, -1, 1025])
def test_context_that_the_model_cannot_hold_is_refused(context: int) -> None:
    with pytest.raises(ParameterError, match=f"context is {context}.*1 to 1024"):
        costs(PRESETS["course"], context)


def test_context_is_by_default_1024_or_all_that_fits() -> None:
    assert costs(PRESETS["llama-2-7b"]).context == 1024
    assert costs(PRESETS["nano"]).context == 11
