"""The course as data: every experiment, pitfall and step, the request that shows it, what to see.

A test runs each of them. Requests speak of layer 0 and head 0, which every model has, and of the
course's own examples. Knows nothing of HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from model.labs.readings import Sentence

Need = Literal["rope", "positions", "tokenizer", "same_tokens", "layernorm", "few_weights"]
TEXT = "猫追老鼠，因为它饿了。"


@dataclass(frozen=True)
class See:
    """`value` is a JSON value, two bounds for "between", or {"pointer": …} into the same answer."""

    pointer: str
    op: str
    value: Any
    zh: str
    en: str


@dataclass(frozen=True)
class Item:
    """`needs` is what a loaded model must have for it."""

    id: str
    kind: str
    title: Sentence
    path: str
    body: dict[str, Any] | None
    observe: tuple[See, ...]
    needs: tuple[Need, ...] = ()


EXPERIMENTS = (
    Item(
        "attention_by_hand",
        "experiment",
        Sentence("手算一次注意力", "Attention by hand, once"),
        "/v1/labs/attention",
        {"query": 4},
        (
            See("/dots/0/0", "equals", 6, "「它」和「猫」的点积是 6", "the dot of 它 and 猫 is 6"),
            See("/top_keys/0", "equals", 0, "「它」最看重「猫」", "它 looks most at 猫"),
            See(
                "/top_weights/0",
                "at_most",
                0.75,
                "除以 √4 之后，别的词还留有份额",
                "divided by √4, the other words keep a share",
            ),
        ),
    ),
    Item(
        "without_scale",
        "experiment",
        Sentence("去掉 ÷√d", "Leave ÷√d out"),
        "/v1/labs/attention",
        {"query": 4, "scaled": False},
        (
            See(
                "/top_weights/0",
                "at_least",
                0.95,
                "权重几乎全归了「猫」",
                "nearly all of the weight goes to 猫",
            ),
            See("/scale", "equals", 1, "分数就是点积", "the scores are the dots"),
        ),
    ),
    Item(
        "causal_mask",
        "experiment",
        Sentence("盖住未来", "Hide the future"),
        "/v1/labs/attention",
        {"causal": True},
        (
            See(
                "/masked_scores/0/1",
                "equals",
                None,
                "「猫」对「追」的分数是 −∞（写作 null）",
                "the score of 猫 for 追 is −∞ (written null)",
            ),
            See(
                "/pattern/0/1",
                "equals",
                0,
                "softmax 之后恰好是 0",
                "after the softmax it is exactly 0",
            ),
            See(
                "/pattern/0/0",
                "equals",
                1,
                "第一个词只能看自己",
                "the first word can only look at itself",
            ),
        ),
    ),
    Item(
        "the_matrix",
        "experiment",
        Sentence("整张注意力矩阵的四个阶段", "The whole matrix, in its four stages"),
        "/v1/attention",
        {
            "text": TEXT,
            "layers": [0],
            "heads": [0],
            "stages": ["dots", "scores", "masked_scores", "pattern"],
        },
        (
            See("/checks/future_mass", "equals", 0, "没有权重落在未来", "no weight on the future"),
            See("/checks/row_sum_error", "at_most", 2e-6, "每一行加起来是 1", "each row sums to 1"),
        ),
        ("tokenizer",),
    ),
    Item(
        "one_number",
        "experiment",
        Sentence("拆开矩阵里的一个数", "One number of the matrix, taken apart"),
        "/v1/attention/cell",
        {"text": TEXT, "layer": 0, "head": 0, "query": -1, "key": 0},
        (
            See(
                "/cell/errors/dot",
                "at_most",
                1e-6,
                "逐项乘积加起来，就是模型自己的点积",
                "the products add up to the model's own dot",
            ),
            See(
                "/cell/errors/weight",
                "at_most",
                1e-5,
                "手算的权重就是模型自己的权重",
                "the weight worked out by hand is the model's own",
            ),
        ),
        ("tokenizer",),
    ),
    Item(
        "one_hidden_number",
        "experiment",
        Sentence("拆开一个被盖住的数", "A hidden number, taken apart"),
        "/v1/attention/cell",
        {"text": TEXT, "layer": 0, "head": 0, "query": 0, "key": 1},
        (
            See("/cell/masked", "equals", True, "它在未来", "it lies in the future"),
            See("/cell/exp", "equals", 0, "它的 exp 是 0", "its exp is 0"),
            See("/cell/weight", "equals", 0, "所以权重是 0", "so its weight is 0"),
        ),
        ("tokenizer",),
    ),
    Item(
        "three_heads",
        "experiment",
        Sentence("三个头，三种看法", "Three heads, three ways to look"),
        "/v1/labs/heads",
        {},
        (
            See(
                "/heads/0/readings/strongest",
                "equals",
                {"query": 4, "key": 0, "weight": 0.7578820004},
                "第一个头：「它」指的是「猫」",
                "head 0: 它 means 猫",
            ),
            See(
                "/heads/1/readings/strongest/key",
                "equals",
                2,
                "第二个头：「追」找它的对象「老鼠」",
                "head 1: 追 finds whom it is done to, 老鼠",
            ),
            See(
                "/heads/2/readings/strongest/key",
                "equals",
                4,
                "第三个头：「饿了」找到「它」",
                "head 2: 饿了 finds 它",
            ),
            See(
                "/mixing_error",
                "at_most",
                1e-12,
                "拼接后乘 W_O，等于各头各写各的再相加",
                "concatenating and W_O is the same as adding up what each head writes",
            ),
        ),
    ),
    Item(
        "three_heads_masked",
        "experiment",
        Sentence("三个头，盖住未来", "Three heads under the mask"),
        "/v1/labs/heads",
        {"causal": True},
        (
            See(
                "/heads/1/readings/strongest/key",
                "equals",
                0,
                "「老鼠」还没出现，「追」只能看「猫」",
                "老鼠 is not there yet: 追 looks at 猫",
            ),
            See(
                "/heads/0/readings/strongest/key",
                "equals",
                0,
                "「它」在后面，照样看得到「猫」",
                "它 comes later and still sees 猫",
            ),
        ),
    ),
    Item(
        "heads_of_the_model",
        "experiment",
        Sentence("模型自己的头", "The model's own heads"),
        "/v1/labs/heads",
        {"source": {"kind": "model", "text": TEXT, "layer": 0}},
        (
            See(
                "/model_error",
                "at_most",
                1e-3,
                "手算的输出就是模型自己的 attn_out",
                "the output by hand is the model's own attn_out",
            ),
        ),
        ("tokenizer",),
    ),
    Item(
        "why_scale",
        "experiment",
        Sentence("为什么要除以 √d", "Why ÷√d"),
        "/v1/labs/scaling",
        {"head_sizes": [2, 64, 1024]},
        (
            See(
                "/sizes/2/unscaled/variance",
                "between",
                [900, 1150],
                "d = 1024 时，点积的方差约为 1024",
                "at d = 1024 the dots have a variance of about 1024",
            ),
            See(
                "/sizes/2/scaled/variance",
                "between",
                [0.9, 1.1],
                "除以 √d 之后约为 1",
                "÷√d makes it about 1",
            ),
            See(
                "/sizes/2/unscaled/largest_weight",
                "above",
                0.9,
                "不除的话，一个键几乎拿走全部",
                "undivided, one key takes nearly all",
            ),
            See(
                "/sizes/2/unscaled/gradient_norm",
                "below",
                {"pointer": "/sizes/2/scaled/gradient_norm"},
                "梯度也小了",
                "and the gradient is smaller",
            ),
        ),
    ),
    Item(
        "rope_relative",
        "experiment",
        Sentence("旋转之后，只剩相对距离", "After the turn only the distance is left"),
        "/v1/rope/rotate",
        {},
        (
            See(
                "/steps/0/dot",
                "equals",
                {"pointer": "/steps/1/dot"},
                "(3, 1) 和 (7, 5) 的点积相同",
                "the dots at (3, 1) and (7, 5) are the same",
            ),
            See(
                "/steps/0/dot",
                "equals",
                {"pointer": "/steps/0/closed_form"},
                "和公式 |q||k|cos(φ + (m−n)·20°) 一致",
                "and what |q||k|cos(φ + (m−n)·20°) gives",
            ),
            See(
                "/steps/2/dot",
                "equals",
                {"pointer": "/unrotated_dot"},
                "同一个位置上，和没转一样",
                "at one place it is as if nothing were turned",
            ),
        ),
    ),
    Item(
        "rope_shift",
        "experiment",
        Sentence("一起挪，和只挪一个", "Shift both, and shift one"),
        "/v1/rope/rotate",
        {"positions": [{"m": 3, "n": 1}], "shift": 4},
        (
            See(
                "/steps/0/shift_both/difference",
                "between",
                [-1e-14, 1e-14],
                "一起挪 4 格，点积不变（只差舍入）",
                "both moved by 4: the same dot, but for rounding",
            ),
            See(
                "/steps/0/shift_m/difference",
                "below",
                -0.1,
                "只挪 q，点积就变了",
                "q alone moved: another dot",
            ),
        ),
    ),
    Item(
        "rope_decay",
        "experiment",
        Sentence("越远，点积越小", "The farther, the smaller"),
        "/v1/rope/frequencies",
        {"d_head": 64, "context": 1024, "scalings": [{"kind": "none"}], "distances": [0, 16, 256]},
        (
            See(
                "/ladders/0/by_distance/0",
                "equals",
                1,
                "距离 0：两个相同的向量，点积是 1",
                "at distance 0 two equal vectors of length 1 have dot 1",
            ),
            See(
                "/ladders/0/by_distance/1",
                "above",
                {"pointer": "/ladders/0/by_distance/2"},
                "距离 16 比距离 256 大",
                "at 16 it is larger than at 256",
            ),
        ),
    ),
    Item(
        "rope_stretch",
        "experiment",
        Sentence("把上下文拉长四倍", "A context four times as long"),
        "/v1/rope/frequencies",
        {},
        (
            See(
                "/ladders/1/stretch/0",
                "equals",
                4,
                "线性缩放：快的慢的都慢四倍",
                "linear: fast pairs and slow ones turn four times slower",
            ),
            See(
                "/ladders/2/stretch/0",
                "equals",
                1,
                "NTK：最快的不动",
                "NTK: the fastest stays as it is",
            ),
            See(
                "/ladders/4/attention_factor",
                "between",
                [1.1386, 1.1387],
                "YaRN 还给 cos 和 sin 乘上 0.1·ln 4 + 1",
                "YaRN multiplies cos and sin by 0.1·ln 4 + 1 as well",
            ),
        ),
    ),
    Item(
        "rope_of_the_model",
        "experiment",
        Sentence("转一转模型自己的 q 和 k", "The model's own q and k, turned"),
        "/v1/rope/rotate",
        {"model": {"text": TEXT, "layer": 0, "head": 0, "query": -1, "key": 0}, "decimals": 4},
        (
            See(
                "/pair/dot_error",
                "at_most",
                1e-5,
                "转到原位，就是模型自己的点积",
                "turned to where they stand, they give the model's own dot",
            ),
            See(
                "/steps/0/dot",
                "equals",
                {"pointer": "/steps/1/dot"},
                "一起挪 10 格，点积不变",
                "both moved by 10: the same dot",
            ),
        ),
        ("tokenizer", "rope"),
    ),
    Item(
        "order",
        "experiment",
        Sentence("「猫追老鼠」和「老鼠追猫」", "猫追老鼠 and 老鼠追猫"),
        "/v1/labs/order",
        {},
        (
            See(
                "/cases/0/same_set",
                "equals",
                True,
                "没有位置、没有遮挡：输出是同一组，只是换了位置",
                "without positions and mask: the same outputs, in other places",
            ),
            See(
                "/cases/2/same_set",
                "equals",
                False,
                "有了位置，就分得清谁追谁",
                "with positions it can tell who chases whom",
            ),
        ),
        ("tokenizer", "same_tokens", "positions"),
    ),
    Item(
        "the_norm",
        "experiment",
        Sentence("LayerNorm 前后", "Before and after LayerNorm"),
        "/v1/labs/block",
        {"text": TEXT, "layer": 0, "position": -1},
        (
            See(
                "/ln1/normalized/mean",
                "between",
                [-1e-3, 1e-3],
                "均值成了 0",
                "the mean becomes 0",
            ),
            See(
                "/ln1/normalized/variance",
                "between",
                [0.9, 1.001],
                "方差成了 1（只差 ε）",
                "the variance becomes 1, but for ε",
            ),
            See(
                "/mlp_sum_error",
                "at_most",
                1e-3,
                "残差：写多少就加多少",
                "the residual: what is written is added",
            ),
        ),
        ("tokenizer", "layernorm"),
    ),
)


def _pitfall(
    name: str, zh: str, en: str, *observe: See, needs: tuple[Need, ...] = ("tokenizer",)
) -> Item:
    return Item(name, "pitfall", Sentence(zh, en), "/v1/labs/diagnostics", {}, observe, needs)


PITFALLS = (
    _pitfall(
        "no_mask",
        "坑：忘了因果遮挡",
        "Pitfall: no causal mask",
        See(
            "/mistakes/0/numbers/0/now",
            "equals",
            0,
            "有遮挡：改最后一个词，前面的 logits 一个都不动",
            "with the mask: change the last token, and no earlier logit moves",
        ),
        See(
            "/mistakes/0/numbers/0/mistake",
            "above",
            0,
            "没有遮挡：前面也跟着变，答案漏了出去",
            "without it: earlier logits move too, the answer leaks",
        ),
    ),
    _pitfall(
        "no_scale",
        "坑：忘了 ÷√d",
        "Pitfall: no ÷√d",
        See(
            "/mistakes/1/numbers/0/mistake",
            "above",
            {"pointer": "/mistakes/1/numbers/0/now"},
            "每一行更偏向一个赢家",
            "each row leans more to one winner",
        ),
        See(
            "/mistakes/1/numbers/1/mistake",
            "below",
            {"pointer": "/mistakes/1/numbers/1/now"},
            "熵更小",
            "the entropy is smaller",
        ),
    ),
    _pitfall(
        "no_position",
        "坑：忘了位置",
        "Pitfall: no positions",
        See(
            "/mistakes/2/numbers/0/mistake",
            "at_most",
            1e-5,
            "倒过来念，每个词的输出都一样",
            "read backwards, every token comes out the same",
        ),
        See(
            "/mistakes/2/numbers/0/now",
            "above",
            1e-5,
            "有位置时不一样",
            "with positions it does not",
        ),
        needs=("tokenizer", "positions"),
    ),
    _pitfall(
        "no_residual",
        "坑：忘了残差",
        "Pitfall: no residual",
        See(
            "/mistakes/3/numbers/1/mistake",
            "above",
            {"pointer": "/mistakes/3/numbers/1/now"},
            "新权重学同一句话，没有残差时损失更高",
            "fresh weights that learn the text end at a higher loss without it",
        ),
        See(
            "/mistakes/3/numbers/2/mistake",
            "above",
            {"pointer": "/mistakes/3/numbers/2/now"},
            "各个词的向量更像了",
            "and the tokens' vectors are more alike",
        ),
        needs=("tokenizer", "few_weights"),
    ),
    _pitfall(
        "uneven_heads",
        "坑：宽度除不尽头数",
        "Pitfall: heads that do not divide the width",
        See(
            "/mistakes/4/numbers/1/mistake",
            "above",
            0,
            "有余数，每个头分不到一样宽",
            "something is left over: the heads get no equal share",
        ),
    ),
)

STEPS = (
    Item(
        "embed",
        "step",
        Sentence("第一步：词变成向量", "Step 1: tokens become vectors"),
        "/v1/inspect",
        {"text": TEXT, "captures": [{"site": "embed"}]},
        (
            See(
                "/tensors/embed/axes",
                "equals",
                ["position", "d_model"],
                "每个词一个向量",
                "one vector a token",
            ),
        ),
        ("tokenizer",),
    ),
    Item(
        "project",
        "step",
        Sentence("第二步：投影成 q、k、v", "Step 2: projections to q, k and v"),
        "/v1/inspect",
        {
            "text": TEXT,
            "captures": [
                {"site": site, "layers": [0], "reduce": "stats"}
                for site in ("attn.q", "attn.k", "attn.v")
            ],
        },
        (
            See(
                "/tensors/attn.q/axes",
                "equals",
                ["layer", "head", "position", "stat"],
                "每个头、每个词都有自己的 q",
                "every head has a q for every token",
            ),
        ),
        ("tokenizer",),
    ),
    Item(
        "attend",
        "step",
        Sentence("第三步：注意力", "Step 3: attention"),
        "/v1/attention",
        {"text": TEXT},
        (
            See("/checks/future_mass", "equals", 0, "看不到未来", "nobody sees the future"),
            See("/checks/row_sum_error", "at_most", 2e-6, "每一行加起来是 1", "each row sums to 1"),
            See("/checks/finite", "equals", True, "没有 NaN", "no NaN"),
        ),
        ("tokenizer",),
    ),
    Item(
        "add_up",
        "step",
        Sentence("第四步：残差把一切加起来", "Step 4: the residual stream adds everything up"),
        "/v1/inspect",
        {
            "text": TEXT,
            "captures": [{"site": "resid_post", "layers": [-1], "reduce": "stats"}],
            "checks_level": "full",
        },
        (
            See(
                "/checks/residual_sum_error",
                "at_most",
                1e-3,
                "词向量加上每一层写的，就是最后的残差",
                "the embedding and every write make up the last residual",
            ),
            See(
                "/checks/head_sum_error",
                "at_most",
                1e-3,
                "各头写的加上偏置，就是 attn_out",
                "what the heads write and the bias make up attn_out",
            ),
        ),
        ("tokenizer",),
    ),
    Item(
        "predict",
        "step",
        Sentence("第五步：预测下一个词", "Step 5: the next token"),
        "/v1/logits",
        {"text": TEXT, "positions": "all", "top": 1},
        (
            See(
                "/predictions/0/top/0/probability",
                "between",
                [0, 1],
                "每个位置都给出整个词表上的概率",
                "every position gives probabilities over the whole vocabulary",
            ),
        ),
        ("tokenizer",),
    ),
    Item(
        "count",
        "step",
        Sentence("第六步：数一数参数", "Step 6: count the parameters"),
        "/v1/parameters",
        {"preset": "course"},
        (
            See(
                "/totals/unique",
                "equals",
                49_244_928,
                "6 层、384 宽、6 个头：约 5000 万",
                "6 layers, 384 wide, 6 heads: about 50 million",
            ),
        ),
    ),
    Item(
        "count_yours",
        "step",
        Sentence("第七步：这个模型的参数", "Step 7: this model's parameters"),
        "/v1/model/parameters",
        None,
        (
            See(
                "/checks/exact",
                "equals",
                True,
                "公式数出来的，和模型里存的一样多",
                "the formulas count what the model really holds",
            ),
        ),
    ),
)

COURSE = (*EXPERIMENTS, *PITFALLS, *STEPS)
