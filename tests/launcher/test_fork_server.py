"""Programs that are forked do what they do when they are started afresh."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from byteprophet.errors import UserError
from byteprophet.launcher import fork_server, run_job
from byteprophet.launcher.fork_key import LATE, LATE_PREFIXES
from byteprophet.launcher.forked_process import VARIABLE, ForkPlan, Process, forks_wanted
from byteprophet.launcher.forking import IMPORTS
from byteprophet.launcher.leftovers import marked_processes

from ..namespaces import why_not_permitted
from .conftest import MakeSpec, python

pytestmark = pytest.mark.usefixtures("default_signals")
LIMIT_S = 100.0
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@pytest.fixture(autouse=True, scope="module")
def _no_server_left() -> Iterator[None]:
    yield
    fork_server.close()
    assert not servers()


def servers(pid: int | None = None) -> list[psutil.Process]:
    """The fork servers of process ``pid``, this one if there is none."""
    return [
        child
        for child in psutil.Process(pid).children()
        if any("fork_server_main.py" in part for part in child.cmdline())
    ]


def start(
    *command: str, fork: bool = True, python: str = sys.executable, **options: Any
) -> Process[str]:
    whole = (python, *command)
    environment = {**os.environ, **ONE_THREAD, **options.pop("variables", {})}
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    plan = ForkPlan(whole) if fork else None
    return Process(whole, plan, env=environment, text=True, **{**pipes, **options})


def outcome(*command: str, **options: Any) -> tuple[int, str, str]:
    """Status, output and errors, of a fork unless ``fork`` is False."""
    forks = options.get("fork", True)
    with start(*command, stdin=subprocess.DEVNULL, **options) as process:
        assert process.is_fork == forks
        said, errors = process.communicate(timeout=LIMIT_S)
        return process.returncode, said, errors


def says(code: str, **options: Any) -> Any:
    """What a fork that runs ``code`` prints, as JSON."""
    status, said, errors = outcome("-c", code, **options)
    assert status == 0, errors
    return json.loads(said)


def assert_same(*command: str, **options: Any) -> tuple[int, str, str]:
    fresh = outcome(*command, fork=False, **options)
    assert outcome(*command, **options) == fresh
    return fresh


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("print('out'); import sys; print('error', file=sys.stderr)", 0),
        ("print('not flushed', end='')", 0),
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('a text')", 1),
        ("import sys; sys.exit(None)", 0),
        ("import os; os._exit(5)", 5),
        ("1 / 0", 1),
        ("def f():\n  raise ValueError('inner')\ntry: f()\nexcept ValueError: {}['outer']", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("this is no Python", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
        ("import os; os.abort()", -signal.SIGABRT),
        ("import sys; sys.excepthook = lambda *a: print(a[:2]); raise ValueError('x')", 1),
        ("import atexit; atexit.register(print, 'at exit'); print('before')", 0),
        ("import atexit; atexit.register(print, 'at exit'); raise OSError(3, 'no')", 1),
        (
            "import threading, time\n"
            "def late(): time.sleep(0.2); print(threading.main_thread().name)\n"
            "threading.Thread(target=late).start()",
            0,
        ),
        ("import sys, atexit; atexit.register(lambda: print(hasattr(sys, 'last_type'))); 1/0", 1),
        ("import sys; sys.exit(256 + 3)", 3),
        ("import sys; sys.exit(-1)", 255),
        ("import sys; sys.excepthook = lambda *a: sys.exit(9); raise ValueError('x')", 9),
        ("import sys; sys.stdout = open('/dev/full', 'w'); print('lost')", 120),
        ("import ctypes; ctypes.CDLL(None).printf(b'from C')", 0),
        ("import sys; sys.stdout.close()", 0),
        ("class A:\n  def __del__(self): print('freed', A.__name__)\na = A(); a.itself = a", 0),
        (
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(100,), daemon=True).start(); print('end')",
            0,
        ),
        ("import os\nif os.fork(): print(os.waitstatus_to_exitcode(os.wait()[1]))\n"
         "else: import atexit; atexit.register(print, 'child'); raise SystemExit(4)", 0),
        ("import torch; torch.manual_seed(7); print(torch.rand(3), torch.get_num_threads())", 0),
        ("import torch; torch.rand(9, requires_grad=True).sum().backward(); print('done')", 0),
        (  # its own library is taken apart, before what was made earlier is finalized
            "import torch, weakref\n"
            "class Earlier: pass\n"
            "earlier = Earlier()\n"
            "weakref.finalize(earlier, lambda: print('made_here::f' in torch.library._defs))\n"
            "library = torch.library.Library('made_here', 'DEF')\n"
            "library.define('f(Tensor x) -> Tensor')\n"
            "print('made_here::f' in torch.library._defs)",
            0,
        ),
        ("import os; print(len(os.listdir('/proc/self/task')), sorted(os.listdir('/dev/fd')))", 0),
        ("import signal as s; print([(n, str(s.getsignal(n))) for n in s.valid_signals()])", 0),
        ("import signal as s; print(s.pthread_sigmask(s.SIG_BLOCK, ()))", 0),
        ("import sys; print([(f.name, f.mode, f.encoding, f.errors, f.line_buffering,"
         " f.write_through, f.newlines, type(f.buffer), f.buffer.name)"
         " for f in (sys.stdin, sys.stdout, sys.stderr)])", 0),
        ("import sys; print(sys.stdout is sys.__stdout__, sys.stdin.read(), sys.flags)", 0),
        ("import sys; print(sys.argv, sys.orig_argv, sys.path, sys.executable)", 0),
        ("import os; print(os.getcwd(), os.getpgrp(), os.getsid(0), os.getppid())", 0),
        ("import resource; print([resource.getrlimit(n) for n in range(16)])", 0),
        ("import os; print(sorted(os.environ.items())); os.system('env | sort')", 0),
        ("import __main__; print(sorted((n, str(v)) for n, v in vars(__main__).items()"
         " if n != '__main__'))", 0),
        ("import threading as t, os; print(t.main_thread().native_id == os.getpid(),"
         " t.current_thread() is t.main_thread(), t.active_count())", 0),
        ("import ctypes, os; print(open('/proc/self/environ').read().rstrip(chr(0)))", 0),
    ],
)  # fmt: skip
def test_code_does_as_when_started_afresh(code: str, status: int, tmp_path: Path) -> None:
    assert assert_same("-c", code, "first", "second", cwd=tmp_path)[0] == status


def test_files_that_are_left_open_are_written(tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "def opened(name):\n"
        "    file = open(sys.argv[1] + name, 'w')\n"
        "    file.write(name)\n"
        "    return file\n"
        "own = opened('own')\n"
        "json.kept = opened('of a module')\n"
        "held = []\n"
        "held.append((held, opened('in a cycle')))\n"
    )
    for place, fork in (("fresh ", False), ("forked ", True)):
        assert outcome("-c", code, str(tmp_path / place), fork=fork)[0] == 0
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    names = ("own", "of a module", "in a cycle")
    assert written == {place + name: name for place in ("fresh ", "forked ") for name in names}


def test_what_only_other_modules_keep_is_not_freed() -> None:
    """An interpreter frees all that the server has made, too, which takes long."""
    code = (
        "import json\nclass A:\n    def __del__(self, say=print): say('freed')\njson.kept = A()\n"
    )
    assert outcome("-c", code, fork=False) == (0, "freed\n", "")
    assert outcome("-c", code) == (0, "", "")


def test_a_process_group_that_is_left_open_is_not_waited_for() -> None:
    """Nor is it by an interpreter, which would have to free it."""
    code = (
        "import ctypes, weakref, torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "seen = weakref.ref(dist.group.WORLD, lambda _, say=print: say('freed'))\n"
        "ctypes.pythonapi.Py_IncRef(ctypes.py_object(seen))\n"
    )
    assert_same("-c", code)


def test_a_script_does_as_when_started_afresh(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def fail(): raise RuntimeError('beside')\n")
    (tmp_path / "script.py").write_text(
        '"""Its text: é."""\n'
        "import __main__, multiprocessing, pickle, sys\n"
        "import beside\n"
        "class Own: pass\n"
        "print(__doc__, __file__, __name__, __package__, __spec__, type(__loader__).__name__)\n"
        "print(sys.argv, sys.path[0], pickle.loads(pickle.dumps(Own())).__class__, vars() is "
        "vars(__main__), sorted(vars(__main__)))\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(abs, [-1]))\n"
        "    beside.fail()\n"
    )
    for script in (str(tmp_path / "script.py"), "script.py", "./script.py"):
        status, said, errors = assert_same(script, "--option", cwd=tmp_path)
        assert (status, "[1]" in said, "RuntimeError: beside" in errors) == (1, True, True)


def test_a_module_does_as_when_started_afresh(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("print('package')\n")
    (package / "part.py").write_text(
        "import sys\nfrom . import __name__ as name\n"
        "print(name, __name__, __spec__.name, sys.argv, sys.path[0])\nraise OSError('at the end')\n"
    )
    assert assert_same("-m", "package.part", "x", cwd=tmp_path)[0] == 1
    assert assert_same("-m", "package.none", cwd=tmp_path)[0] == 1


def test_unbuffered_output_comes_at_once() -> None:
    code = "import time; print('now'); time.sleep(100)"
    with start("-c", code, variables={"PYTHONUNBUFFERED": "1"}) as process:
        assert process.is_fork
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        process.terminate()
        assert process.wait(LIMIT_S) == -signal.SIGTERM


def test_standard_input_is_its_own() -> None:
    with start("-c", "print(input(), input())", stdin=subprocess.PIPE) as process:
        assert process.is_fork
        assert process.communicate("one\ntwo\n", timeout=LIMIT_S) == ("one two\n", "")


def test_it_is_this_process_child() -> None:
    """Waited for, with its processor time, as one that was started."""
    code = "import time\nwhile time.process_time() < 0.5: pass"
    with start("-c", code) as process:
        assert process.is_fork
        assert process.poll() is None
        pid, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
    assert (pid, status) == (process.pid, 0)
    assert 0.4 < usage.ru_utime + usage.ru_stime < 5


def test_a_session_of_its_own() -> None:
    code = "import os; print([os.getsid(0), os.getpgrp(), os.getpid()])"
    assert len({*says(code, start_new_session=True)}) == 1
    assert says(code)[:2] == [os.getsid(0), os.getpgrp()]


def test_signals_that_are_ignored_here_are_ignored_there() -> None:
    code = (
        "import json, signal as s; "
        "print(json.dumps([s.getsignal(n) == s.SIG_IGN for n in (s.SIGINT, s.SIGHUP)]))"
    )
    assert says(code) == [False, False]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert says(code) == [True, False]
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert says(code) == [True, True]


def test_random_numbers_are_its_own() -> None:
    code = (
        "import json, multiprocessing, random, tempfile, numpy, torch\n"
        "print(json.dumps([random.random(), numpy.random.rand(), tempfile.mktemp(),"
        " torch.rand(1).item(), multiprocessing.current_process().authkey.hex()]))"
    )
    first, second = says(code), says(code)
    assert not {*first} & {*second}
    seeded = (
        "import random, numpy; random.seed(3); numpy.random.seed(3); print(numpy.random.rand())"
    )
    assert_same("-c", seeded)


def test_variables_are_the_programs_own() -> None:
    code = "import json, os; print(json.dumps([os.environ.get('RANK'), os.environ.get('PORT')]))"
    assert says(code, variables={"RANK": "1"}) == ["1", None]
    assert says(code, variables={"RANK": "2", "PORT": "x"}) == ["2", "x"]
    assert says(code) == [None, None]


def test_the_scheduler_is_loaded_as_afresh() -> None:
    """What ``prophet`` loads afresh, tests/test_plugin.py checks."""
    code = "import byteps.torch as b; print(b.DistributedOptimizer.__module__)"
    for scheduler in ("stock", "nonsense"):
        assert_same("-c", code, variables={"BYTEPS_SCHEDULER": scheduler})
    loaded = outcome("-c", code, variables={"BYTEPS_SCHEDULER": "prophet"})
    assert loaded == (0, "byteprophet.torch.optimizer\n", "")


def test_what_is_inherited_otherwise_has_another_server(tmp_path: Path) -> None:
    """Variables that are read at the start, limits, the file mask.

    The other server's programs find this interpreter by its name, too.
    """
    code = (
        "import json, os, resource, sys\n"
        "print(json.dumps([sys.path[1], hash('text'), resource.getrlimit(resource.RLIMIT_CORE)[0],"
        " os.umask(0)]))"
    )
    before = says(code)
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    variables = {"PYTHONPATH": str(tmp_path), "PYTHONHASHSEED": "1"}
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    mask = os.umask(0o27)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (4096 if soft != 4096 else 0, hard))
        status, said, _ = assert_same("-c", code, variables=variables)
        by_name = outcome("-c", code, variables=variables, python="python")
    finally:
        os.umask(mask)
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    assert status == 0
    assert by_name == (status, said, "")
    assert json.loads(said)[0] == str(tmp_path)
    assert not {*json.loads(said)} & {*before}
    assert len(servers()) == 2
    assert says(code) == before


def test_an_interpreter_in_another_folder_is_started_afresh(tmp_path: Path) -> None:
    """Its environment is another one, although both names are links to one file."""
    (tmp_path / "python").symlink_to(Path(sys.executable).resolve())
    variables = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    code = "import sys; print(sys.prefix)"
    status, said, errors = outcome("-c", code, python="python", variables=variables, fork=False)
    with start("-c", code, python="python", variables=variables) as process:
        assert process.communicate(timeout=LIMIT_S) == (said, errors)
        assert (process.is_fork, process.returncode, status) == (False, 0, 0)


def test_a_program_that_imports_little_starts_no_server() -> None:
    assert says("print(1)") == 1
    running = servers()
    command = (sys.executable, "-c", "pass")
    plan = ForkPlan(command, starts_server=False)
    for variables, forked in (({}, True), ({"AN_EARLY_VARIABLE": "1"}, False)):
        with Process(command, plan, env={**os.environ, **ONE_THREAD, **variables}) as process:
            assert (process.is_fork, process.wait(LIMIT_S)) == (forked, 0)
    assert servers() == running


@pytest.mark.parametrize(
    ("command", "variables"),
    [
        (("-u", "-c", "print(1)"), {}),
        (("-X", "dev", "-c", "print(1)"), {}),
        (("-c", "print(1)"), {"BYTEPROPHET_LONG": "x" * 110_000}),
        # A server would have threads, and a fresh start says what it imports.
        (("-c", "print(1)"), {"OMP_NUM_THREADS": "2", "PYTHONPROFILEIMPORTTIME": "1"}),
        (("script.py",), {}),  # beside a module that a server has from elsewhere
    ],
)
def test_what_a_fork_cannot_stand_for_is_started_afresh(
    command: tuple[str, ...], variables: Mapping[str, str], tmp_path: Path
) -> None:
    (tmp_path / "sympy.py").write_text("VALUE = 1\n")
    (tmp_path / "script.py").write_text("import sympy\nprint(sympy.VALUE)\n")
    cwd = tmp_path if command == ("script.py",) else None
    with start(*command, variables=variables, cwd=cwd) as process:
        said, errors = process.communicate(timeout=LIMIT_S)
        assert (process.is_fork, process.returncode, said) == (False, 0, "1\n"), errors


def test_what_cannot_be_started_is_refused_as_ever(tmp_path: Path) -> None:
    for fork in (True, False):
        with pytest.raises(FileNotFoundError):
            start("-c", "", cwd=tmp_path / "none", fork=fork)
        with pytest.raises(ValueError, match="null byte"):
            start("-c", "\0", fork=fork)


def test_a_server_that_is_killed_is_done_without() -> None:
    assert outcome("-c", "print(1)")[1] == "1\n"
    with start("-c", "input(); print(2)", stdin=subprocess.PIPE) as running:
        for server in servers():
            server.kill()
            server.wait(LIMIT_S)
        with start("-c", "print(3)") as process:
            assert process.communicate(timeout=LIMIT_S)[0] == "3\n"
        assert running.communicate("\n", timeout=LIMIT_S)[0] == "2\n"
    fork_server.close()


_CLIENT = """
import os, sys, time
from byteprophet.launcher.forked_process import ForkPlan, Process
command = (sys.executable, "-c", "import time; time.sleep(1000)")
for dies in (True, False):
    process = Process(command, ForkPlan(command, dies_with_parent=dies))
    print(process.pid if process.is_fork else 0, flush=True)
