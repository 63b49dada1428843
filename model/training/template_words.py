"""The words of the template sentences: animals, places, and scenes with their reasons.

A scene is a verb with reasons that can only mean its subject and reasons that can only mean its
object, as many of one as of the other. The same reason stands on different sides in different
scenes (fast: of the chased, but of the catcher), so that it decides nothing by itself.
"""

from __future__ import annotations

from typing import NamedTuple


class Word(NamedTuple):
    """The same word in both languages."""

    en: str
    zh: str


def _words(pairs: str) -> tuple[Word, ...]:
    return tuple(Word(*pair.split("/")) for pair in pairs.split("|"))


class Reason(NamedTuple):
    """What follows "it" and 它; `zh_bare` is the form that stands before 的."""

    en: str
    zh: str
    zh_bare: str


class Scene(NamedTuple):
    """Who did what to whom, and why: `{a}` is the subject, `{b}` the object."""

    en: str
    zh: str
    of_subject: tuple[Reason, ...]
    of_object: tuple[Reason, ...]


ANIMALS = _words(
    "cat/猫|mouse/老鼠|dog/狗|rabbit/兔子|fox/狐狸|wolf/狼|bear/熊|lion/狮子|tiger/老虎|horse/马|"
    "cow/牛|sheep/羊|goat/山羊|pig/猪|duck/鸭子|goose/鹅|hen/母鸡|bird/小鸟|frog/青蛙|fish/鱼|"
    "snake/蛇|monkey/猴子|elephant/大象|deer/鹿|donkey/驴|turtle/乌龟|squirrel/松鼠|crow/乌鸦|"
    "owl/猫头鹰|eagle/老鹰|bee/蜜蜂|ant/蚂蚁"
)

PLACES = _words(
    "In the garden/在花园里|In the forest/在森林里|By the river/在河边|On the farm/在农场上|"
    "Yesterday/昨天|One day/有一天|Last night/昨天晚上|In the morning/早上|On the hill/在山上|"
    "After the rain/下雨以后|At noon/中午|In the snow/在雪地里"
)

HUNGRY = Reason("was hungry", "饿了", "饿")
TIRED = Reason("was tired", "累了", "累")
ANGRY = Reason("was angry", "生气了", "生气")
AFRAID = Reason("was afraid", "害怕", "害怕")
LOST = Reason("was lost", "迷路了", "迷路")
HURT = Reason("was hurt", "受伤了", "受伤")
LONELY = Reason("was lonely", "很孤单", "孤单")
KIND = Reason("was kind", "心地好", "心地好")
STRONG = Reason("was strong", "力气大", "力气大")
WEAK = Reason("was weak", "力气小", "力气小")
FAST = Reason("ran fast", "跑得快", "跑得快")
SLOW = Reason("was slow", "跑得慢", "跑得慢")
SMALL = Reason("was little", "很小", "小")
BIG = Reason("was big", "很大", "大")
CURIOUS = Reason("was curious", "很好奇", "好奇")
THIEF = Reason("stole the bread", "偷了面包", "偷了面包")
LOUD = Reason("made a noise", "发出了声音", "发出声音")
BRIGHT = Reason("shone in the sun", "在阳光下发亮", "在阳光下发亮")
SHARP = Reason("had sharp eyes", "眼睛尖", "眼睛尖")
AWAKE = Reason("was awake", "醒着", "醒着")
RICH = Reason("had much food", "有很多吃的", "有很多吃的")
GUIDE = Reason("knew the way", "认识路", "认识路")
FIERCE = Reason("was fierce", "很凶", "凶")
LATE = Reason("was late", "迟到了", "迟到")
PATIENT = Reason("was patient", "有耐心", "有耐心")
THANKFUL = Reason("was thankful", "很感激", "感激")
HELPFUL = Reason("had helped", "帮了忙", "帮了忙")
CLEVER = Reason("was clever", "很聪明", "聪明")
FOOLISH = Reason("was foolish", "很笨", "笨")

SCENES = (
    Scene("{a} chased {b}", "{a}追{b}", (HUNGRY, ANGRY, FIERCE), (FAST, THIEF, AFRAID)),
    Scene("{a} saw {b}", "{a}看见{b}", (SHARP, AWAKE, CURIOUS), (BIG, LOUD, BRIGHT)),
    Scene("{a} helped {b}", "{a}帮{b}", (KIND, STRONG, CLEVER), (TIRED, HURT, LOST)),
    Scene("{a} fed {b}", "{a}喂{b}", (KIND, RICH, PATIENT), (HUNGRY, SMALL, WEAK)),
    Scene("{a} caught {b}", "{a}抓住{b}", (FAST, STRONG, CLEVER), (SLOW, TIRED, HURT)),
    Scene("{a} ran away from {b}", "{a}躲开{b}", (AFRAID, SMALL, WEAK), (FIERCE, BIG, ANGRY)),
    Scene("{a} followed {b}", "{a}跟着{b}", (LOST, CURIOUS, LONELY), (GUIDE, RICH, CLEVER)),
    Scene("{a} waited for {b}", "{a}等{b}", (PATIENT, KIND, FAST), (LATE, SLOW, TIRED)),
    Scene("{a} carried {b}", "{a}背{b}", (STRONG, BIG, KIND), (HURT, SMALL, TIRED)),
    Scene("{a} thanked {b}", "{a}谢谢{b}", (THANKFUL, HUNGRY, LOST), (HELPFUL, KIND, GUIDE)),
    Scene("{a} tricked {b}", "{a}骗了{b}", (CLEVER, HUNGRY, THIEF), (FOOLISH, RICH, SLOW)),
)
