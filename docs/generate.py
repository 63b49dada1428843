"""Writes the pages that the code's own registries fill: `python -m docs.generate`.

The vocabulary of sites, the settings, and the OpenAPI document. A test holds that what is
committed is what this writes.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from docs import chinese
from model.config import GPTConfig
from model.sites import LETTER, SITES, Site
from service.app import create_app
from service.cli_serve import serve
from service.settings import Settings

FOLDER = Path(__file__).parent

_PLAIN = GPTConfig(n_layer=1, d_model=2, n_head=1, vocab_size=1, n_ctx=1)
# A model with the trait, and the trait in both languages.
_TRAITS = [
    (replace(_PLAIN, positions="learned"), "learned positions", "学习得到的位置向量"),
    (replace(_PLAIN, activation="swiglu"), "a gated feed-forward", "门控前馈"),
    (
        replace(_PLAIN, parallel_residual=True),
        "feed-forward after attention, not beside it",
        "前馈在注意力之后，而非与之并列",
    ),
]
_AXES_ZH = {
    "layer": "层",
    "head": "查询头",
    "kv_head": "键值头",
    "position": "位置",
    "query": "查询位置",
    "key": "键位置",
    "d_head": "头维度",
    "d_model": "模型维度",
    "d_mlp": "前馈维度",
    "vocab": "词表",
    "one": "一个数",
}


def pages() -> dict[str, str]:
    """Every generated file's name and text."""
    return {
        "sites.md": _sites_en(),
        "sites.zh-CN.md": _sites_zh(),
        "settings.md": _settings_en(),
        "settings.zh-CN.md": _settings_zh(),
        "openapi.json": _openapi(),
    }


def _openapi() -> str:
    document = create_app(Settings()).openapi()
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(
        "| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |"
        for row in [head, ["---"] * len(head), *rows]
    )


def _only_with(site: Site, language: int) -> str:
    """The traits without which the site is not there, or with which it is not."""
    return ", ".join(
        trait[language] for trait in _TRAITS if site.present(trait[0]) != site.present(_PLAIN)
    )


def _sites_en() -> str:
    rows = [
        (
            f"`{site.name}`",
            site.symbolic_shape,
            site.meaning,
            f"`{site.alias}`" if site.alias else "",
            _only_with(site, 1),
        )
        for site in SITES.values()
    ]
    letters = ", ".join(f"{letter} {axis}" for axis, letter in LETTER.items() if axis != "one")
    return f"""# Sites: every value that can be read or edited

[中文](sites.zh-CN.md) · how to ask for them: [inspect.md](inspect.md) · of the loaded model:
`GET /v1/sites`

In the order in which a run meets them. A site with a layer axis comes back stacked, layers first.
The TransformerLens name is taken as well, with the layer in place of `{{layer}}`.

Axes: {letters}; 1 stands for a single number.

{_table(("site", "axes", "meaning", "TransformerLens", "only with"), rows)}

- Query head h reads key/value head h // (H / K); `kv_head_of_head` in `GET /v1/model` is that map.
- `hook_normalized` is refused: it stands before the gain in TransformerLens' RMSNorm and after it
  in its LayerNorm. Ask for `ln1.normalized` or `ln1.out`.
- `attn.rot_q` and `attn.rot_k` equal `attn.q` and `attn.k` where a model neither norms nor rotates
  them.
- Every site can be edited. What is edited is seen by everything after it.
"""


def _sites_zh() -> str:
    rows = [
        (
            f"`{site.name}`",
            site.symbolic_shape,
            chinese.SITES[site.name],
            f"`{site.alias}`" if site.alias else "",
            _only_with(site, 2),
        )
        for site in SITES.values()
    ]
    letters = "、".join(
        f"{letter} {_AXES_ZH[axis]}" for axis, letter in LETTER.items() if axis != "one"
    )
    return f"""# 站点：每一个可以读、可以改的量

[English](sites.md) · 怎样取用：[inspect.zh-CN.md](inspect.zh-CN.md) · 当前模型的：`GET /v1/sites`

按一次运行经过的先后排列。带层轴的站点叠在一起返回，层在最前。也可以用 TransformerLens 的名称，把
`{{layer}}` 换成层号。

轴：{letters}；1 表示单独一个数。

{_table(("站点", "轴", "含义", "TransformerLens", "仅见于"), rows)}

- 查询头 h 读键值头 h // (H / K)；`GET /v1/model` 的 `kv_head_of_head` 就是这张对照表。
- `hook_normalized` 不被接受：在 TransformerLens 的 RMSNorm 里它在乘增益之前，在 LayerNorm 里却在
  之后。请用 `ln1.normalized` 或 `ln1.out`。
- 模型既不归一化也不旋转 q、k 时，`attn.rot_q`、`attn.rot_k` 与 `attn.q`、`attn.k` 相同。
- 每个站点都可以改；改动之后的一切都会看到改过的值。
"""


def _flags() -> set[str]:
    return set(inspect.signature(serve).parameters)


def _variable(name: str) -> str:
    return f"`FLUOROSCOPE_{name.upper()}`"


def _flag(name: str) -> str:
    return f"`--{name.replace('_', '-')}`" if name in _flags() else ""


def _default(name: str) -> str:
    default = Settings.model_fields[name].get_default(call_default_factory=True)
    if default in (None, []):
        return ""
    if name.endswith("_bytes"):
        for size, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
            if default % size == 0:
                return f"{default} ({default // size} {unit})"
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def _allowed(name: str) -> str:
    field = Settings.model_fields[name]
    kind = field.annotation
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return ", ".join(get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        kind = get_args(kind)[0]
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {getattr(limit, word):g}"
        for limit in field.metadata
        for word, sign in signs.items()
        if hasattr(limit, word)
    ]
    return ", ".join(bounds)


def _settings_rows(meaning: Callable[[str, Any], str]) -> list[Sequence[str]]:
    return [
        (_variable(name), _flag(name), _default(name), _allowed(name), meaning(name, field))
        for name, field in Settings.model_fields.items()
    ]


def _settings_en() -> str:
    rows = _settings_rows(lambda name, field: str(field.description))
    return f"""# Settings

[中文](settings.zh-CN.md)

Every setting is an environment variable; the flags of `fluoroscope serve` win over it. The limits
that hold are in `GET /v1/model`. Listening beyond loopback needs a key, or `--allow-open`.

{_table(("variable", "flag", "default", "allowed", "what it is"), rows)}
"""


def _settings_zh() -> str:
    rows = _settings_rows(lambda name, field: chinese.SETTINGS[name])
    return f"""# 设置

[English](settings.md)

每项设置都是一个环境变量；`fluoroscope serve` 的参数优先。正在生效的限制见 `GET /v1/model`。
在回环地址之外监听，需要密钥，或者 `--allow-open`。

{_table(("变量", "参数", "默认", "取值", "含义"), rows)}
"""


def main() -> None:
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
