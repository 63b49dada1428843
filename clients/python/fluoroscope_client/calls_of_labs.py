"""The calls of the labs, of the rotation on given vectors, and of the course.

Each lab called without arguments answers with the course's own example; an argument that is left
out is the server's default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from fluoroscope_client.answers_of_labs import (
    AttentionLab,
    BlockLab,
    CourseItem,
    Diagnostics,
    HeadsLab,
    OrderLab,
    ScalingLab,
)
from fluoroscope_client.answers_of_rope import Frequencies, Pairing, Rotated
from fluoroscope_client.asking import RopeScaling, Text, spell_input
from fluoroscope_client.call import Call, asked, member, post

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class LabCalls:
    """They know nothing of the client but how it sends."""

    @asked
    def attention_lab(
        self,
        source: Mapping[str, Any] | None = None,
        *,
        scaled: bool | None = None,
        causal: bool | None = None,
        query: SupportsIndex | None = None,
        decimals: int | None = None,
    ) -> Call[AttentionLab]:
        """Attention by hand, step by step, from dot products to outputs.

        `source`: `{"kind": "vectors", "q", "k", "v"}`, `{"kind": "projections", "x", "w_q", "w_k",
        "w_v"}`, `{"kind": "model", "text", "layer", "head"}` or `{"kind": "example", "name"}`.
        `query` asks for one row alone. `scaled=False` leaves ÷√d out.
        """
        body = {"source": source, "scaled": scaled, "causal": causal, "query": query}
        return post("/v1/labs/attention", {**body, "decimals": decimals})

    @asked
    def heads_lab(
        self,
        source: Mapping[str, Any] | None = None,
        *,
        scaled: bool | None = None,
        causal: bool | None = None,
        position: SupportsIndex | None = None,
        results: bool | None = None,
        decimals: int | None = None,
    ) -> Call[HeadsLab]:
        """Several heads on the same tokens, and what each brings to the one at `position`.

        `source` as for `attention_lab`, with `heads` and `w_o`, or a layer of the model. `results`
        brings each head's write at every token.
        """
        body = {"source": source, "scaled": scaled, "causal": causal, "position": position}
        return post("/v1/labs/heads", {**body, "results": results, "decimals": decimals})

    @asked
    def scaling_lab(
        self,
        *,
        head_sizes: Sequence[SupportsIndex] | None = None,
        samples: SupportsIndex | None = None,
        keys: SupportsIndex | None = None,
        seed: SupportsIndex | None = None,
        decimals: int | None = None,
    ) -> Call[ScalingLab]:
        """Why ÷√d: the variance of q·k over head sizes, and what the softmax makes of it."""
        body = {"head_sizes": head_sizes, "samples": samples, "keys": keys, "seed": seed}
        return post("/v1/labs/scaling", {**body, "decimals": decimals})

    @asked
    def block_lab(
        self,
        text: Text | None = None,
        *,
        layer: SupportsIndex | None = None,
        position: SupportsIndex | None = None,
        top: SupportsIndex | None = None,
        decimals: int | None = None,
    ) -> Call[BlockLab]:
        """One token through one block, with its `top` strongest neurons."""
        body = {"layer": layer, "position": position, "top": top, "decimals": decimals}
        return post("/v1/labs/block", {**_given(text), **body})

    @asked
    def order_lab(self, texts: tuple[Text, Text] | None = None) -> Call[OrderLab]:
        """Two inputs of the same tokens in another order, with positions and without."""
        if texts is None:
            return post("/v1/labs/order", {})
        first, second = (spell_input(text) for text in texts)
        if first.keys() != second.keys():
            raise TypeError("give two texts, or the token ids of two, not one of each")
        name = "texts" if "text" in first else "token_ids"
        return post("/v1/labs/order", {name: [*first.values(), *second.values()]})

    @asked
    def diagnostics_lab(self, text: Text | None = None) -> Call[Diagnostics]:
        """The five classic mistakes of a hand-built transformer, made on the running model."""
        return post("/v1/labs/diagnostics", _given(text))

    @asked
    def rope_rotate(
        self,
        q: ArrayLike | None = None,
        k: ArrayLike | None = None,
        *,
        model: Mapping[str, Any] | None = None,
        positions: Sequence[tuple[SupportsIndex, SupportsIndex]] | None = None,
        pairing: Pairing | None = None,
        degrees_per_position: float | None = None,
        base: float | None = None,
        shift: SupportsIndex | None = None,
        decimals: int | None = None,
    ) -> Call[Rotated]:
        """q turned at m and k at n for each (m, n) of `positions`, and their dot.

        `model`: `{"text", "layer", "head", "query", "key"}` takes q and k from the running model.
        `degrees_per_position` turns every pair alike, `base` along the ladder of frequencies.
        """
        body = {
            "q": q,
            "k": k,
            "model": model,
            "positions": None if positions is None else [{"m": m, "n": n} for m, n in positions],
            "pairing": pairing,
            "degrees_per_position": degrees_per_position,
            "base": base,
            "shift": shift,
            "decimals": decimals,
        }
        return post("/v1/rope/rotate", body)

    @asked
    def rope_frequencies(
        self,
        *,
        d_head: SupportsIndex | None = None,
        base: float | None = None,
        context: SupportsIndex | None = None,
        scalings: Sequence[RopeScaling] | None = None,
        distances: Sequence[SupportsIndex] | None = None,
    ) -> Call[Frequencies]:
        """Frequencies and wavelengths, plain and stretched to a longer context."""
        body = {
            "d_head": d_head,
            "base": base,
            "context": context,
            "scalings": scalings,
            "distances": distances,
        }
        return post("/v1/rope/frequencies", body)

    @asked
    def course(self) -> Call[list[CourseItem]]:
        """Every experiment, pitfall and step of the course: the request, and what to look at."""
        return Call("GET", "/v1/course", None, member("items", list))


def _given(text: Text | None) -> dict[str, Any]:
    return {} if text is None else spell_input(text)
