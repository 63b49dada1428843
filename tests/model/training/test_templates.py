"""Template sentences: by rule, the same for the same seed, and never the unseen ones."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from model.training import templates
from model.training.template_words import ANIMALS, SCENES
from model.training.templates import ENDING_FORMS, Language, Pronoun, draw_pronoun, unseen_pairs

LANGUAGES: tuple[Language, ...] = ("en", "zh")


def number(text: str, lists: str = "en") -> int:
    """The animal's place in the table."""
    return next(i for i, a in enumerate(ANIMALS) if getattr(a, lists) == text)


def find(language: Language, clause: str, reason: str) -> Pronoun:
    """The pronoun sentence that says this of cat and mouse, on whichever side it stands."""
    for scene, words in enumerate(SCENES):
        if getattr(words, language) != clause:
            continue
        for of_subject, reasons in ((True, words.of_subject), (False, words.of_object)):
            for place, words_of in enumerate(reasons):
                if getattr(words_of, language) == reason:
                    return Pronoun(
                        language, scene, of_subject, place, number("cat"), number("mouse")
                    )
    raise AssertionError(f"nobody says {clause} {reason}")


def test_hungry_chaser_and_fast_chased_in_chinese() -> None:
    hungry, fast = find("zh", "{a}追{b}", "饿了"), find("zh", "{a}追{b}", "跑得快")
    assert hungry.sentence() + hungry.ending(hungry.fitting) == "猫追老鼠，因为它饿了。饿的是猫。"
    assert fast.sentence() + fast.ending(fast.fitting) == "猫追老鼠，因为它跑得快。跑得快的是老鼠。"


def test_hungry_means_the_chaser_but_the_fed() -> None:
    chased = find("en", "{a} chased {b}", "was hungry")
    fed = find("en", "{a} fed {b}", "was hungry")
    assert chased.sentence() == "The cat chased the mouse because it was hungry."
    assert chased.ending(chased.fitting) == " The one that was hungry was the cat."
    assert (chased.fitting, fed.fitting) == ("cat", "mouse")


def test_scenes_lean_to_neither_side() -> None:
    for scene in SCENES:
        assert len(scene.of_subject) == len(scene.of_object)
        assert not set(scene.of_subject) & set(scene.of_object)
    subjects = {reason for scene in SCENES for reason in scene.of_subject}
    objects = {reason for scene in SCENES for reason in scene.of_object}
    assert len(subjects & objects) >= 10


@pytest.mark.parametrize("language", LANGUAGES)
def test_endings_differ_in_the_noun_alone(language: Language) -> None:
    rng = random.Random(3)
    for _ in range(200):
        drawn = draw_pronoun(rng, language, unseen=True)
        for form in range(ENDING_FORMS):
            fitting = drawn.ending(drawn.fitting, form)
            assert fitting.count(drawn.fitting) == 1
            head, tail = fitting.split(drawn.fitting)
            assert head + drawn.unfitting + tail == drawn.ending(drawn.unfitting, form)
        assert drawn.fitting in drawn.sentence().lower()
        assert drawn.unfitting in drawn.sentence().lower()


@pytest.mark.parametrize("language", LANGUAGES)
def test_unseen_pairs_are_different_and_balanced(language: Language) -> None:
    pairs = unseen_pairs(language, 200)
    assert len(set(pairs)) == 200 and all(pair.unseen for pair in pairs)
    assert sum(pair.of_subject for pair in pairs) == 100
    assert pairs == unseen_pairs(language, 200)


def test_training_never_says_an_unseen_sentence() -> None:
    said = "\n".join(islice(templates.documents(random.Random(11)), 3000)).lower()
    assert find("zh", "{a}追{b}", "饿了").sentence()[:1] in said
    for language in LANGUAGES:
        for pair in unseen_pairs(language, 400, seed=5):
            assert pair.sentence().lower().rstrip(".。") not in said


def test_unseen_is_decided_for_both_languages_at_once() -> None:
    english = unseen_pairs("en", 50)
    for pair in english:
        twin = Pronoun(
            "zh", pair.scene, pair.of_subject, pair.reason, pair.subject, pair.object
        )  # fmt: skip
        assert twin.unseen


def test_unseen_share_is_a_tenth() -> None:
    rng = random.Random(0)
    drawn = [
        Pronoun("en", s, side, r, *rng.sample(range(len(ANIMALS)), 2))
        for s in range(len(SCENES))
        for side in (True, False)
        for r in range(3)
        for _ in range(60)
    ]
    assert 0.07 < sum(pair.unseen for pair in drawn) / len(drawn) < 0.13


def test_same_seed_gives_the_same_documents() -> None:
    first, again, other = (
        list(islice(templates.documents(random.Random(seed)), 50)) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_brackets_close_in_order_and_quotes_come_in_pairs() -> None:
    closing = dict(zip(")]}>）】》」”", "([{<（【《「“", strict=True))
    for document in islice(templates.documents(random.Random(4)), 2000):
        assert document and document == document.strip()
        assert document.count('"') % 2 == 0
        opened: list[str] = []
        for sign in document:
            if sign in closing.values():
                opened.append(sign)
            elif sign in closing:
                assert opened.pop() == closing[sign]
        assert not opened
