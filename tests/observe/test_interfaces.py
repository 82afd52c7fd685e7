"""What counts as this host's traffic."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.observe.interfaces import interface_bytes

HEAD = "Inter-| Receive | Transmit\n face |bytes packets\n"
ROW = "{}: {} 0 0 0 0 0 0 0 {} 0 0 0 0 0 0 0\n"


def test_counters_of_interfaces(tmp_path: Path) -> None:
    path = tmp_path / "dev"
    path.write_text(HEAD + ROW.format("  lo", 5, 5) + ROW.format("eth0", 7, 11))
    assert interface_bytes(path) == {"sent_bytes": 11, "received_bytes": 7}
    path.write_text(HEAD + ROW.format("  lo", 5, 5))
    assert interface_bytes(path) is None
    path.write_text(f"{HEAD}eth0: many\n")
    assert interface_bytes(path) is None
    assert interface_bytes(tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("there", "counted"),
    [
        (("bond0/lower_eth0", "bond0/lower_eth1", "eth0/master", "eth1/master"), {"eth0", "eth1"}),
        (("eth0.100/lower_eth0", "eth0/device"), {"eth0"}),
        (
            ("br0/lower_eth0", "eth0/device", "eth0/master/bridge", "veth1/master/bridge"),
            {"eth0"},
        ),
        (("eth0/mtu", "eth1/mtu"), {"eth0", "eth1"}),
    ],
    ids=["bond", "vlan", "bridge", "plain"],
)
def test_no_byte_counts_twice(tmp_path: Path, there: tuple[str, ...], counted: set[str]) -> None:
    classes, counters = tmp_path / "net", tmp_path / "dev"
    for entry in ("lo/mtu", *there):
        (classes / entry).mkdir(parents=True)
    names = sorted(path.name for path in classes.iterdir())
    every = {name: 1 << number for number, name in enumerate(names)}
    counters.write_text(HEAD + "".join(ROW.format(n, value, value) for n, value in every.items()))

    def sent_bytes() -> int:
        found = interface_bytes(counters, classes)
        assert found is not None
        assert found["sent_bytes"] == found["received_bytes"]
        return found["sent_bytes"]

    assert sent_bytes() == sum(every[name] for name in counted)
    # Where /sys shows the interfaces of another network namespace, all count.
    (classes / "eth0").rename(classes / "ens3")
    assert sent_bytes() == sum(every.values()) - every["lo"]
