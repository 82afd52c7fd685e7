"""What is read, which files of the samples it is, how it is damaged, and who reads it.

The first reader of a format is the quickest: the one that a test has time for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from byteprophet.bench import Case, Plan
from byteprophet.bench.grid import load_grid
from byteprophet.bench.grid_report import make_report
from byteprophet.bench.result import read_results, summarize
from byteprophet.control.keys import read_keys
from byteprophet.job.region_costs import read_region_costs
from byteprophet.launcher.stepper import read_steps
from byteprophet.paced.worker_config import read_worker_config
from byteprophet.session.profiling import PROFILE, given_profile
from byteprophet.timeline.sources import load_sources
from byteprophet.tune.journal import read_journal
from byteprophet.workload import load
from damage import controller, learned, variables
from damage.of_bytes import Damage, damage_bytes
from damage.of_events import damage_events
from damage.of_values import damage_json, damage_lines, damage_text, damage_toml


@dataclass(frozen=True)
class Command:
    """A command line. ``RUN``, ``FILE``, ``OUT`` and ``SAMPLES`` stand for paths."""

    words: Sequence[str]

    @property
    def prints_json(self) -> bool:
        """Whether its output is JSON."""
        return self.words[-1] == "--json"

    def arguments(self, samples: Path, path: Path) -> list[str]:
        """For the damaged file at ``path``; its run is the topmost directory in ``samples``."""
        inside = path.relative_to(samples).parts
        places = {
            "SAMPLES": str(samples),
            "RUN": str(samples / inside[0]),
            "FILE": str(path),
            "OUT": str(samples / "out"),
        }
        found = []
        for word in self.words:
            for name, place in places.items():
                word = word.replace(name, place)
            found.append(word)
        return found


Reader = Command | Callable[[Path, Path], object]
"""A function takes the samples' directory and the damaged file."""


@dataclass(frozen=True)
class Format:
    """``where``: a pattern of files in the samples. ``part``: of the samples that must be there.

    ``is_file``: byteprophet opens it, and has to find out what else it may be.
    """

    name: str
    part: str
    where: str
    damages: Sequence[Damage]
    readers: Sequence[Reader]
    is_file: bool = True


def _command(words: str) -> Command:
    return Command(tuple(words.split()))


_REPLAY = _command("replay RUN --json")
_REPORT = _command("report RUN --out OUT.html --json")
_TIMELINE = _command("timeline RUN --json")
_PERFETTO = _command("timeline RUN --format perfetto --out OUT.json --json")
_CHAKRA = _command("timeline RUN --format chakra --out OUT --json")
_WAITS = _command("profile RUN --waits --bandwidth 1gbit --json")
_TRACES = (
    lambda _, path: load_sources([path]),
    _command("timeline FILE --json"),
    _command("timeline FILE"),
    _command("timeline FILE --format perfetto --out OUT.json --json"),
    _command("timeline FILE --format chakra --out OUT --json"),
)
_GRID, _OF_GRID = "bench --grid", "--report --out SAMPLES/grid"


def _events(run: str, *more: Command) -> Format:
    readers = (_TIMELINE, _PERFETTO, _CHAKRA, _REPLAY, _REPORT, *more)
    return Format(f"events of {run}", run, f"{run}/events/*.arrows", (damage_events,), readers)


def _run(samples: Path, path: Path) -> Path:
    return samples / path.relative_to(samples).parts[0]


def _worker_config(samples: Path, path: Path) -> None:
    config = read_worker_config(path)
    config = replace(config, workload=str(samples / config.workload))  # where workers run
    config.load_workload()
    if config.next_batch_size is not None:
        config.load_next_workload()
    assert config.updates
    config.to_toml()


def _grid_report(samples: Path, path: Path) -> None:
    json.dumps(make_report(load_grid(str(samples / "grid.toml")), path.parent), allow_nan=False)


def _results(samples: Path, path: Path) -> None:
    case = Case("small", "prophet", None)
    jobs = [(path.parent, read_results(_run(samples, path), case.workers))]
    summarize(case, Plan((case,), iterations=8, rounds=1), load(samples / "small.toml"), jobs)


