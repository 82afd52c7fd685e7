"""What has gone over this host's wires, by the counters of its interfaces."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

_COUNTERS = Path("/proc/self/net/dev")
_CLASSES = Path("/sys/class/net")


def interface_bytes(counters: Path = _COUNTERS, classes: Path = _CLASSES) -> dict[str, int] | None:
    """Bytes that this host's interfaces other than loopback have sent and received.

    Interfaces that hand what they carry on to other ones of this host do not count: a bond, a
    bridge and its ports that are not hardware, a VLAN. None if there is no other interface, or the
    system does not say.
    """
    sent_bytes = received_bytes = found = 0
    try:
        rows = dict(_row(line) for line in counters.read_text(encoding="ascii").splitlines()[2:])
        for name in rows.keys() - _on_others(rows.keys(), classes) - {"lo"}:
            received_bytes += int(rows[name][0])
            sent_bytes += int(rows[name][8])
            found += 1
    except (OSError, ValueError, IndexError):
        return None
    return {"sent_bytes": sent_bytes, "received_bytes": received_bytes} if found else None


def _row(line: str) -> tuple[str, list[str]]:
    name, _, fields = line.partition(":")
    return name.strip(), fields.split()


def _on_others(names: Set[str], classes: Path) -> set[str]:
    """Which of ``names`` carry nothing that no other one does."""
    folders = {path.name: path for path in classes.iterdir()} if classes.is_dir() else {}
    if not names <= folders.keys():  # /sys is of another network namespace than this process
        return set()
    return {name for name in names if _is_on_others(folders[name])}


def _is_on_others(folder: Path) -> bool:
    is_hardware, is_port = (folder / "device").exists(), (folder / "master" / "bridge").exists()
    return any(folder.glob("lower_*")) or (is_port and not is_hardware)
