"""Files that readers see whole or not at all."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from byteprophet.errors import NotWritten
from byteprophet.whole_files import (
    AppendedFile,
    OneWarning,
    check_writable,
    kept_room,
    make_directory,
    whole_file,
    write_whole,
)

from .small_disk import run_on_small_disk

_ON_A_FULL_DISK = """
import os, sys
from pathlib import Path
from byteprophet.errors import NotWritten
from byteprophet.whole_files import AppendedFile, kept_room, write_whole

FULL = "cannot be written: No space left on device"
disk = Path(sys.argv[1])

def refused(call, *arguments):
    try:
        call(*arguments)
    except NotWritten as error:
        return str(error)
    raise AssertionError("it was written")

path = disk / "t.json"
write_whole(path, "old")
assert refused(write_whole, path, "x" * 2_000_000) == f"{path}: {FULL}"
assert path.read_text() == "old"
assert list(disk.iterdir()) == [path]

log = AppendedFile(disk / "log")
line = b"y" * 3000 + b"\\n"
pieces = 0
try:
    while True:
        log.append(line)
        pieces += 1
except NotWritten as error:
    assert str(error) == f"{disk / 'log'}: {FULL}"
assert pieces > 50
assert (disk / "log").read_bytes() == pieces * line
new = AppendedFile(disk / "new", new=True)
refused(new.append, 100 * line)
assert not (disk / "new").exists()
os.truncate(disk / "log", 0)
log.append(line)
assert (disk / "log").read_bytes() == line

with kept_room(disk, 1 << 16):
    filler = AppendedFile(disk / "filler")
    try:
        while True:
            filler.append(bytes(1024))
    except NotWritten:
        pass
    refused(write_whole, path, "z" * 60_000)
    assert path.read_text() == "old"
write_whole(path, "z" * 60_000)

filler.close()
os.unlink(disk / "filler")
bulky = AppendedFile(disk / "bulky", new=True)
try:
    while True:
        bulky.append(bytes(1024), leave_room=True)
except NotWritten as error:
    assert str(error) == f"{disk / 'bulky'}: {FULL} but 64 KiB for results"
AppendedFile(disk / "small").append(bytes(60_000))
print("right")
"""


def test_takes_its_place_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("old")
    with whole_file(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_may_be_written_by_several_at_the_same_time(tmp_path: Path) -> None:
    """Roles of a job whose run directory is on a shared disk: one took the other's file away."""
    path, texts = tmp_path / "t.json", [letter * 1000 for letter in "abcd"]
    with ThreadPoolExecutor(len(texts)) as pool:
        for _ in range(100):
            list(pool.map(lambda text: write_whole(path, text), texts))
            assert path.read_text() in texts
    assert list(tmp_path.iterdir()) == [path]


def test_after_an_error_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("old")

    def write_half() -> None:
        with whole_file(path) as partial:
            partial.write_text("half")
            raise OSError("full")

    with pytest.raises(NotWritten, match=r"t\.json: cannot be written: full$"):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_cuts_nothing_in_two(tmp_path: Path) -> None:
    done = run_on_small_disk(tmp_path / "disk", 512, "-c", _ON_A_FULL_DISK, str(tmp_path / "disk"))
    assert (done.stdout, done.stderr) == ("right\n", "")


def test_a_disk_may_be_read_only(tmp_path: Path) -> None:
    code = f"""
import subprocess
from pathlib import Path
from byteprophet.whole_files import AppendedFile, make_directory, write_whole
disk = Path({str(tmp_path / "disk")!r})
log = AppendedFile(disk / "log")
log.append(b"a")
log.close()
subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
for call in (write_whole, AppendedFile, lambda path, *_: make_directory(path)):
    try:
        call(disk / "x", "")
    except Exception as error:
        print(f"{{type(error).__name__}}: {{error}}")
assert [path.name for path in disk.iterdir()] == ["log"]
"""
    done = run_on_small_disk(tmp_path / "disk", 64, "-c", code)
    line = f"NotWritten: {tmp_path / 'disk' / 'x'}: cannot be written: Read-only file system\n"
    assert (done.stdout, done.stderr) == (3 * line, "")


def test_a_limit_on_the_size_of_files_ends_no_process(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from byteprophet.errors import NotWritten
from byteprophet.whole_files import AppendedFile, write_whole
directory = Path({str(tmp_path)!r})
log = AppendedFile(directory / "log")
log.append(bytes(9000))
for call in (lambda: log.append(bytes(9000)), lambda: write_whole(directory / "t", "x" * 20000)):
    try:
        call()
    except NotWritten as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384)),
    )
    assert done.stdout == (
        f"{tmp_path / 'log'}: cannot be written: File too large\n"
        f"{tmp_path / 't'}: cannot be written: File too large\n"
    )
    assert [(path.name, path.stat().st_size) for path in tmp_path.iterdir()] == [("log", 9000)]


def test_a_new_file_appears_with_its_first_piece(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = AppendedFile(path, new=True)
    assert not path.exists()
    log.append(b"first")
    assert path.read_bytes() == b"first"
    log.append(b", second")
    log.close()
    assert path.read_bytes() == b"first, second"
    with pytest.raises(NotWritten, match=r"log: cannot be written: File exists$"):
        AppendedFile(path, new=True)
    AppendedFile(tmp_path / "other", new=True).close()
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_may_be_gone(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    make_directory(directory)
    log = AppendedFile(directory / "log")
    with kept_room(directory, 4096):
        shutil.rmtree(directory)
    log.append(b"nobody reads it")
    with pytest.raises(NotWritten, match=r"run/t: cannot be written: No such file or directory$"):
        write_whole(directory / "t", "x")
    with kept_room(directory, 4096):  # which is not to be had
        pass
    (tmp_path / "file").touch()
    with pytest.raises(NotWritten, match=r"file/below: cannot be written: Not a directory$"):
        make_directory(tmp_path / "file" / "below")


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "through it")
    reader.join(10)
    assert read == ["through it"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_standard_output_as_a_file_is_written_to_as_it_is(tmp_path: Path) -> None:
    code = """
from pathlib import Path
from byteprophet.whole_files import write_whole
write_whole(Path("/dev/stdout"), "as a file\\n")
"""
    with (tmp_path / "out").open("w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, timeout=60, check=True)
    assert (tmp_path / "out").read_text() == "as a file\n"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_what_a_job_can_do_without_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    or_else = OneWarning("training goes on")
    for number in range(3):
        with or_else.instead():
            write_whole(tmp_path / "nowhere" / str(number), "x")
    assert capsys.readouterr().err == (
        f"byteprophet: warning: {tmp_path / 'nowhere' / '0'}: cannot be written: "
        "No such file or directory; training goes on\n"
    )


def test_what_cannot_be_written_is_said_before(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("old")
    check_writable(kept)
    check_writable(tmp_path / "new")
    check_writable(Path("/dev/null"))
    assert kept.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    for wrong, why in ((tmp_path, "directory"), (tmp_path / "no" / "file", "No such file")):
        with pytest.raises(NotWritten, match=f"{wrong}: cannot be written: .*{why}"):
            check_writable(wrong)


def test_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "secret.html"
    write_whole(path, "old")
    path.chmod(0o600)
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600