FORMATS: Sequence[Format] = (
    Format(
        "workload",
        "workloads",
        "small.toml",
        (damage_toml,),
        (
            lambda _, path: load(str(path)),
            _command("workload FILE"),
            _command("workload FILE --toml"),
        ),
    ),
    Format(
        "grid",
        "workloads",
        "whole.toml",
        (damage_toml,),
        (
            lambda _, path: load_grid(str(path)),
            _command(f"{_GRID} FILE {_OF_GRID}"),
        ),
    ),
    Format(
        "grid's jobs",
        "grid",
        "grid/jobs.jsonl",
        (damage_lines,),
        (
            _grid_report,
            _grid_report,
            _grid_report,
            _command(f"{_GRID} SAMPLES/grid.toml {_OF_GRID}"),
        ),
    ),
    Format(
        "config.toml",
        "prophet",
        "prophet/config.toml",
        (damage_toml,),
        (_WAITS, _REPLAY, _REPORT),
    ),
    Format(
        "config.toml, all-reduce", "ring", "ring/config.toml", (damage_toml,), (_REPLAY, _REPORT)
    ),
    Format(
        "worker.toml", "prophet", "prophet/worker.toml", (damage_toml,), (_worker_config, _REPORT)
    ),
    Format(
        "profile.json",
        "prophet",
        "prophet/profile.json",
        (damage_json,),
        (
            _command("profile RUN --json"),
            _command("profile RUN --toml"),
            _command("profile RUN"),
            lambda _, path: given_profile({PROFILE: str(path)}),
        ),
    ),
    Format(
        "network samples",
        "prophet",
        "prophet/network/*.json",
        (damage_json,),
        (_command("network RUN --json"), _command("network RUN"), _REPORT),
    ),
    Format(
        "control.jsonl",
        "prophet",
        "prophet/control.jsonl",
        (damage_lines,),
        (_command("plan RUN --json"), _command("plan RUN")),
    ),
    Format("plan.json", "prophet", "prophet/plan.json", (damage_json,), (_REPLAY, _REPORT)),
    Format("order.json", "prophet", "prophet/order.json", (damage_json,), (_REPLAY, _REPORT)),
    Format(
        "tuning.jsonl",
        "tuned",
        "tuned/tuning.jsonl",
        (damage_lines,),
        (lambda samples, path: read_journal(_run(samples, path)), _REPLAY),
    ),
    Format(
        "steps.json",
        "prophet",
        "prophet/steps.json",
        (damage_json,),
        (lambda samples, path: read_steps(_run(samples, path)),),
    ),
    Format("summary.json", "prophet", "prophet/summary.json", (damage_json,), (_REPORT,)),
    Format(
        "workers' results",
        "prophet",
        "prophet/results/*.json",
        (damage_json,),
        (_results,),
    ),
    _events("prophet", _WAITS),
    _events("tuned"),
    _events("stock"),
    _events("ring"),
    _events("mesh"),
    Format("strategy.json", "mesh", "mesh/strategy.json", (damage_json,), (_REPLAY, _REPORT)),
    Format(
        "region-costs.json",
        "learned",
        "learned/region-costs.json",
        (damage_json,),
        (lambda _, path: read_region_costs(path),),
    ),
    Format(
        "region-memory.json",
        "learned",
        "learned/region-memory.json",
        (damage_json,),
        (learned.use_memory,),
    ),
    Format("fused.json", "learned", "learned/fused.json", (damage_json,), (learned.use_fused,)),
    Format("rounds.json", "learned", "learned/rounds.json", (damage_json,), (learned.use_rounds,)),
    Format(
        "keys",
        "keys",
        "keys/*",
        (damage_text, damage_bytes),
        (
            lambda _, path: read_keys(path.parent, "controller"),
            lambda _, path: read_keys(path.parent, "worker"),
        ),
    ),
    Format(
        "messages to the controller",
        "messages",
        "messages/inbound.jsonl",
        (damage_lines,),
        (controller.hear_all, controller.serve_all),
        is_file=False,
    ),
    Format(
        "messages to workers",
        "messages",
        "messages/outbound.jsonl",
        (damage_lines,),
        (controller.parse_all, controller.obey_all),
        is_file=False,
    ),
    Format(
        "options",
        "values",
        "values/options.txt",
        (damage_text,),
        (variables.read_options,),
        is_file=False,
    ),
    Format(
        "environment",
        "values",
        "values/environment.txt",
        (damage_text,),
        (variables.read_environment,),
        is_file=False,
    ),
    Format("Kineto", "traces", "kineto.json", (damage_json,), _TRACES, is_file=False),
    Format("comm.json", "traces", "comm.json", (damage_json,), _TRACES, is_file=False),
    Format("Chakra", "traces", "chakra.0.et", (damage_bytes,), _TRACES, is_file=False),
)
