"""Profiles: what is written is read back, what is wrong is named, a workload comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.errors import UserError
from byteprophet.profile import Burst, Profile, TensorProfile, read_profile
from byteprophet.profile.convert import to_workload
from byteprophet.workload import Tensor, Workload, parse_toml, to_toml


def ideal_profile(workload: Workload) -> Profile:
    """What a profiler would see of ``workload`` if nothing took time but what it says."""
    ready_ns = [time - min(workload.ready_ns()) for time in workload.ready_ns()]
    # In the order of readiness: forward order's last burst comes first.
    bursts = [list(burst) for burst in workload.bursts()][::-1]
    number = {position: n for n, burst in enumerate(bursts) for position in burst}
    return Profile(
        scheduler="prophet",
        workers=2,
        rank=0,
        iterations=7,
        batch_size=workload.batch_size,
        forward_ns=workload.forward_ns,
        backward_ns=workload.backward_ns,
        tensors=tuple(
            TensorProfile(
                name=tensor.name,
                size_bytes=tensor.size_bytes,
                forward_order=position,
                ready_ns=ready_ns[position],
                spread_ns=0,
                forward_ns=tensor.forward_ns,
                burst=number[position],
            )
            for position, tensor in enumerate(workload.tensors)
        ),
        bursts=tuple(
            Burst(
                ready_ns=ready_ns[burst[0]],
                spread_ns=0,
                tensors=len(burst),
                size_bytes=sum(workload.tensors[position].size_bytes for position in burst),
            )
            for burst in bursts
        ),
    )


times = st.integers(1, 10**9)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    bursts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    tensors = [
        Tensor(f"t{burst}.{n}", 4 * draw(st.integers(1, 10**6)), draw(times), draw(times), burst)
        for burst, count in enumerate(bursts)
        for n in range(count)
    ]
    return Workload("drawn", draw(st.integers(1, 512)), tuple(tensors))


@given(workloads())
def test_a_workload_comes_back(workload: Workload) -> None:
    back = to_workload(ideal_profile(workload), "drawn")
    assert back.ready_ns() == workload.ready_ns()
    assert [t.forward_ns for t in back.tensors] == [t.forward_ns for t in workload.tensors]
    assert [t.size_bytes for t in back.tensors] == [t.size_bytes for t in workload.tensors]
    assert back.bursts() == workload.bursts()
    assert (back.batch_size, back.backward_ns) == (workload.batch_size, workload.backward_ns)
    assert parse_toml(to_toml(back), "text") == back


def small() -> Profile:
    return ideal_profile(
        Workload("w", 4, tuple(Tensor(f"t{n}", 8, 10, 20, n // 2) for n in range(4)))
    )


def test_bursts_that_are_no_neighbours_and_late_layers_that_come_early() -> None:
    profile = small()
    bursts, ready_ns = (1, 0, 1, 0), (40, 0, 40, 0)
    tensors = [
        tensor.model_copy(update={"burst": burst, "ready_ns": time})
        for tensor, burst, time in zip(profile.tensors, bursts, ready_ns, strict=True)
    ]
    back = to_workload(profile.model_copy(update={"tensors": tuple(tensors)}), "w")
    # Backward is t3 first: t2 cannot be ready before its time, nor t1 before t2.
    assert back.ready_ns() == (80, 80, 80, 40)


def test_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    small().write(path)
    assert read_profile(path) == small()
    assert json.loads(path.read_text())["schema"] == 1
    assert not list(tmp_path.glob("*.partial"))


def _edit(content: dict[str, Any], change: str) -> None:
    exec(change, {}, {"p": content})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("p['schema'] = 2", "schema: "),
        ("del p['bursts']", "bursts: "),
        ("p['colour'] = 3", "colour: "),
        ("p['forward_ns'] = -1", "forward_ns: .*-1"),
        ("p['backward_ns'] = '7'", "backward_ns: .*'7'"),
        ("p['workers'] = True", "workers: "),
        ("p['tensors'] = []", "tensors: "),
        ("p['tensors'][1]['name'] = 't0'", "'t0' occurs twice"),
        ("p['tensors'][1]['forward_order'] = 0", "forward_order 0 of 't1'"),
        ("p['tensors'][2]['ready_ns'] = 1.5", "tensors.2.ready_ns: .*1.5"),
        ("p['tensors'][1]['burst'] = 7", "burst"),
        ("p['bursts'][0]['size_bytes'] = 1", "number 0 has 2 tensors of 1 bytes"),
    ],
)
def test_what_is_wrong_is_named(change: str, named: str, tmp_path: Path) -> None:
    content = json.loads(small().to_json())
    _edit(content, change)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=named) as caught:
        read_profile(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"schema": 1}'])
def test_rubbish_is_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_profile(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="cannot be read"):
        read_profile(tmp_path)
