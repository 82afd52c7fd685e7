"""What people really do: scripts made after public reports, with what each should give and gives.

    python experiments/user_cases.py [--cases ../shared/cases] [--only 03,17]

The scripts are no part of this repository; where their folder is missing, this says so. Each case
runs its own commands; what they print is judged here. A table says per case what is expected, and
what was got. Exit status 1 where that differs. Cases that need a package which is not installed
(``accelerate``, ``lightning``), or root, are left out, and the table says so. Eight minutes on two
cores.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from script import progress_of, run_script

from byteprophet.cli.lists import split
from byteprophet.errors import JobFailed, UserError

_TIMEOUT_S = 400.0
_SYNCS = ("allreduce", "dear", "dear-planned")
_progress = progress_of("user_cases")
_BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Output:
    """What one command printed, both streams, and its exit status; -1: it was stopped."""

    text: str
    status: int

    def has(self, pattern: str) -> bool:
        """Whether a line matches."""
        return re.search(pattern, self.text, re.MULTILINE) is not None


Verdict = tuple[bool, str]  # as expected; what was got


@dataclass(frozen=True)
class Case:
    """``run`` gets a function that runs a command in the folder of cases."""

    number: str
    expected: str
    run: Callable[[Run], Verdict]
    needs: str = ""  # a package, or "root"


class Run:
    """Runs commands of cases."""

    def __init__(self, cases: Path, scratch: Path) -> None:
        self.cases = cases
        self.scratch = scratch

    def __call__(self, *command: str, **environment: str) -> Output:
        """``command``, its first word in the folder of cases."""
        return self.program(str(self.cases / command[0]), *command[1:], **environment)

    def program(self, *command: str, **environment: str) -> Output:
        """Any command."""
        settings = {"BP_BIN": str(_BIN), "TMPDIR": str(self.scratch), **environment}
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **settings},
            text=True,
            errors="replace",
        )
        try:
            text, _ = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return Output(process.communicate()[0], -1)
        return Output(text, process.returncode)

    def torch(self, case: str, *arguments: str, **environment: str) -> Output:
        """Two ranks, by torchrun, under every ``sync``."""
        script = str(self.cases / case)
        return self("run_torch.sh", script, *arguments, T="20", LINES_KEPT="60", **environment)

    def byteps(self, case: str, *arguments: str) -> Output:
        """Two workers and a server."""
        script = str(self.cases / case)
        return self("run_byteps.sh", script, *arguments, T="20", LINES_KEPT="60")


def _passes(*outputs: Output, ranks: int) -> Verdict:
    """All ranks say PASS."""
    passed = sum(len(re.findall("PASS rank", each.text)) for each in outputs)
    failed = sum(len(re.findall("FAIL rank|Traceback", each.text)) for each in outputs)
    return passed == ranks and not failed, f"{passed} of {ranks} ranks passed, {failed} failed"


def _refused(output: Output, pattern: str, times: int = 1) -> Verdict:
    """In one line that matches, by as many ranks at least."""
    lines = [line for line in output.text.splitlines() if re.search(pattern, line)]
    return len(lines) >= times, lines[0].strip()[:150] if lines else "no such line"


def _both(*verdicts: Verdict) -> Verdict:
    return all(good for good, _ in verdicts), "; ".join(text for _, text in verdicts)


def _ddp_beside(run: Run) -> Verdict:
    twice = run.torch("03-ddp-wrapped-model/train.py")
    sharded = run.torch("03-ddp-wrapped-model/sharded.py")
    said = _refused(twice, r"^\S* ?RuntimeError: .*two synchronisers.*DistributedDataParallel", 6)
    return _both(said, _passes(sharded, ranks=6))


def _complex(run: Run) -> Verdict:
    name = "04-complex-parameters/train.py"
    return _passes(run.torch(name), run.byteps(name), ranks=8)


def _rendezvous(run: Run) -> Verdict:
    script = str(run.cases / "07-init-without-master-addr" / "train.py")
    outputs = [run.program(sys.executable, script, how) for how in ("file", "tcp", "store")]
    return _passes(*outputs, ranks=6)


def _small_shm(run: Run) -> Verdict:
    output = run("10-docker-shm/run.sh")
    named = _refused(output, r"^byteprophet: error: .*/dev/shm")
    return named[0] and not output.has("Bus error|Bad address"), named[1]


def _kineto(run: Run) -> Verdict:
    output = run("13-real-kineto-traces/run.sh")
    read = len(re.findall(r"rc=0 .*rules broken: 0", output.text))
    return read == len(output.text.splitlines()) == 5, f"{read} of 5 traces read, no rule broken"


def _odd_names(run: Run) -> Verdict:
    output = run("15-names-that-break-json/run.sh")
    lines = output.text.splitlines()
    told = [line for line in lines if re.search(r"rc=(0 valid|2 .*error)", line)]
    place = run.scratch / "case-15"
    chakra = run.program(
        str(_BIN / "byteprophet"), "timeline", str(place / "surrogate.json"), "--format", "chakra",
        "--out", str(place / "chakra"),
    )  # fmt: skip
    read = output.has(r"^bom .*rc=0") and chakra.status == 0
    good = len(told) == 16 and not output.has(r"\([1-9]\d* tracebacks\)") and read
    return good, f"{len(told)} of 16 read or refused in one line; Chakra status {chakra.status}"


def _uneven(run: Run) -> Verdict:
    name = "17-uneven-batches/train.py"
    ours, byteps = run.torch(name), run.byteps(name)
    return _both(
        _refused(ours, r"rank 0: after \d s: .*rank 1 has left the job", 3),
        _refused(byteps, r"rank 0: after \d s: .*worker.1 .*has finished"),
    )


def _saved(run: Run) -> Verdict:
    name = "18-saved-objects/train.py"
    return _passes(run.torch(name), run.byteps(name), ranks=8)


def _restarted(run: Run) -> Verdict:
    """Without the store that attempts share, which plain gloo does not survive either."""
    passed = 0
    for attempt in range(4):
        saved = run.scratch / f"elastic-{attempt}.pt"
        output = run.program(
            str(_BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", "--max-restarts", "1",
            str(run.cases / "23-elastic-restart" / "train.py"), str(saved),
            CASE_SYNC="dear-planned", BYTEPROPHET_TIMEOUT_S="20",
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE=str(attempt % 2),
        )  # fmt: skip
        passed += len(re.findall(r"PASS", output.text)) == 2
        if "cannot join" in output.text:
            return False, "an address of the first attempt was used again"
    return passed >= 2, f"{passed} of 4 jobs went on from the checkpoint"


def _compiled_step(run: Run) -> Verdict:
    name = "24-compiled-step/train.py"
    ways = ("plain", "bound", "tutorial", "whole")
    outputs = [run.torch(name, way) for way in ways]
    outputs += [run.byteps(name, way) for way in ("bound", "whole")]
    return _passes(*outputs, ranks=len(ways) * 6 + 4)


def _full_disk(run: Run) -> Verdict:
    output = run("26-full-disk-while-recording/run.sh", "300")
    good, text = _passes(output, ranks=2)
    warned = output.has("cannot be written|not recorded|No space left")
    return good and warned, f"{text}; a warning: {warned}"


def _saves_alone(run: Run) -> Verdict:
    output = run.torch("30-rank0-saves-optimizer/train.py")
    good, text = _refused(output, r"rank 0 after \d+ s: .*state_dict\(\)")
    passed = len(re.findall("PASS", output.text))
    return good and passed >= 4, f"{text}; {passed} ranks passed"


def _compiled_blocks(run: Run) -> Verdict:
    digests = set()
    for way in ("eager", "blocks", "pairs", "whole"):
        found = []
        for overlap in "01":
            output = run.torch("32-compiled-blocks/train.py", way, BYTEPROPHET_OVERLAP=overlap)
            found += re.findall(r"overlap=[01] ([0-9a-f]{12})", output.text)
        digests.add((way, len(found), len(set(found))))
    bad = [way for way, count, different in digests if (count, different) != (12, 1)]
    return not bad, f"digests differ for {', '.join(bad)}" if bad else "one digest per way"


def _accelerate(run: Run) -> Verdict:
    output = run.torch("34-accelerate/train.py", "ours")
    return _refused(output, r"RuntimeError: .*two synchronisers", 6)


def _lightning(run: Run) -> Verdict:
    script = str(run.cases / "36-lightning" / "train.py")
    torchrun = [str(_BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"]
    output = run.program(*torchrun, script, "ours")
    return _refused(output, r"RuntimeError: .*two synchronisers", 2)


CASES = (
    Case("03", "DistributedDataParallel beside ours is refused by name", _ddp_beside),
    Case("04", "complex parameters are trained", _complex),
    Case("07", "ranks meet by a file, an address or a store", _rendezvous),
    Case("10", "one line names /dev/shm", _small_shm, needs="root"),
    Case("13", "profilers' traces are read", _kineto),
    Case("15", "odd names are read, or refused in one line", _odd_names),
    Case("17", "the others end, and say who has finished", _uneven),
    Case("18", "optimizers are saved as plain ones", _saved),
    Case("23", "the second attempt goes on from the checkpoint", _restarted),
    Case("24", "a compiled step() is right", _compiled_step),
    Case("26", "training survives a full disk", _full_disk, needs="root"),
    Case("30", "the error names state_dict()", _saves_alone),
    Case("32", "the same bits with overlap under torch.compile", _compiled_blocks),
    Case("34", "refused by name under Accelerate", _accelerate, needs="accelerate"),
    Case("36", "refused by name under Lightning", _lightning, needs="lightning"),
)


def main(arguments: Sequence[str]) -> None:
    """Run, print, fail where a case is not as expected."""
    parser = argparse.ArgumentParser(description="Run scripts made after users' reports.")
    parser.add_argument("--cases", type=Path, default=Path("../shared/cases"))
    parser.add_argument("--only", default=",".join(case.number for case in CASES))
    options = parser.parse_args(arguments)
    if not (options.cases / "common.py").is_file():
        raise UserError(f"{options.cases}: no scripts are there; name their folder by --cases")
    chosen = split(options.only, "--only")
    table = Table("case", "expected", "", "got", box=box.SIMPLE)
    wrong = []
    for case in CASES:
        if case.number not in chosen:
            continue
        _progress(f"{case.number}: {case.expected}")
        missing = _missing(case.needs)
        if missing:
            table.add_row(case.number, case.expected, "left out", missing)
            continue
        with tempfile.TemporaryDirectory() as scratch:
            good, got = case.run(Run(options.cases.resolve(), Path(scratch)))
        table.add_row(case.number, case.expected, "as expected" if good else "WRONG", got)
        if not good:
            wrong.append(case.number)
    Console().print(table, markup=False)
    if wrong:
        raise JobFailed(f"not as expected: {', '.join(wrong)}")


def _missing(needs: str) -> str:
    if needs == "root":
        return "" if os.geteuid() == 0 else "needs root"
    if needs and importlib.util.find_spec(needs) is None:
        return f"{needs} is not installed"
    return ""


if __name__ == "__main__":
    run_script(main)
