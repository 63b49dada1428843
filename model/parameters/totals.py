"""Totals: one model's parameter count under the names by which it is quoted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from model.config import GPTConfig
from model.parameters.inventory import TensorInfo

TotalName = Literal[
    "unique", "with_ties_twice", "without_embeddings", "as_nanogpt", "as_transformerlens"
]
TOTAL_NAMES: tuple[TotalName, ...] = get_args(TotalName)

MEANING: dict[TotalName, dict[str, str]] = {
    "unique": {
        "en": "every number that is stored, once; what a checkpoint file holds",
        "zh": "实际存储的每个数各算一次，即检查点文件里的数",
    },
    "with_ties_twice": {
        "en": "the unembedding counted as a matrix of its own, even where it is the embedding",
        "zh": "输出矩阵单独计数，即使它与词嵌入是同一个矩阵",
    },
    "without_embeddings": {
        "en": "without token embedding, position embedding and unembedding "
        "(Kaplan et al. 2020; “non-embedding” on Qwen's model cards)",
        "zh": "不含词嵌入、位置嵌入和输出矩阵"
        "（Kaplan 等 2020；Qwen 模型卡上的 non-embedding 参数量）",
    },
    "as_nanogpt": {
        "en": "what nanoGPT's get_num_params() prints: unique without position embeddings",
        "zh": "nanoGPT 的 get_num_params() 打印的数：unique 去掉位置嵌入",
    },
    "as_transformerlens": {
        "en": "TransformerLens' cfg.n_params: weight matrices inside the blocks only, no "
        "embeddings, biases or norms, keys and values as if every query head had its own",
        "zh": "TransformerLens 的 cfg.n_params：只算各层内的权重矩阵，不含嵌入、偏置和归一化，"
        "并且当作每个查询头都有自己的键和值",
    },
}


@dataclass(frozen=True)
class Totals:
    """The count under each name; MEANING says what each one is."""

    unique: int
    with_ties_twice: int
    without_embeddings: int
    as_nanogpt: int
    as_transformerlens: int


def totals(config: GPTConfig, tensors: Sequence[TensorInfo]) -> Totals:
    """From the config's inventory.

    Sources: nanoGPT model.py, GPT.get_num_params; TransformerLens HookedTransformerConfig.n_params,
    which counts 4·d·D·H for attention whatever n_kv_head is.
    """
    unique = sum(tensor.count for tensor in tensors if tensor.tied_to is None)
    inside = sum(t.count for t in tensors if t.layer is not None or t.component == "norm")
    positions = sum(t.count for t in tensors if t.component == "positions")
    heads = 4 * config.d_model * config.d_head * config.n_head
    feed_forward = config.d_model * config.d_mlp * (3 if config.gated else 2)
    return Totals(
        unique=unique,
        with_ties_twice=sum(tensor.count for tensor in tensors),
        without_embeddings=inside,
        as_nanogpt=unique - positions,
        as_transformerlens=config.n_layer * (heads + feed_forward),
    )