time.sleep(1000)
"""


def test_nothing_is_left_of_a_client_that_is_killed() -> None:
    """Servers end, and programs that are to end with it; others go on."""
    environment = {**os.environ, **ONE_THREAD}
    command = (sys.executable, "-c", _CLIENT)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as client:
        assert client.stdout is not None
        dies, stays = (psutil.Process(int(client.stdout.readline())) for _ in range(2))
        (server,) = servers(client.pid)
        client.kill()
    gone, alive = psutil.wait_procs([server, dies, stays], timeout=5)
    assert {process.pid for process in gone} == {server.pid, dies.pid}
    assert alive == [stays]
    stays.kill()


def test_a_forked_child_of_this_process_has_servers_of_its_own() -> None:
    outcome("-c", "")
    mine = [server.pid for server in servers()]
    pid = os.fork()
    if pid == 0:
        try:
            same = outcome("-c", "print(1)")[1] == "1\n"
            apart = {server.pid for server in servers()}.isdisjoint(mine)
            fork_server.close()
            os._exit(not (same and apart))
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert outcome("-c", "print(1)")[1] == "1\n"


_ROLE = """
import os, psutil, socket, sys
print("torch" in sys.modules, os.getcwd(), os.getsid(0) == os.getpid(), os.listdir("/dev/shm"),
      psutil.Process().parents()[0].pid)
