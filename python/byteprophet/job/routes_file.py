"""The routes of a strategy file (``strategy_file.py``): read and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteprophet.job.model import Model
from byteprophet.job.routes import MESH, SERVERS, WAYS, Piece, Route, carried, in_order, parts_of
from byteprophet.job.strategy import DEAR, OURS, SHARDING, Bucket


def read_routes(rows: object, model: Model) -> tuple[Route, ...]:
    """The routes in ``rows``, the member ``routes`` of a file, in the order of ``model``.

    Raises ``ValueError``, which names the parameter, unless each one has a route whose pieces have
    as many bytes as the parameter, and both transports carry something.
    """
    if not isinstance(rows, list) or not rows:
        raise ValueError("routes: must be a list with one table for each parameter")
    routes = tuple(map(_route, rows))
    named: set[str] = set()
    for route in routes:
        if route.tensor not in model.places:
            raise ValueError(f"routes: there is no parameter {route.tensor!r}")
        if route.tensor in named:
            raise ValueError(f"routes: parameter {route.tensor!r} has two routes")
        named.add(route.tensor)
    missing = next((name for name in model.names if name not in named), None)
    if missing is not None:
        raise ValueError(f"routes: parameter {missing!r} has none")
    sizes = dict(zip(model.names, model.sizes_bytes, strict=True))
    for route in routes:
        if route.size_bytes != sizes[route.tensor]:
            raise ValueError(
                f"routes: the pieces of {route.tensor!r} have {route.size_bytes} bytes, and the "
                f"parameter has {sizes[route.tensor]}"
            )
    for way, where in ((SERVERS, "to servers"), (MESH, "over the mesh")):
        if not len(carried(model, routes, way)):
            raise ValueError(f"routes: nothing goes {where}: use a strategy of one transport")
    pieces = (part.name for part in parts_of(routes) if part.name != part.tensor)
    clash = next((name for name in pieces if name in model.places), None)
    if clash is not None:
        raise ValueError(f"routes: a piece would be called {clash!r}, as a parameter is")
    return in_order(model, routes)


def read_mesh(mesh: object) -> str:
    """The runtime on the mesh. Raises ``ValueError`` if it is none of ours."""
    if mesh not in OURS:
        raise ValueError(f"mesh {str(mesh)[:40]!r}: must be one of {', '.join(OURS)}")
    return str(mesh)


def check_buckets(
    model: Model, routes: Sequence[Route], mesh: str, buckets: Sequence[Bucket]
) -> None:
    """Raise ``ValueError`` unless ``buckets`` hold what goes over the mesh, and can be used.

    A rank updates a range of a parameter, or all of it. So nothing is sharded if some gradient is
    cut: a piece that comes from servers is whole on every rank.
    """
    expected = carried(model, routes, MESH).names
    bucketed = {name for bucket in buckets for name in bucket.parameters}
    missing = next((name for name in expected if name not in bucketed), None)
    if missing is not None:
        raise ValueError(f"buckets: {missing!r} goes over the mesh, and is in none")
    whole = next((bucket for bucket in buckets if not bucket.sharded), None)
    if mesh == DEAR and whole is not None:
        raise ValueError(
            f"mesh {DEAR!r}: it shards all buckets, and that of {whole.parameters[0]!r} is whole"
        )
    if not any(bucket.sharded for bucket in buckets):
        return
    if mesh not in SHARDING:
        raise ValueError(f"buckets: one is sharded, and the mesh {mesh!r} shards none")
    cut = next((route.tensor for route in routes if route.is_cut), None)
    if cut is not None:
        raise ValueError(f"buckets: one is sharded, and {cut!r} is cut: nothing may be sharded")


def names_with_keys(model: Model, routes: Sequence[Route]) -> set[str]:
    """The names that may have ``keys``: what servers sum."""
    return set(carried(model, routes, SERVERS).names)


def _route(row: object) -> Route:
    if not isinstance(row, dict) or row.keys() != {"tensor", "pieces"}:
        raise ValueError("routes: each one must have the members tensor and pieces")
    tensor, pieces = row["tensor"], row["pieces"]
    if not isinstance(tensor, str):
        raise ValueError("routes: tensor must be text")
    if not isinstance(pieces, list) or not pieces:
        raise ValueError(f"routes: {tensor[:80]!r} has no pieces")
    return Route(tensor, tuple(_piece(tensor, piece) for piece in pieces))


def _piece(tensor: str, piece: Any) -> Piece:
    if not isinstance(piece, dict) or piece.keys() != {"size_bytes", "way"}:
        raise ValueError(f"routes: a piece of {tensor[:80]!r} must have size_bytes and way")
    size_bytes, way = piece["size_bytes"], piece["way"]
    if type(size_bytes) is not int or size_bytes < 1:
        raise ValueError(f"routes: a piece of {tensor[:80]!r} must have 1 byte or more")
    if way not in WAYS:
        raise ValueError(
            f"routes: {tensor[:80]!r} goes {str(way)[:40]!r}: must be {' or '.join(WAYS)}"
        )
    return Piece(size_bytes, way)
