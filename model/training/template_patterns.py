"""Short patterns beside the pronoun sentences: names, quotes, brackets, copies, counting."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from model.training.template_words import ANIMALS


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES_EN = _words(
    "Tom Anna Ben Lily Sam Mia Jack Rose Max Lucy Tim Sara Leo Emma Dan Nora Bob Jane Fred Amy"
)
NAMES_ZH = _words("小明 小红 小华 小丽 小刚 小芳 小军 小美 小龙 小燕 小宝 小玲")
THINGS_EN = _words("ball book cake kite hat cup lamp box apple key flower stone drum boat coin")
THINGS_ZH = _words("球 书 蛋糕 风筝 帽子 杯子 灯 盒子 苹果 钥匙 花 石头 鼓 船 硬币")
NUMBERS_EN = _words(
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
)
NUMBERS_ZH = _words(
    "一 二 三 四 五 六 七 八 九 十 十一 十二 十三 十四 十五 十六 十七 十八 十九 二十"
)
BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"), ("<", ">"))
BRACKETS_ZH = (("（", "）"), ("【", "】"), ("《", "》"), ("「", "」"))


def _names_en(rng: random.Random) -> str:
    a, b = rng.sample(NAMES_EN, 2)
    thing = rng.choice(THINGS_EN)
    giver, taker = rng.choice(((a, b), (b, a)))
    return rng.choice(
        (
            f"{a} and {b} went out. {giver} had a {thing}. {giver} gave the {thing} to {taker}.",
            f"When {a} and {b} met, {giver} gave a {thing} to {taker}. {taker} thanked {giver}.",
            f"{a} likes {b}, {b} likes {a}. {giver} has a {thing}. Who has the {thing}? {giver}.",
        )
    )


def _names_zh(rng: random.Random) -> str:
    a, b = rng.sample(NAMES_ZH, 2)
    thing = rng.choice(THINGS_ZH)
    giver, taker = rng.choice(((a, b), (b, a)))
    return rng.choice(
        (
            f"{a}和{b}去公园。{giver}有{thing}。{giver}把{thing}给了{taker}。",
            f"{a}遇到{b}，{giver}把{thing}送给{taker}。{taker}谢谢{giver}。",
            f"{a}喜欢{b}，{b}也喜欢{a}。{giver}有{thing}。谁有{thing}？{giver}。",
        )
    )


def _quotes_en(rng: random.Random) -> str:
    a, b = rng.sample(NAMES_EN, 2)
    words = f"I saw the {rng.choice(ANIMALS).en} and the {rng.choice(THINGS_EN)}"
    return f'{a} said, "{words}." "What did you say?" asked {b}. {a} said again, "{words}."'


def _quotes_zh(rng: random.Random) -> str:
    a, b = rng.sample(NAMES_ZH, 2)
    words = f"我看见了{rng.choice(ANIMALS).zh}和{rng.choice(THINGS_ZH)}"
    return f"{a}说：“{words}。”“你说什么？”{b}问。{a}又说：“{words}。”"


def _nest(rng: random.Random, words: Sequence[str], pairs: tuple[tuple[str, str], ...]) -> str:
    text = rng.choice(words)
    for _ in range(rng.randint(1, 5)):
        left, right = rng.choice(pairs)
        text = f"{left}{text}{right}"
        if rng.random() < 0.3:
            text = f"{rng.choice(words)} {text}"
    return text


def _brackets_en(rng: random.Random) -> str:
    return " ".join(_nest(rng, THINGS_EN, BRACKETS) for _ in range(rng.randint(1, 3)))


def _brackets_zh(rng: random.Random) -> str:
    return "，".join(_nest(rng, THINGS_ZH, BRACKETS_ZH) for _ in range(rng.randint(1, 3)))


def _copy_en(rng: random.Random) -> str:
    words = [rng.choice((*THINGS_EN, *(a.en for a in ANIMALS))) for _ in range(rng.randint(3, 9))]
    said = " ".join(words)
    return rng.choice((f"Say: {said}. Again: {said}.", f"{said} | {said} | {said}"))


def _copy_zh(rng: random.Random) -> str:
    words = [rng.choice((*THINGS_ZH, *(a.zh for a in ANIMALS))) for _ in range(rng.randint(3, 9))]
    said = "、".join(words)
    return rng.choice((f"说：{said}。再说一遍：{said}。", f"{said}｜{said}｜{said}"))


def _span(rng: random.Random, words: Sequence[str]) -> Sequence[str]:
    start = rng.randrange(len(words) - 3)
    part = words[start : start + rng.randint(4, 10)]
    return part if rng.random() < 0.75 else part[::-1]


def _count_en(rng: random.Random) -> str:
    kind = rng.randrange(3)
    if kind == 0:
        return " ".join(_span(rng, NUMBERS_EN))
    if kind == 1:
        return " ".join(_span(rng, [str(n) for n in range(1, 100)]))
    noun = rng.choice([animal.en for animal in ANIMALS if animal.en[-1] in "gtwrk"])
    return f"One {noun}, " + ", ".join(f"{n} {noun}s" for n in NUMBERS_EN[1 : rng.randint(4, 10)])


def _count_zh(rng: random.Random) -> str:
    kind = rng.randrange(3)
    if kind == 0:
        return "、".join(_span(rng, NUMBERS_ZH))
    if kind == 1:
        return "".join(_span(rng, NUMBERS_ZH[:10]))
    noun = rng.choice(("猫", "鸭子", "小鸟", "兔子", "青蛙", "羊"))
    counted = ["一", "两", *NUMBERS_ZH[2:10]][: rng.randint(4, 10)]
    return "，".join(f"{n}只{noun}" for n in counted) + "。"


PATTERNS: Mapping[str, tuple[Callable[[random.Random], str], ...]] = {
    "en": (_names_en, _quotes_en, _brackets_en, _copy_en, _count_en),
    "zh": (_names_zh, _quotes_zh, _brackets_zh, _copy_zh, _count_zh),
}