print(socket.if_nameindex(), os.environ["BYTEPROPHET_ROLE"])
"""


@pytest.mark.skipif(why_not_permitted() is not None, reason=str(why_not_permitted()))
def test_workers_on_hosts_of_their_own(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are forked into their namespaces, and found by their environment."""
    said: dict[str, list[str]] = {}
    for forks in ("1", "0"):
        monkeypatch.setenv(VARIABLE, forks)
        spec = make_spec(python(_ROLE), namespaces=True)
        spec = replace(spec, run_directory=spec.run_directory.with_name(f"run-{forks}"))
        lines: list[tuple[str, str]] = []
        run_job(spec, lambda role, line, lines=lines: lines.append((role, line))).check()
        said[forks] = sorted(f"{role}: {line}" for role, line in lines)
    assert len(said["1"]) == 4
    assert said["0"] == [line.replace(": True /", ": False /") for line in said["1"]]


def test_a_job_ends_its_forked_workers(make_spec: MakeSpec) -> None:
    """Also those that somebody else looks for by what is in their environment."""
    spec = make_spec(python("import time; print(1, flush=True); time.sleep(100)"))
    marked: list[int] = []

    def look(role: str, _line: str) -> None:
        marked.extend(marked_processes(str(spec.run_directory), role))
        if len(marked) == 2:
            os.kill(marked[0], signal.SIGKILL)

    result = run_job(spec, look)
    assert "was killed by signal 9 (SIGKILL)" in str(result.failed)
    assert {*marked} == {role.pid for role in result.roles if role.name.startswith("worker")}
    assert not marked_processes(str(spec.run_directory))


