"""The derivation of one block's parameter count: norms, attention, heads, feed-forward.

Every sentence is made from the config and holds for it; every `a × b = c` in it works out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from model.config import GPTConfig
from model.parameters.formula import Formula
from model.parameters.tree import Node, grow


@dataclass(frozen=True)
class Step:
    """One paragraph of the derivation, the same content in both languages."""

    about: str
    en: str
    zh: str


def block_steps(config: GPTConfig) -> list[Step]:
    """From the norms to the block's own sum."""
    block = block_node(config)
    return [
        _norms(config),
        _queries(config),
        _keys_and_values(config),
        _output(config),
        *_qk_norms(config),
        _attention(config, block),
        _heads(config, block),
        _feed_forward(config, block),
        _block(block),
    ]


def block_node(config: GPTConfig) -> Node:
    """The first block; all blocks of a model hold the same."""
    return grow(replace(config, n_layer=1)).find("blocks.0")


def _norms(config: GPTConfig) -> Step:
    d = config.d_model
    if config.norm_bias:
        en = f"Each LayerNorm has d gains and d biases, 2·d: 2 × {d:,} = {2 * d:,}."
        zh = f"每个 LayerNorm 有 d 个增益和 d 个偏置，2·d：2 × {d:,} = {2 * d:,}。"
    else:
        kind = "RMSNorm" if config.norm == "rmsnorm" else "LayerNorm"
        en = f"Each {kind} has d = {d:,} gains and no biases."
        zh = f"每个 {kind} 有 d = {d:,} 个增益，没有偏置。"
    return Step(
        "norms",
        f"{en} A block has two of them, ln1 before attention and ln2 before the feed-forward; "
        f"ln_final stands after the last block.",
        f"{zh}每层有两个：注意力之前的 ln1 和前馈网络之前的 ln2；最后一层之后还有一个 ln_final。",
    )


def _queries(config: GPTConfig) -> Step:
    d, heads, size = config.d_model, config.n_head, config.d_head
    wide = heads * size
    en = (
        f"W_q makes H × D = {heads:,} × {size:,} = {wide:,} query numbers out of a token's "
        f"d = {d:,}: {wide:,} × {d:,} = {wide * d:,} weights"
    )
    zh = (
        f"W_q 把一个 token 的 d = {d:,} 个数变成 H × D = {heads:,} × {size:,} = {wide:,} 个查询数："
        f"{wide:,} × {d:,} = {wide * d:,} 个权重"
    )
    if config.qkv_bias:
        whole = f"{wide:,} × {d:,} + {wide:,} = {wide * d + wide:,}"
        return Step(
            "queries",
            f"{en}, and {wide:,} biases: {whole}.",
            f"{zh}，再加 {wide:,} 个偏置：{whole}。",
        )
    return Step("queries", f"{en}, no biases.", f"{zh}，没有偏置。")


def _keys_and_values(config: GPTConfig) -> Step:
    d, size, heads, kv_heads = config.d_model, config.d_head, config.n_head, config.n_kv_head
    narrow = kv_heads * size
    one = narrow * d + (narrow if config.qkv_bias else 0)
    if kv_heads == heads:
        return Step(
            "keys_and_values",
            f"W_k and W_v are each as large as W_q: 2 × {one:,} = {2 * one:,}.",
            f"W_k 和 W_v 各与 W_q 一样大：2 × {one:,} = {2 * one:,}。",
        )
    share = heads // kv_heads
    bias = f" + {narrow:,}" if config.qkv_bias else ""
    each = f"{narrow:,} × {d:,}{bias} = {one:,}"
    both = f"2 × {one:,} = {2 * one:,}"
    return Step(
        "keys_and_values",
        f"The key/value heads are fewer than the query heads: K = {kv_heads:,}, each read by "
        f"H / K = {heads:,} / {kv_heads:,} = {share:,} query heads. W_k and W_v each make "
        f"K × D = {kv_heads:,} × {size:,} = {narrow:,} numbers, {each}; both: {both}. With a "
        f"key/value head for every query head they would be {share:,} times as large.",
        f"键/值头比查询头少：K = {kv_heads:,}，每个供 H / K = {heads:,} / {kv_heads:,} = {share:,} "
        f"个查询头读取。W_k 和 W_v 各产生 K × D = {kv_heads:,} × {size:,} = {narrow:,} 个数，"
        f"{each}；两者共 {both}。若每个查询头都有自己的键/值头，它们会是现在的 {share:,} 倍。",
    )


def _output(config: GPTConfig) -> Step:
    d, wide = config.d_model, config.n_head * config.d_head
    en = (
        f"W_o makes the heads' {wide:,} numbers, side by side, into d = {d:,} again: "
        f"{d:,} × {wide:,} = {d * wide:,} weights"
    )
    zh = (
        f"W_o 把各个头拼在一起的 {wide:,} 个数变回 d = {d:,} 个："
        f"{d:,} × {wide:,} = {d * wide:,} 个权重"
    )
    if config.o_bias:
        whole = f"{d:,} × {wide:,} + {d:,} = {d * wide + d:,}"
        return Step(
            "output", f"{en}, and {d:,} biases: {whole}.", f"{zh}，再加 {d:,} 个偏置：{whole}。"
        )
    return Step("output", f"{en}, no biases.", f"{zh}，没有偏置。")


def _qk_norms(config: GPTConfig) -> list[Step]:
    if not config.qk_norm:
        return []
    size = config.d_head
    worked = f"2 × {size:,} = {2 * size:,}"
    return [
        Step(
            "qk_norms",
            f"q_norm and k_norm are an RMSNorm over each head's query and key; their D gains are "
            f"shared by all heads of a layer, 2·D: {worked}.",
            f"q_norm 和 k_norm 对每个头的查询和键各做一次 RMSNorm，D 个增益由同一层的所有头共用，"
            f"2·D：{worked}。",
        )
    ]


