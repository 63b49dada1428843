"""A choice of the next token as it stands on the wire. Knows nothing of how tokens are run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from model.sampling import Choice
from model.tokenizer import Tokenizer
from service.predictions import token_text

ROW_BYTES = 256  # of one candidate's JSON, generously


def choice_fields(choice: Choice, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The fields of the schema `Choice`."""
    return {
        "candidates": [
            {
                **asdict(candidate),  # −∞ is written as null, as in every other answer
                "text": token_text(tokenizer, candidate.id),
                "drawn": candidate.id == choice.drawn,
            }
            for candidate in choice.candidates
        ],
        "n_kept": choice.n_kept,
        "top_k_cut": None if choice.top_k_cut is None else asdict(choice.top_k_cut),
        "top_p_cut": None if choice.top_p_cut is None else asdict(choice.top_p_cut),
        "entropy_nats": choice.entropy_nats,
        "draw": choice.draw,
    }