def test_imports_read_no_late_variable() -> None:
    """Else a fork would go by its server's. What C++ reads, BytePS reads, and is not loaded."""
    code = f"""
import importlib, json, os, sys
seen = []
class Watched(type(os.environ)):
    def __getitem__(self, name):
        seen.append(name)
        return super().__getitem__(name)
    def __contains__(self, name):
        seen.append(name)
        return super().__contains__(name)
os.environ.__class__ = Watched
for name in {IMPORTS!r}:
    importlib.import_module(name)
loaded = [name for name in sys.modules if name.split(".")[0] == "byteps"]
print(json.dumps([seen, loaded, "byteps" in open("/proc/self/maps").read()]))
"""
    seen, loaded, mapped = says(code, fork=False)
    assert "OMP_NUM_THREADS" in seen or len(seen) > 5
    late = {name for name in seen if name in LATE or name.startswith(LATE_PREFIXES)}
    assert (late, loaded, mapped) == (set(), [], False)


def test_the_variable_decides() -> None:
    for default in (True, False):
        said = {text: forks_wanted({VARIABLE: text}, default) for text in "01"}
        assert said == {"0": False, "1": True}
        assert forks_wanted({}, default) == default
    with pytest.raises(UserError, match=f"{VARIABLE}=yes: must be 0 or 1"):
        forks_wanted({VARIABLE: "yes"}, True)
