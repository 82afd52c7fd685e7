"""Writes files so that readers see them complete or not at all.

    write_whole, whole_file   replace the old file once the new one is complete
    AppendedFile              a file that grows by complete pieces
    kept_room                 reserves space for a file that is written last
    make_directory            makes the directory of files
    check_writable            says before long work that its result could not be written
    check_no_link             for files that we name ourselves in a directory of somebody else
    writing                   for files that need another way of writing

Any reason why a file cannot be written raises ``NotWritten``, which names the file in one line: a
full or read-only disk, a quota, a limit on the size of files, a missing directory, no permission.
Commands end with it. Files that a running job saves beside its work cause a single warning
(``OneWarning``).
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from byteprophet.errors import NotWritten, warn

_MOST_KEPT_BYTES = 8 << 20
_KEPT_SHARE = 8  # of a small disk


def write_whole(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, whose directory exists; until then, the old file stays."""
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to, which takes ``path``'s place at the end; after an error, it is gone.

    A link stays a link, and a file keeps its permissions. A device or a pipe is written to as is.
    """
    with writing(path):
        if _is_device(path):
            yield path
            return
        place = path.resolve()
        partial = _partial(place)
        try:
            yield partial
            with suppress(FileNotFoundError):
                partial.chmod(stat.S_IMODE(place.stat().st_mode))
            partial.replace(place)
        finally:
            with suppress(OSError):
                partial.unlink()


def _partial(path: Path) -> Path:
    """Where ``path`` is written until it is complete.

    Roles of a job may write the same file at the same time, and nobody can foresee the name to put
    a link there.
    """
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")


def check_writable(path: Path) -> None:
    """Raises ``NotWritten`` if ``path`` could not be written now, so that no work is lost later."""
    with writing(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not _is_device(path):
            with tempfile.TemporaryFile(dir=path.resolve().parent):
                pass


def check_no_link(path: Path) -> None:
    """Raises ``NotWritten`` if ``path`` is a link, which may lead to any file of the user."""
    if path.is_symlink():
        raise NotWritten(f"{path}: cannot be written: it is a link")


class AppendedFile:
    """A file that grows by whole pieces: one that does not fit is taken back.

    Several processes may append to the same file. ``new``: the file must not exist yet. It appears
    with its first piece, so that nobody finds it empty.
    """

    def __init__(self, path: Path, new: bool = False) -> None:
        self.path = path
        self._partial = _partial(path) if new else None
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_EXCL if new else 0)
        with writing(path):
            self._new = not path.exists()
            if new and not self._new:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            self._fd = os.open(self._partial or path, flags, 0o666)

    def fileno(self) -> int:
        """The descriptor, e.g. for a lock."""
        return self._fd

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._fd < 0

    def append(self, piece: bytes, leave_room: bool = False) -> None:
        """Write ``piece``. After ``NotWritten`` the file is as before; a new one is gone again.

        ``leave_room``: also where it would take what is left of the disk for smaller files, an
        eighth of it, at most 8 MiB.
        """
        with writing(self.path):
            begin, rest = os.fstat(self._fd).st_size, memoryview(piece)
            try:
                if leave_room:
                    self._check_room(len(piece))
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
                if self._partial is not None:
                    self._partial.rename(self.path)
                    self._partial = None
            except BaseException:
                self._take_back(begin, len(piece) - len(rest))
                raise

    def _check_room(self, size_bytes: int) -> None:
        disk = os.fstatvfs(self._fd)
        kept_bytes = min(_MOST_KEPT_BYTES, disk.f_blocks * disk.f_frsize // _KEPT_SHARE)
        if disk.f_bavail * disk.f_frsize < kept_bytes + size_bytes:
            text = f"{os.strerror(errno.ENOSPC)} but {kept_bytes // 1024} KiB for results"
            raise OSError(errno.ENOSPC, text)

    def _take_back(self, begin: int, size_bytes: int) -> None:
        with suppress(OSError):
            if os.fstat(self._fd).st_size == begin + size_bytes:  # nobody else has appended
                os.ftruncate(self._fd, begin)
            if self._new and begin == 0:
                (self._partial or self.path).unlink()

    def close(self) -> None:
        """Close the file; again: nothing happens."""
        if not self.closed:
            fd, self._fd = self._fd, -1
            with writing(self.path):  # a network file system may say only now that it is full
                if self._partial is not None:
                    self._partial.unlink(missing_ok=True)
                os.close(fd)


@contextmanager
def kept_room(directory: Path, size_bytes: int) -> Iterator[None]:
    """Keep so much of the disk free, if it can be, for what goes to ``directory`` after the block.

    It is held by a file without a name, which is gone however this process ends.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context(tempfile.TemporaryFile(dir=directory))
            os.posix_fallocate(file.fileno(), 0, size_bytes)
        yield


def make_directory(path: Path) -> None:
    """Make ``path`` and its parents, where they do not exist."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the operating system says against writing to ``path`` in the block is ``NotWritten``."""
    try:
        yield
    except OSError as error:
        raise NotWritten(f"{path}: cannot be written: {error.strerror or error}") from None


class OneWarning:
    """Files that a job can do without: the first that cannot be written is told, none is an error.

    ``then`` says what follows from it.
    """

    def __init__(self, then: str) -> None:
        self._then = then
        self._told = False

    @contextmanager
    def instead(self) -> Iterator[None]:
        """``NotWritten`` in the block ends the block, and nothing more."""
        try:
            yield
        except NotWritten as error:
            if not self._told:
                self._told = True
                warn(f"{error}; {self._then}")


def _is_device(path: Path) -> bool:
    """Whether nothing can take ``path``'s place: a device, a pipe, a descriptor as a file."""
    place = os.path.realpath(path.parent)
    return path.exists() and (
        not path.is_file() or place == "/dev" or place.startswith(("/dev/fd", "/proc/"))
    )
