"""Coarse views of models, and their equal parts."""

from __future__ import annotations

from byteprophet.job import Model
from byteprophet.optimize.view import View, cuts_of, twins_of
from byteprophet.workload import load
from byteprophet.workload.as_job import model_of


def model(name: str) -> Model:
    return model_of(load(name))


def test_blocks_are_found_by_their_numbers() -> None:
    names = model("bert-base").names
    blocks = cuts_of(View.BLOCKS, names)
    inside = {names[cut].split(".")[3] for cut in blocks if "encoder" in names[cut]}
    assert inside == {str(number) for number in range(12)}
    assert sum("encoder" in names[cut] for cut in blocks) == 12
    assert len(cuts_of(View.BLOCKS, model("resnet152").names)) < 60


def test_views_become_finer() -> None:
    for name in ("resnet50", "vgg19", "densenet201"):
        names = model(name).names
        cuts = [set(cuts_of(view, names)) for view in View]
        assert cuts[0] <= cuts[1] < cuts[2]
        assert len(cuts[2]) == len(names) - 1


def test_twins_are_at_the_same_place_of_equal_blocks() -> None:
    bert = model("bert-base")
    order = tuple(reversed(range(len(bert))))
    twins = twins_of(bert, order)
    place = next(
        place
        for place in range(1, len(order))
        if bert.names[order[place]].endswith("layer.7.intermediate.dense.bias")
    )
    assert len(twins[place]) == 12
    for twin in twins[place]:
        assert bert.names[order[twin]].endswith("intermediate.dense.bias")
        assert bert.names[order[twin - 1]].endswith("output.dense.weight")


def test_twins_have_equal_sizes() -> None:
    resnet = model("resnet50")
    order = tuple(reversed(range(len(resnet))))
    for place, twins in enumerate(twins_of(resnet, order)):
        for twin in twins:
            assert resnet.sizes_bytes[order[twin]] == resnet.sizes_bytes[order[place]]
