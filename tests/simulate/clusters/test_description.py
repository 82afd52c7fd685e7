"""Descriptions of clusters: those built in, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.simulate.clusters import description
from byteprophet.simulate.clusters.constants import constants, with_constants
from byteprophet.simulate.clusters.description import cluster_names, find_cluster

_TEXT = (Path(description.__file__).parent / "dgx-1v.toml").read_text(encoding="utf-8")


def test_built_in_clusters_can_be_read() -> None:
    assert {"dgx-a100", "dgx-h100", "dgx-1v"} <= set(cluster_names())
    for name in cluster_names():
        assert find_cluster(name).name == name


def test_every_nvlink_of_a_v100_is_described() -> None:
    links = find_cluster("dgx-1v").node.links
    for gpu in range(8):
        assert sum(count for one, two, count in links if gpu in (one, two)) == 6


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[network]", "[net]", r"net: there is no such setting"),
        ("multiprocessors = 80", "", "gpu.multiprocessors is missing"),
        (
            "multiprocessors = 80",
            "multiprocessors = -1",
            "gpu.multiprocessors is -1: must be a pos",
        ),
        ("matmul_efficiency = 0.75", "matmul_efficiency = 1.5", "more than 0 and at most 1"),
        (
            "overlap_slowdown = 0.2",
            "overlap_slowdown = 17.0",
            "is 17.0: must be from 0 to 16",
        ),
        ("launch_ns = 8_000", "launch_ns = 8_000\nspeed = 3", "gpu.speed: there is no such"),
        ("[network]", "[network]\nrails = 1", "network.rails is 1: must be true or false"),
        ("[network]", "[network]\nring_only = 7", "ring_only is 7: must be true or false"),
        ("[network]", "[network]\nqueue_ns = -1", "queue_ns is -1: must be a positive whole n"),
        ("[network]", "[network]\ncollectives_at_once = 0", "at_once is 0: must be a positive w"),
        ("[network]", "[network]\nuplink_share = 0", "uplink_share is 0: must be more than 0"),
        ("multiprocessors = 80", "multiprocessors = 0", "multiprocessors is 0: must be a pos"),
        ("[network]", "[network]\nuplink_share = 2", "uplink_share is 2: must be more than 0"),
        ("[network]", "[network]\nuplink_share = 0.5", "uplink_share: needs network.nodes_per_le"),
        ("[6, 7, 2]", "[5, 7, 2]", "GPUs 5 and 7 are named twice"),
        ("[6, 7, 2]", "[7, 6, 2]", r"node.links: \[7, 6, 2\]: expected"),
        ("adapter_bits_per_s = 100_000_000_000", "adapter_bits_per_s = 1", "one byte per second"),
        ("[gpu]", "[before_costs]\n[gpu]", "before_costs: must be a table, in a file that has cos"),
        (
            "[gpu]",
            'costs = "a"\n[before_costs.net]\n[gpu]',
            "before_costs.net: there is no such setting",
        ),
        ("[gpu]", 'costs = "a"\n[before_costs]\n[gpu]', r"before_costs: the table \[gpu\] is miss"),
        ("[gpu]", "[gpu", "is not TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in _TEXT
    path = tmp_path / "cluster.toml"
    path.write_text(_TEXT.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=said):
        find_cluster(str(path))


def test_an_unknown_cluster_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="dgx-a100"):
        find_cluster("no-such-cluster")


def test_kernels_may_take_several_times_as_long_beside_collectives(tmp_path: Path) -> None:
    """On a processor that the exchange needs, too. An efficiency is at most 1."""
    path = tmp_path / "cluster.toml"
    path.write_text(
        _TEXT.replace("overlap_slowdown = 0.2", "overlap_slowdown = 2.5"), encoding="utf-8"
    )
    cluster = find_cluster(str(path))
    assert cluster.gpu.overlap_slowdown == 2.5
    names = ("gpu.overlap_slowdown", "gpu.matmul_efficiency")
    changed = with_constants(cluster, dict.fromkeys(names, 5.0)).gpu
    assert (changed.overlap_slowdown, changed.matmul_efficiency) == (5.0, 1.0)


def test_what_is_0_by_default_may_be_given_as_0(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    zeros = {"network": ("queue_ns", "nodes_per_leaf"), "gpu": ("fp8_flops_per_s",)}
    text = _TEXT.replace("overlap_slowdown = 0.2", "overlap_slowdown = 0")
    for part, keys in zeros.items():
        text = text.replace(f"[{part}]", "\n".join((f"[{part}]", *(f"{key} = 0" for key in keys))))
    path.write_text(text.replace("[network]", "[network]\nring_only = false"), encoding="utf-8")
    plain = find_cluster("dgx-1v")
    cluster = find_cluster(str(path))
    assert cluster.gpu == replace(plain.gpu, overlap_slowdown=0)
    assert cluster.network == plain.network


def test_leaf_switches_may_be_described(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    more = "[network]\nnodes_per_leaf = 4\nuplink_share = 0.5\nrails = true"
    path.write_text(_TEXT.replace("[network]", more), encoding="utf-8")
    cluster = find_cluster(str(path))
    assert [cluster.leaf(node) for node in (0, 3, 4, 9)] == [0, 0, 1, 2]
    assert cluster.network.uplink_share == 0.5
    assert cluster.network.rails
    assert {one.name: one.uncertainty for one in constants(cluster)}["network.uplink_share"] == 0
    assert find_cluster("dgx-1v").leaf(9) == 0
