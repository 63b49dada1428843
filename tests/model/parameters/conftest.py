"""Arithmetic as a reader would check it, and configurations of every kind."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import strategies as st

from model.config import GPTConfig

_SIGNS = str.maketrans({"×": "*", "·": "*", "−": "-", "²": "^2", "³": "^3", "⁴": "^4"})


def evaluate(text: str, values: Mapping[str, int] | None = None) -> Fraction:
    """Sums, differences, products, quotients and powers of whole numbers and named values."""
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", text).translate(_SIGNS).replace("^", "**")
    return _walk(ast.parse(plain, mode="eval").body, values or {})


def _walk(node: ast.expr, values: Mapping[str, int]) -> Fraction:
    match node:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.Name(id=name):
            return Fraction(values[name])
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _walk(left, values), _walk(right, values)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div():
                    return a / b
                case ast.Pow():
                    return Fraction(a**b)
    raise ValueError(f"not arithmetic: {ast.dump(node)}")


@pytest.fixture(scope="session")
def arithmetic() -> Callable[..., Fraction]:
    return evaluate


@st.composite
def _configs(draw: st.DrawFn) -> GPTConfig:
    n_kv_head, share = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    n_head, d_head = n_kv_head * share, 2 * draw(st.integers(1, 4))
    own_width = draw(st.booleans())
    d_model = n_head * d_head if own_width else draw(st.integers(3, 40))
    norm = draw(st.sampled_from(["layernorm", "rmsnorm"]))
    options: dict[str, Any] = {
        "d_head": d_head,
        "d_mlp": draw(st.sampled_from([None, d_model, 5 * d_model + 1])),
        "positions": draw(st.sampled_from(["rope", "learned", "none"])),
        "norm": norm,
        "norm_bias": norm == "layernorm" and draw(st.booleans()),
        "activation": draw(st.sampled_from(["gelu", "gelu_tanh", "swiglu"])),
        "window": draw(st.sampled_from([None, 1, 3, 50])),
        "windowed_layers": draw(st.sampled_from([None, (), (0,)])),
    }
    for name in ("qk_norm", "qkv_bias", "o_bias", "mlp_bias", "tied", "parallel_residual"):
        options[name] = draw(st.booleans())
    return GPTConfig(
        n_layer=draw(st.integers(1, 3)),
        d_model=d_model,
        n_head=n_head,
        n_kv_head=n_kv_head,
        vocab_size=draw(st.integers(1, 60)),
        n_ctx=draw(st.integers(1, 300)),
        **options,
    )


st.register_type_strategy(GPTConfig, _configs())
