"""Refuses models that change a tensor in place and read it by another view.

An exported graph has each change as an operator's output. What reads the changed memory by a tensor
that was made before, as ``made[..., :8] = part`` lets all readers of ``made`` do, does not depend
on the change in the graph. Its gradients and its parts on tensor-parallel ranks would be wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from byteprophet.errors import UserError
from byteprophet.simulate.models.traced_axes import module_paths, operator_name
from byteprophet.simulate.models.traced_runs import memory_of, tensors_among


def check_in_place(name: str, graph: Any) -> None:
    """Check the exported graph of model ``name``.

    Raises:
        UserError: a change in place is read by another view; the text has the module's path.
    """
    places = {node: at for at, node in enumerate(graph.nodes)}
    last_reads: defaultdict[int, dict[Any, int]] = defaultdict(dict)  # by memory
    for node, at in places.items():
        for changed in _changed(node):
            for seen, last in last_reads[memory_of(changed.meta["val"])].items():
                if places[seen] < at < last:
                    who = ".".join((*module_paths(node)[-1:], operator_name(node)))
                    raise UserError(
                        f"model {name}: {who} changes a "
                        "part or a view of a tensor in place that is read later: put it together "
                        "by torch.cat or torch.stack"
                    )
        for tensor in tensors_among(node.meta.get("val")):
            last = max((places[user] for user in node.users), default=0)
            last_reads[memory_of(tensor)][node] = last


def _changed(node: Any) -> Iterator[Any]:
    """The FX nodes whose tensors an FX node's operator changes."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return
    for at, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name)
        for one in given if isinstance(given, (list, tuple)) else [given]:
            if one in node.all_input_nodes:
                yield one
