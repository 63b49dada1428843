"""An endless, seeded source of template sentences in English and Chinese.

The core are sentences whose pronoun has one sensible antecedent: who was hungry depends on the
verb ("chased" hungry: the chaser; "fed" hungry: the fed). Each is followed by an ending that
names the antecedent. Beside them: names that come again, quotes, brackets, copies, counting.
Knows nothing of tokens.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from model.training.template_patterns import PATTERNS
from model.training.template_words import ANIMALS, PLACES, SCENES, Reason

Language = Literal["en", "zh"]
UNSEEN_SHARE = 10
PRONOUN_SHARE = 0.75


@dataclass(frozen=True)
class Pronoun:
    """One pronoun sentence: numbers into the word tables of `template_words`.

    `of_subject`: whether the pronoun means the subject; `reason` counts within that side.
    """

    language: Language
    scene: int
    of_subject: bool
    reason: int
    subject: int
    object: int

    @property
    def unseen(self) -> bool:
        """Whether this combination is kept out of training; decided by its hash, 1 in 10.

        The language is not part of the hash: a combination seen in English is no new one in
        Chinese.
        """
        key = f"{self.scene}/{self.of_subject}/{self.reason}/{self.subject}/{self.object}"
        return hashlib.blake2b(key.encode()).digest()[0] % UNSEEN_SHARE == 0

    @property
    def fitting(self) -> str:
        """The noun that the pronoun means."""
        return self._noun(self.subject if self.of_subject else self.object)

    @property
    def unfitting(self) -> str:
        """The other noun of the sentence."""
        return self._noun(self.object if self.of_subject else self.subject)

    def sentence(self) -> str:
        """The clause and its reason: 「猫追老鼠，因为它饿了。」"""
        a, b = self._noun(self.subject), self._noun(self.object)
        if self.language == "zh":
            return f"{SCENES[self.scene].zh.format(a=a, b=b)}，因为它{self._reason().zh}。"
        english = SCENES[self.scene].en.format(a=f"the {a}", b=f"the {b}")
        return f"{english[0].upper()}{english[1:]} because it {self._reason().en}."

    def ending(self, noun: str, form: int = 0) -> str:
        """What comes after the sentence and says who was meant, in one of ENDING_FORMS forms."""
        reason = self._reason()
        if self.language == "zh":
            return (
                f"{reason.zh_bare}的是{noun}。",
                f"是{noun}{reason.zh}。",
                f"谁{reason.zh}？{noun}。",
            )[form]
        return (
            f" The one that {reason.en} was the {noun}.",
            f" It was the {noun} that {reason.en}.",
            f" Who {reason.en}? The {noun}.",
        )[form]

    def _noun(self, index: int) -> str:
        return ANIMALS[index].zh if self.language == "zh" else ANIMALS[index].en

    def _reason(self) -> Reason:
        scene = SCENES[self.scene]
        return (scene.of_subject if self.of_subject else scene.of_object)[self.reason]


ENDING_FORMS = 3


def draw_pronoun(rng: random.Random, language: Language, *, unseen: bool) -> Pronoun:
    """A random pronoun sentence from one side of the split; half of them mean the subject."""
    while True:
        scene = rng.randrange(len(SCENES))
        of_subject = rng.random() < 0.5
        reasons = SCENES[scene].of_subject if of_subject else SCENES[scene].of_object
        subject, other = rng.sample(range(len(ANIMALS)), 2)
        drawn = Pronoun(
            language, scene, of_subject, rng.randrange(len(reasons)), subject, other
        )  # fmt: skip
        if drawn.unseen == unseen:
            return drawn


def unseen_pairs(language: Language, count: int, seed: int = 0) -> list[Pronoun]:
    """`count` different pronoun sentences that training never says, half meaning the subject."""
    rng = random.Random(f"unseen:{language}:{seed}")
    wanted = {True: (count + 1) // 2, False: count // 2}
    pairs: list[Pronoun] = []
    while len(pairs) < count:
        drawn = draw_pronoun(rng, language, unseen=True)
        if wanted[drawn.of_subject] and drawn not in pairs:
            wanted[drawn.of_subject] -= 1
            pairs.append(drawn)
    return pairs


def documents(rng: random.Random) -> Iterator[str]:
    """Template documents without end, English and Chinese in equal number."""
    while True:
        language: Language = "zh" if rng.random() < 0.5 else "en"
        if rng.random() < PRONOUN_SHARE:
            yield _pronoun_document(rng, language)
        else:
            yield rng.choice(PATTERNS[language])(rng)


def _pronoun_document(rng: random.Random, language: Language) -> str:
    sentences = []
    for _ in range(rng.choice((1, 1, 2))):
        drawn = draw_pronoun(rng, language, unseen=False)
        sentence = drawn.sentence()
        if rng.random() < 0.25:
            place = rng.choice(PLACES)
            sentence = (
                f"{place.zh}，{sentence}"
                if language == "zh"
                else f"{place.en}, {sentence[0].lower()}{sentence[1:]}"
            )
        forms = rng.sample(range(ENDING_FORMS), rng.choice((1, 1, 2)))
        sentences.append(sentence + "".join(drawn.ending(drawn.fitting, form) for form in forms))
    return ("\n" if rng.random() < 0.5 else (" " if language == "en" else "")).join(sentences)
