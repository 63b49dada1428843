"""The five mistakes in words, Chinese and English: what is made wrong, what one then sees.

Words only; `model.labs.diagnostics` has the numbers, and says whether they bear the symptom.
"""

from __future__ import annotations

from dataclasses import dataclass

from model.labs.diagnostics import MistakeId
from model.labs.readings import Sentence


@dataclass(frozen=True)
class MistakeWords:
    """`note` says what the numbers do and do not show."""

    title: Sentence
    symptom: Sentence
    note: Sentence


MISTAKES: dict[MistakeId, MistakeWords] = {
    "no_mask": MistakeWords(
        title=Sentence("忘了因果遮挡", "The causal mask is forgotten"),
        symptom=Sentence(
            "训练损失低得出奇，一生成就胡言乱语：它学会了偷看答案。",
            "The training loss is wonderfully low and the generated text is nonsense: "
            "it learned to peek at the answer.",
        ),
        note=Sentence(
            "这个症状要不带遮挡地训练才会出现，这里没有训练，所以没有量。"
            "量的是遮挡本身：改掉最后一个词，前面各位置的 logits 最多变了多少；"
            "有遮挡时应当恰好是 0。",
            "The symptom comes of training without the mask, which was not done here, so it was "
            "not measured. What was measured is the mask itself: the last token is changed, and "
            "the number is the largest change of a logit before it, exactly 0 under the mask.",
        ),
    ),
    "no_scale": MistakeWords(
        title=Sentence("忘了除以 √d", "÷√d is forgotten"),
        symptom=Sentence(
            "softmax 塌向一个赢家，能传回去的梯度随之变小。",
            "The softmax collapses towards one winner, and the gradient through it gets smaller.",
        ),
        note=Sentence(
            "量的是本模型每一行注意力的最大权重、熵和 softmax 梯度的平均值。"
            "权重还是随机的小数时，点积本来就小，少了 √d 也未必塌，这时梯度甚至会更大。",
            "Measured on this model: the means over its attention rows of the largest weight, the "
            "entropy and the softmax's gradient. Small random weights give small dots, which need "
            "not collapse without √d; the gradient may then even be larger.",
        ),
    ),
    "no_position": MistakeWords(
        title=Sentence("忘了位置信息", "Positions are forgotten"),
        symptom=Sentence(
            "「猫追老鼠」和「老鼠追猫」在它眼里是同一堆词。",
            "“The cat chases the mouse” and “the mouse chases the cat” are one bag of words to it.",
        ),
        note=Sentence(
            "把整句倒过来、去掉遮挡再跑一遍：没有位置时，每个词的输出一样，只是换了地方；"
            "数字是同一个词两次输出的最大差，相对于输出的大小。遮挡本身也会泄露一点次序。",
            "The text is run backwards, without the mask: without positions every token comes out "
            "the same, only elsewhere. The number is the largest difference between a token's two "
            "outputs, relative to their size. The mask by itself gives some order away too.",
        ),
    ),
    "no_residual": MistakeWords(
        title=Sentence("忘了残差连接", "The residual connection is forgotten"),
        symptom=Sentence(
            "损失几乎不降；层数一多，各个词的向量越来越像。",
            "The loss hardly falls, and layer by layer the tokens' vectors grow alike.",
        ),
        note=Sentence(
            "在同样结构、刚初始化的权重上量：各词向量最后有多相似，第一层收到的梯度，"
            "以及学这一句话若干步之后的损失。层前有归一化，梯度不一定消失，数字是多少就报多少。",
            "Measured on freshly drawn weights of the same config: how alike the tokens' last "
            "vectors are, the gradient that arrives at the first layer, and the loss after some "
            "steps of learning this text. With a norm before each sublayer the gradient need not "
            "vanish; the number is reported as it is.",
        ),
    ),
    "uneven_heads": MistakeWords(
        title=Sentence("宽度除不尽头数", "The width is not divisible by the heads"),
        symptom=Sentence(
            "拆头那一步的形状对不上，程序直接报错。",
            "The shapes do not fit where the heads are split, and the program stops with an error.",
        ),
        note=Sentence(
            "每个头要分到同样宽的一份；这里在建模型之前就拒绝，并说出两个数。",
            "Every head needs a share of one width; it is refused here before a model is made, "
            "with both numbers.",
        ),
    ),
}

NUMBERS: dict[str, Sentence] = {
    "future_leak": Sentence(
        "改动最后一个词后，前面 logits 的最大变化",
        "largest change of an earlier logit when the last token is changed",
    ),
    "loss": Sentence("这段文字上的损失，nat/词", "this model's loss on the text, nats a token"),
    "largest_weight": Sentence("每行最大权重的平均", "mean of each row's largest weight"),
    "entropy_nats": Sentence("每行熵的平均，nat", "mean entropy of a row, nats"),
    "softmax_gradient": Sentence("softmax 梯度的平均大小", "mean norm of the softmax's gradient"),
    "order_difference": Sentence(
        "倒序后同一个词输出的最大差，相对值",
        "largest difference of a token's output when the text runs backwards, relative",
    ),
    "fresh_loss_after_steps": Sentence(
        "新权重学这段文字若干步后的损失，nat/词",
        "loss of fresh weights after some steps of learning the text, nats a token",
    ),
    "fresh_similarity": Sentence(
        "新权重最后一层各词向量的平均余弦",
        "mean cosine between tokens after the last block of fresh weights",
    ),
    "fresh_first_gradient": Sentence(
        "新权重第一层收到的梯度大小", "norm of the gradient at the first layer of fresh weights"
    ),
    "n_head": Sentence("头数", "number of heads"),
    "width_left_over": Sentence("宽度除以头数的余数", "what the width leaves over the heads"),
}
