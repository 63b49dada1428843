"""Explain: the derivation of a model's parameter count, step by step, in English and Chinese.

Every sentence is made from the config and holds for it; every `a × b = c` in it works out.
"""

from __future__ import annotations

from model.config import GPTConfig
from model.parameters.costs import Costs, costs
from model.parameters.explain_block import Step, block_node, block_steps
from model.parameters.inventory import inventory
from model.parameters.totals import totals
from model.parameters.tree import Node, grow


def explain(config: GPTConfig, context: int | None = None) -> dict[str, str]:
    """The derivation as one text a language, a paragraph a line; `context` as in `costs`."""
    steps = derive(config, context)
    return {
        "en": "\n".join(step.en for step in steps),
        "zh": "\n".join(step.zh for step in steps),
    }


def derive(config: GPTConfig, context: int | None = None) -> list[Step]:
    """Raises ParameterError for a context that the model cannot hold."""
    tree, bill = grow(config, depth=1), costs(config, context)
    return [
        _sizes(config),
        _embedding(tree),
        _positions(config, tree),
        *block_steps(config),
        _stack(config),
        _unembedding(config, tree),
        _total(tree),
        _names(config),
        _work(bill),
        _memory(bill),
    ]


def _sizes(config: GPTConfig) -> Step:
    grouped = config.n_kv_head != config.n_head
    rows = [
        ("L", config.n_layer, "layers", "层数"),
        ("d", config.d_model, "width of the residual stream", "残差流宽度"),
        ("H", config.n_head, "query heads", "查询头数"),
        *([("K", config.n_kv_head, "key/value heads", "键/值头数")] if grouped else []),
        ("D", config.d_head, "size of a head", "每个头的维度"),
        ("f", config.d_mlp, "feed-forward neurons", "前馈网络神经元数"),
        ("V", config.vocab_size, "tokens in the vocabulary", "词表大小"),
        ("n_ctx", config.n_ctx, "longest context", "最大上下文长度"),
    ]
    en = ", ".join(f"{name} = {value:,} ({says})" for name, value, says, _ in rows)
    zh = "，".join(f"{name} = {value:,}（{says}）" for name, value, _, says in rows)
    return Step("sizes", f"Given: {en}.", f"已知：{zh}。")


def _embedding(tree: Node) -> Step:
    formula = tree.find("embed").formula
    return Step(
        "embedding",
        f"Token embedding: one row of d numbers for each of the V tokens, {formula.text}: "
        f"{formula.worked}.",
        f"词嵌入：词表里的每个 token 占一行，每行 d 个数，{formula.text}：{formula.worked}。",
    )


def _positions(config: GPTConfig, tree: Node) -> Step:
    if config.positions == "learned":
        formula = tree.find("pos_embed").formula
        en = f"learned, one row of d numbers for each of the n_ctx positions, {formula.text}: "
        zh = f"学出来的位置嵌入，n_ctx 个位置各一行，每行 d 个数，{formula.text}："
        return Step(
            "positions", f"Positions: {en}{formula.worked}.", f"位置：{zh}{formula.worked}。"
        )
    if config.positions == "rope":
        return Step(
            "positions",
            "Positions: RoPE turns queries and keys by angles that are computed from the position; "
            "nothing is learned, so it has 0 parameters.",
            "位置：RoPE 按位置算出角度来旋转查询和键，没有要学的东西，参数为 0。",
        )
    return Step(
        "positions",
        "Positions: this model has neither position vectors nor a rotation, so 0 parameters.",
        "位置：这个模型既没有位置嵌入，也没有旋转，参数为 0。",
    )


def _stack(config: GPTConfig) -> Step:
    block = block_node(config).count
    worked = f"{config.n_layer:,} × {block:,} = {config.n_layer * block:,}"
    return Step(
        "blocks",
        f"All L blocks have the same shapes: {worked}.",
        f"L 层的形状都一样：{worked}。",
    )


def _unembedding(config: GPTConfig, tree: Node) -> Step:
    embed, unembed = tree.find("embed").formula, tree.find("unembed").formula
    if config.tied:
        return Step(
            "unembedding",
            f"Unembedding: tied, it is the token embedding's own matrix used once more and adds 0. "
            f"A matrix of its own would add {embed.count:,}.",
            f"输出矩阵：与词嵌入共享（tied），就是同一个矩阵再用一次，增加 0 个参数；"
            f"若单独一个矩阵，会多出 {embed.count:,} 个。",
        )
    return Step(
        "unembedding",
        f"Unembedding: not tied, a matrix of its own without biases, {unembed.text}: "
        f"{unembed.worked}.",
        f"输出矩阵：不与词嵌入共享，单独一个矩阵，没有偏置，{unembed.text}：{unembed.worked}。",
    )


def _total(tree: Node) -> Step:
    inside = tree.find("blocks").count
    share = f"{inside / tree.count:.1%}"
    return Step(
        "total",
        f"The whole model, {tree.formula.text}: {tree.formula.worked}. The blocks hold {share} of "
        f"it.",
        f"整个模型，{tree.formula.text}：{tree.formula.worked}。各层合计占 {share}。",
    )


def _names(config: GPTConfig) -> Step:
    counts = totals(config, inventory(config))
    twice_en = twice_zh = ""
    if config.tied:
        twice_en = f"; with the tied matrix counted twice {counts.with_ties_twice:,}"
        twice_zh = f"；共享的矩阵算两次：{counts.with_ties_twice:,}"
    return Step(
        "names",
        f"The same model is also quoted as: without embeddings {counts.without_embeddings:,}; by "
        f"nanoGPT's rule {counts.as_nanogpt:,}; by TransformerLens' rule "
        f"{counts.as_transformerlens:,}{twice_en}.",
        f"同一个模型还有别的报法：不含嵌入：{counts.without_embeddings:,}；按 nanoGPT 的算法："
        f"{counts.as_nanogpt:,}；按 TransformerLens 的算法：{counts.as_transformerlens:,}"
        f"{twice_zh}。",
    )


def _work(bill: Costs) -> Step:
    token = bill.token.total
    seen_en = seen_zh = ""
    if "S" in token.symbols:
        seen_en = " S is the number of keys that the window leaves to it, all layers together."
        seen_zh = "S 是窗口给它留下的键数，各层相加。"
    return Step(
        "work",
        f"Work: a weight that multiplies costs 2 FLOPs a token, and each key that a query sees "
        f"costs 2·D for q·k and 2·D for pattern·v. The last token of a context of "
        f"T = {bill.context:,} takes {token.text}: {token.worked} FLOPs in the forward pass."
        f"{seen_en}",
        f"计算量：每个参与乘法的权重对每个 token 花 2 FLOPs；一个查询每看一个键，q·k 花 2·D，"
        f"pattern·v 花 2·D。上下文 T = {bill.context:,} 时，最后一个 token 的前向计算是 "
        f"{token.text}：{token.worked} FLOPs。{seen_zh}",
    )


def _memory(bill: Costs) -> Step:
    weights, kept = bill.memory.weights["float32"], bill.memory.kv_cache["float32"]
    maps = bill.memory.attention_maps
    return Step(
        "memory",
        f"Memory in float32, bytes: weights {weights.worked}; keys and values of T = "
        f"{bill.context:,} tokens, {kept.text}: {kept.worked}; all attention maps of one run, "
        f"{maps.text}: {maps.worked}.",
        f"float32 下的内存（字节）：权重 {weights.worked}；T = {bill.context:,} 个 token 的键和值，"
        f"{kept.text}：{kept.worked}；一次运行的全部注意力图，{maps.text}：{maps.worked}。",
    )