def _attention(config: GPTConfig, block: Node) -> Step:
    formula = block.find("blocks.0.attn").formula
    en = f"Attention of one layer, {formula.text}: {formula.worked}."
    zh = f"一层注意力合计，{formula.text}：{formula.worked}。"
    whole = config.n_head * config.d_head == config.d_model
    if whole and config.n_kv_head == config.n_head and not config.qk_norm:
        en += " Cutting the same width into more or fewer heads (H × D = d) changes nothing here."
        zh += "同样的宽度切成更多或更少的头（H × D = d），这个数都不变。"
    return Step("attention", en, zh)


def _heads(config: GPTConfig, block: Node) -> Step:
    attention, head = block.find("blocks.0.attn"), block.find("blocks.0.attn.heads.0")
    owned, worked = config.n_head * head.count, f"{config.n_head:,} × {head.count:,}"
    if config.n_kv_head != config.n_head:
        kv_head = block.find("blocks.0.attn.kv_heads.0")
        owned += config.n_kv_head * kv_head.count
        worked += f" + {config.n_kv_head:,} × {kv_head.count:,}"
        en, zh = _grouped_shares(config, head.formula, kv_head.formula)
    else:
        en, zh = _own_share(config, head.formula)
    rest = attention.count - owned
    if not rest:
        return Step(
            "heads",
            f"{en} All heads: {worked} = {owned:,}, which is all of attention.",
            f"{zh}所有头：{worked} = {owned:,}，正好是整个注意力。",
        )
    left = f"{attention.count:,} − {owned:,} = {rest:,}"
    rest_en, rest_zh = _unowned(config)
    return Step(
        "heads",
        f"{en} All heads: {worked} = {owned:,}; the other {left} belong to no head: {rest_en}.",
        f"{zh}所有头：{worked} = {owned:,}；其余 {left} 不属于任何一个头：{rest_zh}。",
    )


def _own_share(config: GPTConfig, head: Formula) -> tuple[str, str]:
    bias_en, bias_zh = _with_biases(config)
    return (
        f"One head's share is D rows each of W_q, W_k and W_v{bias_en} and D columns of W_o, "
        f"{head.text}: {head.worked}.",
        f"一个头占 W_q、W_k、W_v 各 D 行{bias_zh}，以及 W_o 的 D 列，{head.text}：{head.worked}。",
    )


def _grouped_shares(config: GPTConfig, head: Formula, kv_head: Formula) -> tuple[str, str]:
    bias_en, bias_zh = _with_biases(config)
    return (
        f"A query head's share is D rows of W_q{bias_en} and D columns of W_o, {head.text}: "
        f"{head.worked}. A key/value head's is D rows each of W_k and W_v{bias_en}, "
        f"{kv_head.text}: {kv_head.worked}.",
        f"一个查询头占 W_q 的 D 行{bias_zh}和 W_o 的 D 列，{head.text}：{head.worked}。"
        f"一个键/值头占 W_k、W_v 各 D 行{bias_zh}，{kv_head.text}：{kv_head.worked}。",
    )


def _with_biases(config: GPTConfig) -> tuple[str, str]:
    return (" with their biases", "（连同偏置）") if config.qkv_bias else ("", "")


def _unowned(config: GPTConfig) -> tuple[str, str]:
    parts = []
    if config.o_bias:
        parts.append(("the output bias", "输出偏置"))
    if config.qk_norm:
        parts.append(("the gains of q_norm and k_norm", "q_norm 和 k_norm 的增益"))
    return " and ".join(en for en, _ in parts), "和".join(zh for _, zh in parts)


def _feed_forward(config: GPTConfig, block: Node) -> Step:
    d, f, formula = config.d_model, config.d_mlp, block.find("blocks.0.mlp").formula
    n = 3 if config.gated else 2
    weights = f"{n} × {d:,} × {f:,} = {n * d * f:,}"
    if config.gated:
        en = (
            f"Feed-forward, gated: W_gate and W_up lead from d to f, W_down back: {weights} weights"
        )
        zh = f"前馈网络（门控）：W_gate 和 W_up 从 d 到 f，W_down 变回 d：{weights} 个权重"
    else:
        en = f"Feed-forward: W_up leads from d to f, W_down back: {weights} weights"
        zh = f"前馈网络：W_up 从 d 到 f，W_down 变回 d：{weights} 个权重"
    if config.mlp_bias:
        twice = "2 × " if config.gated else ""
        biases = f"{twice}{f:,} + {d:,} = {(n - 1) * f + d:,}"
        en, zh = f"{en}, and {biases} biases", f"{zh}，再加 {biases} 个偏置"
    else:
        en, zh = f"{en}, no biases", f"{zh}，没有偏置"
    return Step(
        "feed_forward",
        f"{en}. Together, {formula.text}: {formula.worked}.",
        f"{zh}。合计，{formula.text}：{formula.worked}。",
    )


def _block(block: Node) -> Step:
    attention, mlp = block.find("blocks.0.attn").count, block.find("blocks.0.mlp").count
    norm = block.find("blocks.0.ln1").count
    worked = f"{attention:,} + {mlp:,} + 2 × {norm:,} = {block.count:,}"
    text, share = block.formula.text, f"{mlp / block.count:.1%}"
    return Step(
        "block",
        f"One block is attention, feed-forward and two norms: {worked}; in symbols {text}. The "
        f"feed-forward holds {share} of it.",
        f"一层 = 注意力 + 前馈网络 + 两个归一化：{worked}；写成符号是 {text}。"
        f"其中前馈网络占 {share}。",
    )
