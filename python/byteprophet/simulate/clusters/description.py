"""A cluster as data: a GPU, the links inside a node, and the network between nodes.

A node's own adapters limit what leaves it. With ``nodes_per_leaf``, nodes are below leaf switches,
whose links to the spine may be fewer than those to adapters. With ``rails``, each GPU of a node has
a leaf switch of its own, which serves the same GPU of other nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.input_files import is_number, is_there, parse_table, read_text
from byteprophet.simulate.clusters.beliefs import Beliefs, parse_beliefs
from byteprophet.simulate.clusters.collective_times import CollectiveTimes
from byteprophet.simulate.clusters.kernels import Curve, Kernels
from byteprophet.simulate.clusters.shapes import Shapes

PARTS = ("gpu", "node", "network")
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Gpu:
    """A GPU. The ``efficiency`` values are parts of the peak that large operators reach.

    Attributes:
        name: its name.
        multiprocessors: streaming multiprocessors.
        memory_bytes: memory that a process can allocate.
        flops_per_s: peak of the matrix units for 16-bit inputs, without sparsity.
        memory_bytes_per_s: peak memory bandwidth.
        matmul_efficiency: of matrix products.
        attention_efficiency: of fused attention.
        memory_efficiency: of memory bandwidth.
        launch_ns: what the host needs per operator; the GPU waits for it if its work is shorter.
        reserved_bytes: memory for the CUDA context, NCCL and fragments.
        fp8_flops_per_s: peak of the matrix units for 8-bit inputs, without sparsity; 0: none.
        overlap_slowdown: how much longer kernels take beside a collective, as a part of their time.
        collective_slowdown: how much longer the bytes of collectives take beside kernels.
        unaligned_efficiency: of products with a matrix whose rows begin at multiples of 2 bytes
            only, such as an odd vocabulary; 0: as of all others.
    """

    name: str
    multiprocessors: int
    memory_bytes: int
    flops_per_s: int
    memory_bytes_per_s: int
    matmul_efficiency: float
    attention_efficiency: float
    memory_efficiency: float
    launch_ns: int
    reserved_bytes: int
    fp8_flops_per_s: int = 0
    overlap_slowdown: float = 0.0
    collective_slowdown: float = 0.0
    unaligned_efficiency: float = 0.0


@dataclass(frozen=True)
class Node:
    """The links inside a node. ``links`` are for GPUs that are joined by single NVLinks.

    Attributes:
        gpus: GPUs per node.
        gpu_bytes_per_s: what one GPU sends to the others in its node, one direction.
        efficiency: the part of it that collectives reach.
        step_ns: the latency of one step of a ring inside a node.
        base_ns: the latency of starting a collective.
        own_step: the time in which a rank reads and writes its own part, over that of a step.
        links: pairs of GPUs and the number of NVLinks between them; empty: a switch.
        link_bytes_per_s: of one of these links, one direction.
    """

    gpus: int
    gpu_bytes_per_s: int
    efficiency: float
    step_ns: int
    base_ns: int
    own_step: float = 0.0
    links: tuple[tuple[int, int, int], ...] = ()
    link_bytes_per_s: int = 0


@dataclass(frozen=True)
class Network:
    """The network between nodes.

    Attributes:
        adapters: network adapters per node.
        adapter_bits_per_s: the rate of one, one direction.
        efficiency: the part of it that collectives reach.
        step_ns: the latency of one step between nodes.
        ring_only: whether an all-reduce between nodes is never a tree (``NCCL_ALGO=Ring``).
        all_reduce_only: whether a reduce-scatter is an all-reduce of which each rank keeps its
            part, as gloo's is.
        collectives_at_once: all-reduces of buckets that are under way at once, as gloo has two
            threads for each process group.
        requests_in_line: whether a stage asks for a message behind what it sends to the same
            stage, as gloo does.
        queue_ns: how long what is sent waits behind what a busy link's queue holds; 0: not at all.
        nodes_per_leaf: nodes below a leaf switch (with ``rails``: below a set of them); 0: all.
        uplink_share: the rate of a leaf's links to the spine over that of its links to adapters;
            2:1 oversubscription is 0.5.
        rails: whether each GPU of a node has a leaf of its own.
    """

    adapters: int
    adapter_bits_per_s: int
    efficiency: float
    step_ns: int
    ring_only: bool = False
    all_reduce_only: bool = False
    collectives_at_once: int = 1
    requests_in_line: bool = False
    queue_ns: int = 0
    nodes_per_leaf: int = 0
    uplink_share: float = 1.0
    rails: bool = False


@dataclass(frozen=True)
class Cluster:
    """A cluster of equal nodes.

    Attributes:
        name: its name.
        gpu: each GPU.
        node: the links inside a node.
        network: the network between nodes.
        beliefs: how well its constants are known, and from where.
        costs: measured costs that it is simulated with, by name or path; empty: none.
        costs_source: where these were measured, in words; empty: none.
        before_costs: the cluster that ``costs`` replaced estimates of. Measured times are kept in
            relation to it, and constants may have been calibrated since. None: ``costs`` have
            replaced nothing yet.
        shapes: the measured matrix products among them.
        collectives: the measured collectives among them.
        operators: of operators that memory limits: measured time over that of their bytes, by
            their names among costs, and by phase.
        kernels: what else was measured.
    """

    name: str
    gpu: Gpu
    node: Node
    network: Network
    beliefs: Beliefs = field(default_factory=Beliefs)
    costs: str = ""
    costs_source: str = ""
    before_costs: Cluster | None = None
    shapes: Shapes | None = field(default=None, compare=False)
    collectives: CollectiveTimes | None = field(default=None, compare=False)
    operators: Mapping[tuple[str, str], float | Curve] = field(default_factory=dict, compare=False)
    kernels: Kernels = field(default_factory=Kernels, compare=False)

    @property
    def network_bytes_per_s(self) -> int:
        """What each GPU of a node gets of the node's adapters, one direction."""
        return self.network.adapters * self.network.adapter_bits_per_s // 8 // self.node.gpus

    def leaf(self, node: int) -> int:
        """The leaf switch, or set of them, that a node is below."""
        return node // self.network.nodes_per_leaf if self.network.nodes_per_leaf else 0


