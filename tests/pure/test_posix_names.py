"""No module needs what only POSIX systems have, by its source: names are asked for before use."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pyselfspec"
MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty", "_posixsubprocess"}
NAMES = {
    "os": {
        *("chroot", "fchmod", "fchown", "fork", "forkpty", "getegid", "geteuid", "getgid"),
        *("getgroups", "getloadavg", "getpgid", "getpgrp", "getpriority", "getuid", "initgroups"),
        *("killpg", "lchown", "lockf", "mkfifo", "mknod", "nice", "openpty", "posix_fadvise"),
        *("posix_fallocate", "pread", "pwrite", "readv", "register_at_fork", "sched_getaffinity"),
        *("sched_setaffinity", "setpgid", "setpriority", "setsid", "setuid", "statvfs", "sync"),
        *("sysconf", "tcgetpgrp", "tcsetpgrp", "ttyname", "uname", "wait", "wait3", "wait4"),
        *("waitid", "WIFSIGNALED", "WNOHANG", "writev", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW"),
        *("O_NONBLOCK", "O_SYNC"),
    },
    "signal": {
        *("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP"),
        *("SIGTSTP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "alarm", "pause", "pthread_kill"),
        *("pthread_sigmask", "setitimer", "siginterrupt", "sigpending", "sigwait", "ITIMER_REAL"),
    },
    "socket": {"AF_UNIX", "SO_REUSEPORT"},
    "time": {"tzset", "pthread_getcpuclockid"},
    "select": {"select", "poll", "epoll", "kqueue"},  # of anything but sockets
}
# (module, names) that are only reached where they exist, each with its reason
ALLOWED = {
    ("cli/_chat/typed_ahead.py", "termios"),  # in the function, which does without
    ("cli/_chat/typed_ahead.py", "os.tcgetpgrp"),  # these: after termios was found
    ("cli/_chat/typed_ahead.py", "os.getpgrp"),
    ("cli/_chat/typed_ahead.py", "signal.SIGCONT"),
    ("cli/_chat/typed_ahead.py", "select.select"),
    ("util/memory.py", "resource"),  # in the function, which does without
    ("util/machine.py", "os.sched_getaffinity"),  # these: after hasattr
    ("util/machine.py", "os.getloadavg"),
    ("runtime/ffi/load.py", "os.register_at_fork"),
    ("templates/rendering.py", "os.register_at_fork"),
    ("templates/sandbox.py", "resource"),  # in the function, which does without
}


def used(tree: ast.AST) -> Iterator[str]:
    """Names of MODULES that are imported, and attributes of NAMES that are read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            if node.module in MODULES:
                yield str(node.module)
            for each in node.names:
                if each.name in NAMES.get(str(node.module), ()):
                    yield f"{node.module}.{each.name}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in NAMES.get(node.value.id, ()):
                yield f"{node.value.id}.{node.attr}"


def in_package() -> set[tuple[str, str]]:
    return {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in PACKAGE.rglob("*.py")
        if "converter" not in path.parts
        for name in used(ast.parse(path.read_text(encoding="utf-8")))
    }


def test_names_of_posix_are_used_only_where_they_exist() -> None:
    assert in_package() == ALLOWED


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import os\nos.fork()", ["os.fork"]),
        ("from os import killpg, path", ["os.killpg"]),
        ("import fcntl, sys", ["fcntl"]),
        ("from termios import tcgetattr", ["termios"]),
        ("import signal\nsignal.SIGINT, signal.SIGHUP", ["signal.SIGHUP"]),
        ("getattr(signal, 'SIGHUP', None)", []),
        ("from .resource import x", []),
    ],
)
def test_the_search_finds_what_it_should(source: str, names: list[str]) -> None:
    assert [*used(ast.parse(source))] == names


def test_no_module_imports_them_at_its_top() -> None:
    for file, name in sorted(ALLOWED):
        if "." not in name:
            tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
            assert name not in [*used(ast.Module([*_top(tree)], []))], file


def _top(tree: ast.Module) -> Iterator[ast.stmt]:
    return (node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))


def test_text_files_are_read_and_written_as_utf_8() -> None:
    """Another system's own encoding is not ours."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _opens_text(node):
                named = any(each.arg == "encoding" for each in node.keywords)
                if not (named or ast.unparse(node).find(".read_text('utf-8'") >= 0):
                    found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert not [each for each in found if not each.startswith("converter")]


def _opens_text(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else None
    if name in ("read_text", "write_text"):
        return not isinstance(call.func.value, ast.Name) or call.func.value.id != "formatter"  # type: ignore[attr-defined]
    return any(
        each.arg in ("text", "universal_newlines") and isinstance(each.value, ast.Constant)
        for each in call.keywords
        if each.arg and name in ("run", "Popen", "check_output")
    )
