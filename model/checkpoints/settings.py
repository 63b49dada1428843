"""A foreign config read key by key: what nobody handles and is not known harmless is refused.

Knows nothing of any one family.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from model.checkpoints.contents import CheckpointError
from model.config import GPTConfig

LARGEST_JSON = 64 * 2**20  # a config, an index of shards: real ones are under 1 MiB

# Keys that change no logit of a plain forward: training, generation, classifier heads, provenance.
_HARMLESS = """
_commit_hash _flash_attn_2_enabled _name_or_path _num_labels architectures attention_dropout
attention_probs_dropout_prob attn_implementation attn_pdrop auto_map bad_words_ids
begin_suppress_tokens bos_token_id chunk_size_feed_forward classifier_dropout
decoder_start_token_id diversity_penalty do_sample dtype early_stopping embd_pdrop
encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task
forced_bos_token_id forced_eos_token_id gradient_checkpointing hidden_dropout
hidden_dropout_prob id2label initializer_range is_llama_config label2id length_penalty
max_length max_sequence_length min_length model_type no_repeat_ngram_size num_beam_groups
num_beams num_labels num_return_sequences output_attentions output_hidden_states output_past
output_scores pad_token_id prefix pretraining_tp problem_type remove_invalid_values
repetition_penalty resid_pdrop return_dict return_dict_in_generate sep_token_id
summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder
tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config transformers_version
typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache
"""
HARMLESS = frozenset(_HARMLESS.split())
ABSENT: tuple[Any, ...] = (None, False, "", [], {})


class Settings:
    """The keys of one config.json. Taking a key is what marks it as handled."""

    def __init__(self, values: Mapping[str, Any], source: Path | str) -> None:
        self.source = source
        self._values = dict(values)
        self._taken: set[str] = set()

    def take(self, *spellings: str, default: Any = None) -> Any:
        """The value of the first spelling that is set, else the default. Marks all of them."""
        self._taken.update(spellings)
        for key in spellings:
            if self._values.get(key) is not None:
                return self._values[key]
        return default

    def nullable(self, key: str, default: Any) -> Any:
        """The value where the key is there, null included; the default where it is not."""
        self._taken.add(key)
        return self._values.get(key, default)

    def need(self, *spellings: str) -> Any:
        """The same for a key without which there is no model."""
        value = self.take(*spellings)
        if value is None:
            raise CheckpointError(f"{self.source}: {spellings[0]} is missing")
        return value

    def one_of(self, key: str, choices: Mapping[Any, Any], default: Any) -> Any:
        """What a choice means to us. Raises CheckpointError for one that is not implemented."""
        value = self.take(key, default=default)
        if not isinstance(value, (str, bool, int, type(None))) or value not in choices:
            raise CheckpointError(
                f"{self.source}: {key} {value!r} is not implemented; "
                f"{', '.join(repr(choice) for choice in choices)} can be opened"
            )
        return choices[value]

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse a key whose other values change the model in a way that is not implemented."""
        if key in self._values and self._values[key] not in allowed:
            raise CheckpointError(
                f"{self.source}: {key} {self._values[key]!r} is not implemented; "
                f"only {', '.join(repr(value) for value in allowed)} can be opened"
            )
        self._taken.add(key)

    def inner(self, key: str) -> Settings:
        """A nested object, empty where the key is absent."""
        value = self.take(key, default={})
        if not isinstance(value, dict):
            raise CheckpointError(f"{self.source}: {key} is {value!r}, not an object")
        return Settings(value, f"{self.source}, {key}")

    @property
    def given(self) -> frozenset[str]:
        """The keys that are there."""
        return frozenset(self._values)

    def finish(self) -> None:
        """Raises CheckpointError that names every key with a value that nobody took."""
        left = {
            key: value
            for key, value in self._values.items()
            if key not in self._taken and key not in HARMLESS and value not in ABSENT
        }
        if left:
            named = ", ".join(f"{key} = {json.dumps(left[key])[:60]}" for key in sorted(left))
            raise CheckpointError(f"{self.source}: not implemented: {named}")


def read_config(settings: Settings, make: Callable[[Settings], GPTConfig]) -> GPTConfig:
    """Our config of a foreign one, every key accounted for. Raises CheckpointError."""
    try:
        config = make(settings)
    except CheckpointError:
        raise
    except (ValueError, TypeError, OverflowError, ZeroDivisionError) as error:
        raise CheckpointError(f"{settings.source}: {error}") from error
    settings.finish()
    return config


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises CheckpointError."""
    try:
        if file.stat().st_size > LARGEST_JSON:
            raise CheckpointError(f"{file}: {file.stat().st_size:,} bytes are too many for JSON")
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(f"{file}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: holds {type(value).__name__}, not an object")
    return value