_LARGEST_SLOWDOWN = 16
"""That of ``prophet/graph/validate.cc``."""
_WORDS = {"str": "a text", "bool": "true or false"}


def cluster_names() -> list[str]:
    """The names of the clusters that are built in."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def find_cluster(text: str) -> Cluster:
    """The cluster that is built in as ``text``, or described in the file ``text``.

    Raises:
        UserError: there is no such cluster, or its description is wrong.
    """
    if text in cluster_names():
        return load_cluster(_FOLDER / f"{text}.toml")
    if is_there(text):
        return load_cluster(Path(text))
    raise UserError(
        f"cluster {text}: not built in and no such file: use {', '.join(cluster_names())}, or the "
        "path of a description"
    )


def load_cluster(path: Path) -> Cluster:
    """The cluster described in a TOML file."""
    table = parse_table(read_text(path), str(path))
    name, costs = table.pop("name", path.stem), table.pop("costs", "")
    parts, before = {part: table.pop(part, None) for part in PARTS}, table.pop("before_costs", None)
    sources, correlations = table.pop("sources", {}), table.pop("correlations", {})
    if table:
        raise UserError(f"{path}: {next(iter(table))}: there is no such setting")
    if not isinstance(name, str) or not isinstance(costs, str):
        raise UserError(f"{path}: name and costs must be texts")
    if (path.parent / costs).is_file():
        costs = str(path.parent / costs)
    cluster, earlier = _described(str(path), name, parts), None
    if before is not None:
        if not costs or not isinstance(before, dict):
            raise UserError(f"{path}: before_costs: must be a table, in a file that has costs")
        for key in before.keys() - {*PARTS}:
            raise UserError(f"{path}: before_costs.{key}: there is no such setting")
        earlier = _described(f"{path}: before_costs", name, before)
    known = {part: fields(getattr(cluster, part)) for part in PARTS}
    names = {f"{part}.{one.name}" for part, its in known.items() for one in its}
    beliefs = parse_beliefs(path, names, sources, correlations)
    return replace(cluster, beliefs=beliefs, costs=costs, before_costs=earlier)


def _described(where: str, name: str, parts: Mapping[str, Any]) -> Cluster:
    node = parts.get("node")
    links = node.pop("links", []) if isinstance(node, dict) else []
    cluster = Cluster(
        name,
        _checked(where, "gpu", Gpu, parts.get("gpu")),
        _checked(where, "node", Node, node),
        _checked(where, "network", Network, parts.get("network")),
    )
    if cluster.network_bytes_per_s == 0:
        raise UserError(
            f"{where}: network.adapter_bits_per_s is {cluster.network.adapter_bits_per_s}: must "
            "give each GPU of a node at least one byte per second"
        )
    if cluster.network.uplink_share != 1 and not cluster.network.nodes_per_leaf:
        raise UserError(
            f"{where}: network.uplink_share: needs network.nodes_per_leaf, the nodes below a leaf "
            "switch: without it, all nodes are below one, and nothing crosses its uplinks"
        )
    return _with_links(where, cluster, links)


def largest_part(key: str) -> int:
    """The most that a constant may be that is no whole number. ``key``: its name, without table."""
    return _LARGEST_SLOWDOWN if key.endswith("_slowdown") else 1


def _checked(where: str, name: str, kind: type[Any], given: Any) -> Any:
    """``given`` as a ``kind`` whose numbers are positive, or 0 where that is the default."""
    if not isinstance(given, dict):
        raise UserError(f"{where}: the table [{name}] is missing")
    types = {one.name: one.type for one in fields(kind)}
    defaults = {one.name: one.default for one in fields(kind) if one.default is not MISSING}
    types.pop("links", None)
    for key in given.keys() - types.keys():
        raise UserError(f"{where}: {name}.{key}: there is no such setting")
    for key, wanted in types.items():
        if key not in given:
            if key in defaults:
                continue
            raise UserError(f"{where}: {name}.{key} is missing")
        value, may_be_0 = given[key], defaults.get(key) == 0
        if wanted in ("str", "bool"):
            good = isinstance(value, str if wanted == "str" else bool)
            what = _WORDS[wanted]
        elif wanted == "int":
            good = type(value) is int and 0 <= value < 1 << 62 and (may_be_0 or value > 0)
            what = "a positive whole number, or 0" if may_be_0 else "a positive whole number"
        else:
            most = largest_part(key)
            good = is_number(value) and 0 <= value <= most and (may_be_0 or value > 0)
            what = f"from 0 to {most}" if may_be_0 else f"more than 0 and at most {most}"
        if not good:
            raise UserError(f"{where}: {name}.{key} is {value!r}: must be {what}")
    return kind(**given)


def _with_links(where: str, cluster: Cluster, given: Any) -> Cluster:
    if not given:
        return cluster
    node = cluster.node
    if node.gpus > 8 or not node.link_bytes_per_s:
        raise UserError(
            f"{where}: node.links: need node.link_bytes_per_s and at most 8 GPUs, got {node.gpus}"
        )
    links: list[tuple[int, int, int]] = []
    for item in given if isinstance(given, list) else [given]:
        good = isinstance(item, list) and len(item) == 3 and all(type(at) is int for at in item)
        if not good or not 0 <= item[0] < item[1] < node.gpus or not 1 <= item[2] <= 16:
            raise UserError(
                f"{where}: node.links: {item!r}: expected [GPU, larger GPU, number of NVLinks]"
            )
        if any((item[0], item[1]) == (one, other) for one, other, _ in links):
            raise UserError(
                f"{where}: node.links: GPUs {item[0]} and {item[1]} are named twice: give the "
                "number of all NVLinks between them at once"
            )
        links.append((item[0], item[1], item[2]))
    return replace(cluster, node=replace(node, links=tuple(links)))
