"""The blocks of a model that are units by default: the longest run of equal neighbours."""

from __future__ import annotations

from byteprophet.job.units import block_units


def _model(**lists: list[int]) -> dict[str, int]:
    """An embedding, and lists of blocks with parameters of these sizes."""
    sizes = {"embedding.weight": 100}
    for name, blocks in lists.items():
        for number, size in enumerate(blocks):
            sizes[f"{name}.{number}.weight"] = size
            sizes[f"{name}.{number}.bias"] = 1
    return sizes


def test_each_block_is_a_unit_and_the_rest_is_the_first_one() -> None:
    units = block_units({**_model(blocks=[5, 5]), "head.weight": 7})
    assert units == (
        ("embedding.weight", "head.weight"),
        ("blocks.0.weight", "blocks.0.bias"),
        ("blocks.1.weight", "blocks.1.bias"),
    )


def test_unequal_neighbours_end_a_chain() -> None:
    first, *blocks = block_units(_model(blocks=[5, 6, 6, 6, 5]))
    assert [unit[0] for unit in blocks] == [f"blocks.{n}.weight" for n in (1, 2, 3)]
    assert "blocks.0.weight" in first


def test_the_longest_chain_is_taken_and_of_equal_ones_the_largest() -> None:
    assert block_units(_model(a=[5, 5, 5], b=[9, 9]))[1][0] == "a.0.weight"
    assert block_units(_model(a=[5, 5], b=[9, 9]))[1][0] == "b.0.weight"


def test_a_list_inside_a_block_is_no_chain_of_its_own_if_blocks_are_more() -> None:
    sizes = {f"blocks.{n}.layers.{m}.weight": 3 for n in range(3) for m in range(2)}
    units = block_units(sizes)
    assert units == tuple(
        tuple(f"blocks.{n}.layers.{m}.weight" for m in range(2)) for n in range(3)
    )


def test_a_model_without_blocks_is_one_unit() -> None:
    sizes = {"first.weight": 3, "layers.0.weight": 3, "layers.2.weight": 3}
    assert block_units(sizes) == (tuple(sizes),)
