"""Commands that read a run, on files that were cut off, damaged, emptied, taken from elsewhere.

Whatever is in them, a command does what it can or says in one line what is wrong, and where.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from byteprophet.bench import Case, Plan, run_bench
from byteprophet.cli.main import run_cli
from byteprophet.control import messages as control
from byteprophet.control.log import NAME, PLAN_NAME
from byteprophet.session import monitoring
from byteprophet.session.profiling import PROFILING
from byteprophet.timeline.read_events import load_events
from byteprophet.tune.journal import Journal
from byteprophet.workload import Tensor, Workload, to_toml

from ..thorough import examples

pytestmark = pytest.mark.job
MS = 1_000_000
TURNS = examples(2, 3)  # per kind of file
TIMELINE = ("timeline", "RUN", "--format", "perfetto", "--out", "OUT/perfetto.json")
CHAKRA = ("timeline", "RUN", "--format", "chakra", "--out", "OUT/chakra")
REPLAY = ("replay", "RUN", "--json")
WAITS = ("profile", "RUN", "--waits", "--bandwidth", "1gbit")
READ_BY = {
    "events/transfers-*": (TIMELINE, CHAKRA, REPLAY, WAITS),
    "events/spans-*": (TIMELINE, CHAKRA, REPLAY),
    "events/served-*": (TIMELINE, REPLAY),
    "events/messages-*": (TIMELINE, CHAKRA),
    "config.toml": (REPLAY, WAITS),
    "profile.json": (("profile", "RUN", "--json"),),
    "network/*": (("network", "RUN"),),
    "control.jsonl": (("plan", "RUN"),),
    "plan.json": (REPLAY,),
    "tuning.jsonl": (REPLAY,),
}
"""Each kind of file, and the commands to which it matters."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real job with all that these commands read."""
    directory = tmp_path_factory.mktemp("recorded")
    tensors = tuple(Tensor(f"layer{n}", 200_000 * n + 4000, MS, 2 * MS) for n in range(4))
    (directory / "small.toml").write_text(to_toml(Workload("small", 4, tensors)))
    case = Case(
        str(directory / "small.toml"),
        "prophet",
        None,
        partition_bytes=65536,
        environment={monitoring.VARIABLE: "1", PROFILING: "1"},
    )
    # On a busy machine, such a short job may be over before its controller is up.
    for idle_s in (0.0, 3.0, 30.0):
        plan = Plan((case,), iterations=6, rounds=1, record=True, controller=True, idle_s=idle_s)
        (row,) = run_bench(plan, directory / "runs", False, lambda _: None)
        made = Path(row["run"])
        if (made / NAME).exists():
            told(made)
            return made
    raise AssertionError("the controller has written no log")


def told(run: Path) -> None:
    """What a tuner and a controller leave; this job is too short for the one, maybe for both."""
    Journal(run).write(iteration=2, chosen={"window_max_bytes": 1 << 20})
    plan = control.Plan(
        number=1,
        at_iteration=4,
        settings={"window_max_bytes": 1 << 21},
        ready=[control.Ready(name="layer1", ready_ns=2 * MS, spread_ns=0)],
        blocks=[],
        predicted_iteration_ns=30 * MS,
        reason="a test",
    )
    (run / PLAN_NAME).write_text(plan.model_dump_json(by_alias=True))


def flipped(content: bytes, random: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice([1, 1, 3, 30]) if content else 0):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut off": lambda content, random: content[: random.randrange(len(content) + 1)],
    "bits flipped": flipped,
    "half-written": lambda content, _: content[: len(content) // 2].ljust(len(content), b"\0"),
    "foreign": lambda _, random: random.choice([b"", b"PAR1", b"{}", b"[1, 2]\n", b"a = 1\n"]),
}


def said(arguments: tuple[str, ...], run: Path, out: Path, capsys: object) -> tuple[int, str]:
    assert isinstance(capsys, pytest.CaptureFixture)
    capsys.readouterr()
    status = run_cli([part.replace("RUN", str(run)).replace("OUT", str(out)) for part in arguments])
    return status, capsys.readouterr().err


def test_the_run_itself_is_read_by_all(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in {command for commands in READ_BY.values() for command in commands}:
        assert said(command, run, tmp_path, capsys) == (0, "")


@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_is_wrong_is_one_line(
    damage: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = random.Random(damage)
    copy = tmp_path / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("logs", "results"))
    refused = 0
    for kind, commands in READ_BY.items():
        for turn in range(TURNS):
            path = generator.choice(sorted(copy.glob(kind)))
            content = path.read_bytes()
            path.write_bytes(DAMAGES[damage](content, generator))
            for command in commands:
                status, line = said(command, copy, tmp_path, capsys)
                about = f"{damage}, {path.relative_to(copy)}, turn {turn}: {command}: {line}"
                assert status in (0, 2), about
                if status == 2:
                    refused += 1
                    assert line.count("\n") == 1, about
                    assert str(copy) in line, about
            path.write_bytes(content)
    assert refused


def test_a_file_that_was_cut_off_is_read_and_marked(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    some = 0
    for path in (copy / "events").glob("*.arrows"):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) * 3 // 4])
        part, whole = load_events(path), load_events(run / "events" / path.name)
        assert not part.whole
        assert len(part.rows) < len(whole.rows)
        some += len(part.rows)
        for column in whole.table.columns:
            same = part.rows[column] == whole.rows[column][: len(part.rows)]
            assert same.all()
    assert some
    status, line = said(("timeline", "RUN"), copy, tmp_path, capsys)
    assert (status, line) == (0, "")
