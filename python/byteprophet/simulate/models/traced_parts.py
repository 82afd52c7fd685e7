"""Parts of an exported graph with settings of their own: ``torch.autocast`` and ``no_grad``.

``torch.export`` makes a graph of each and calls it. Their operators are wanted like all others.
"""

from __future__ import annotations

from typing import Any

NO_GRADIENT = "no_gradient"
"""In the ``meta`` of an FX node: what it makes has no gradient."""
_CALLS = frozenset(["wrap_with_autocast", "wrap_with_set_grad_enabled"])


def inline_parts(module: Any) -> None:
    """Put the operators of all parts of a ``GraphModule`` where the parts are called."""
    graph = module.graph
    for call in list(graph.nodes):
        if call.op != "call_function" or getattr(call.target, "__name__", "") not in _CALLS:
            continue
        at = next(at for at, one in enumerate(call.args) if getattr(one, "op", "") == "get_attr")
        part = getattr(module, call.args[at].target)
        inline_parts(part)
        inner = [one for one in part.graph.nodes if one.op == "placeholder"]
        outer = call.args[at + 1 :]
        copied = dict(zip(inner, outer, strict=True))
        with graph.inserting_before(call):
            made = graph.graph_copy(part.graph, copied)
        if call.target.__name__ == "wrap_with_set_grad_enabled" and not call.args[0]:
            for one in copied.values():
                if one not in outer:
                    one.meta[NO_GRADIENT] = True
        for output in list(call.users):
            output.replace_all_uses_with(made[output.args[1]])
            graph.erase_node(output)
        graph.erase_node(call)
