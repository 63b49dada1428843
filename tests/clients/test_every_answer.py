"""The calls that bring no run of their own, against a real server and numbers from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from fluoroscope_client import Fluoroscope, InvalidRequest

from model.gpt import GPT

TEXT = "猫追老鼠，因为它饿了。"
WEIGHT = "blocks.0.attn.q.weight"


def test_health_is_told(remote: Fluoroscope) -> None:
    assert remote.live()["status"] == "live"
    assert remote.ready() == {"status": "ready", "reason": None, "model": "course"}


@pytest.mark.parametrize("wire", ["safetensors", "json"])
def test_parameter_is_the_models_own(
    wire: str, remote: Fluoroscope, models: Mapping[str, GPT]
) -> None:
    weight = models["course"].state_dict()[WEIGHT].numpy()
    asked = remote.parameter(WEIGHT, rows=slice(1, 9, 2), columns=[3, -1], wire=wire)  # type: ignore[arg-type]
    part = weight[1:9:2][:, [3, -1]]
    assert asked.values is not None
    np.testing.assert_array_equal(asked.values.values, part)
    assert asked.values.coords[asked.values.axes[0]] == (1, 3, 5, 7)
    assert asked.statistics["mean"] == pytest.approx(part.mean(), rel=1e-5)
    assert asked.about["shape"] == list(weight.shape)
    whole = remote.parameter(WEIGHT, bins=5)
    assert whole.values is None
    assert whole.statistics["std"] == pytest.approx(weight.std(), rel=1e-5)
    assert whole.histogram["counts"] == np.histogram(weight, bins=5)[0].tolist()
    assert repr(whole).startswith(f"{WEIGHT} (")


def test_parameter_reduced_to_a_picture(remote: Fluoroscope, models: Mapping[str, GPT]) -> None:
    weight = models["course"].state_dict()[WEIGHT].numpy()
    picture = remote.parameter(WEIGHT, reduce="mean", max_rows=1, max_columns=1)
    assert picture.values is not None and picture.picture is not None
    assert picture.values.values.item() == pytest.approx(weight.mean(), abs=1e-6)
    assert picture.picture["cell"] == list(weight.shape)


def test_unknown_parameter_is_refused(remote: Fluoroscope) -> None:
    with pytest.raises(InvalidRequest) as caught:
        remote.parameter("blocks/0?")
    assert caught.value.status == 404


def test_presets_and_their_reports(remote: Fluoroscope) -> None:
    small = {preset["name"]: preset["parameters"] for preset in remote.presets()}["gpt2"]
    assert small == 124_439_808  # OpenAI's GPT-2 small
    assert remote.parameters_of("gpt2", depth=1)["totals"]["unique"] == small
    fewer = remote.parameters_of("gpt2", {"n_layer": 11})["totals"]["unique"]
    assert small - fewer == 12 * 768**2 + 13 * 768  # one block of d_model 768
    compared = remote.compare_parameters(["gpt2", {"preset": "gpt2", "config": {"n_layer": 24}}])
    assert compared["names"][0] == "gpt2"
    assert compared["changed"] == {"n_layer": [12, 24]}


def test_parity_is_passed(remote: Fluoroscope) -> None:
    parity = remote.parity()
    assert parity["passed"] and parity["control_missed"]


def test_cell_is_the_number_of_the_map(remote: Fluoroscope) -> None:
    reading = remote.attention_cell(TEXT, layer=1, head=2, query=-1, key=0)
    assert reading.cell is not None
    pattern = remote.attention(TEXT)["attn.pattern"].sel(layer=1, head=2, query=-1, key=0)
    assert reading.cell["weight"] == pytest.approx(float(pattern.values), abs=1e-6)
    assert np.dot(reading.cell["rot_q"], reading.cell["rot_k"]) == pytest.approx(
        reading.cell["dot"], abs=1e-6
    )


def test_rotation_is_that_of_the_plane(remote: Fluoroscope) -> None:
    turned = remote.rope_rotate([1, 0], [1, 0], positions=[(3, 1)], degrees_per_position=20)
    (step,) = turned["steps"]
    assert step["dot"] == pytest.approx(np.cos(np.radians(40)), abs=1e-9)
    assert step["rot_q"] == pytest.approx([0.5, np.sqrt(3) / 2], abs=1e-9)


def test_frequencies_are_those_of_the_paper(remote: Fluoroscope) -> None:
    said = remote.rope_frequencies(d_head=8, base=10000.0, context=16, scalings=[{"kind": "none"}])
    np.testing.assert_allclose(
        said["ladders"][0]["inverse_frequencies"], 10000.0 ** (-np.arange(0, 8, 2) / 8)
    )
    own = remote.rope(context=32)
    assert own["ladder"] is not None and own["context"] == 32


def test_attention_by_hand_on_given_vectors(remote: Fluoroscope) -> None:
    eye = np.eye(2)
    lab = remote.attention_lab({"kind": "vectors", "q": eye, "k": eye, "v": eye}, scaled=False)
    e = np.e / (np.e + 1)
    np.testing.assert_allclose(lab["pattern"], [[e, 1 - e], [1 - e, e]], atol=1e-9)


def test_labs_answer_to_nothing_and_to_a_text(remote: Fluoroscope) -> None:
    assert len(remote.heads_lab()["heads"]) > 1
    assert remote.scaling_lab(head_sizes=[4, 64], samples=256)["sizes"][1]["d_head"] == 64
    assert remote.block_lab(TEXT, layer=1, top=3)["layer"] == 1
    assert remote.order_lab(([300, 301], [301, 300]))["matches"] == [1, 0]
    assert remote.diagnostics_lab(TEXT)["mistakes"][0]["id"] == "no_mask"
    assert {item["method"] for item in remote.course()} == {"GET", "POST"}
