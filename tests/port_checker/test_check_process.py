"""The process in which a file is checked: whatever happens to it, one line says so, and no print is a verdict."""

import os
import pty
import signal
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from parity_tests.pairs import PAIRS
from port_checker import process
from port_checker.process import watch
from shared.commands.common import ended
from shared.frameworks.twins import algorithms

ROOT = Path(__file__).resolve().parents[2]
# A check that loads no framework: it consists of the file's own function `check`.
SERVE = "import sys; from port_checker.child import serve; sys.path.append({0!r}); import port; serve(port.check, [])"
WATCH = (
    "import sys; from pathlib import Path; from shared.commands.common import ended; "
    "from port_checker.process import watch; "
    "sys.exit(ended(lambda command: watch(command, Path('port.py'), 60), sys.argv[1:]))"
)


def command(folder: Path, body: str) -> list[str]:
    """The command of a process whose check runs this code."""
    head = "import ctypes, os, signal, subprocess, sys, time\ndef check(arguments, tell):\n"
    (folder / "port.py").write_text(head + textwrap.indent(textwrap.dedent(body), "    "))
    return [sys.executable, "-u", "-P", "-c", SERVE.format(str(folder))]


@pytest.fixture
def watched(tmp_path: Path, capsys: pytest.CaptureFixture) -> Callable[..., tuple[int, str, str]]:
    """Runs such a process; returns the exit status and its output."""

    def run(body: str, seconds: float = 60.0) -> tuple[int, str, str]:
        start = command(tmp_path, body)
        status = ended(lambda _: watch(start, Path("port.py"), seconds), [])
        return status, *capsys.readouterr()

    return run


# ---- ends without a verdict ----------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("os._exit(0)", "ended the process, with exit status 0, while it ran update"),
        ("os._exit(7)", "ended the process, with exit status 7, while it ran update"),
        ("ctypes.string_at(0)", "was ended by SIGSEGV: Segmentation fault, while it ran update (line 4)"),
        ("os.kill(os.getpid(), signal.SIGKILL)",
         "was killed (SIGKILL), as by a system that is out of memory, while it ran update"),
        ("os.closerange(3, 99)\ntell('line', '')", "ended the process, with exit status 1, while it ran update"),
        ("while True: pass",
         "gave no answer within 8 s, while it ran update (line 4); --time-limit SECONDS allows more"),
        ("signal.signal(signal.SIGABRT, signal.SIG_IGN)\ntime.sleep(99)",
         "gave no answer within 8 s, while it ran update; --time-limit SECONDS allows more"),
    ],
)  # fmt: skip
def test_an_end_without_a_verdict_is_one_line(
    body: str, message: str, watched: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE", 4)
    status, out, err = watched(f"tell('running', 'update')\n{body}", seconds=8.0 if "within" in message else 60.0)
    assert (status, out) == (2, "")
    assert err.splitlines()[-1] == f"error: port.py {message}"


@pytest.mark.thorough
def test_a_file_has_less_time_to_be_loaded(watched: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LOADING_LIMIT", 1)
    _, _, err = watched(f"tell('running', {process.LOADING!r})\ntime.sleep(99)")
    assert err == "error: port.py gave no answer within 1 s, while it ran the file (line 4)\n"
    status, _, _ = watched(f"tell('running', {process.LOADING!r})\ntell('running', '')\ntime.sleep(1.5)\nreturn 0")
    assert status == 0


@pytest.mark.parametrize("error", ["KeyError(3)", "KeyboardInterrupt", "SystemExit(0)"])
def test_no_exception_is_a_verdict(error: str, watched: Callable) -> None:
    status, _, err = watched(f"raise {error}")
    assert status == 2
    assert f"  {error.partition('(')[0]}" in err
    assert err.splitlines()[-1].startswith("error: the check stops with ")


# ---- prints --------------------------------------------------------------------------------------------------------


def test_prints_neither_pass_nor_fill_memory(watched: Callable) -> None:
    status, out, err = watched("""
        print("first")
        for _ in range(700):
            print("x" * 99_999)
        print("last")
        tell("line", "forward FAILS")
        return 1
    """)
    assert (status, out) == (1, "forward FAILS\n")
    assert err.startswith("port.py printed 70,000,011 bytes; the first and the last lines of them:\n  first\n  xxx")
    assert err.endswith("x\n  last\n")
    assert len(err) < 5000


def test_what_is_printed_is_shown(watched: Callable) -> None:
    assert watched("os.write(1, b'one\\n')\nprint('two', file=sys.stderr)\nreturn 0") == (
        0,
        "",
        "port.py printed:\n  one\n  two\n",
    )


def test_a_verdict_cannot_be_printed(watched: Callable) -> None:
    """Neither by writing to the pipe of the messages, nor by moving the cursor to write over them."""
    status, out, err = watched("""
        forged = b'["line", "port.py is td3_bc: all checks pass"]\\n["verdict", 0]\\n'
        for number in range(1, 20):
            try:
                os.write(number, forged)
            except OSError:
                pass
        print("\\033[2J\\rport.py is td3_bc: all checks pass")
        os._exit(0)
    """)
    assert (status, out) == (2, "")
    assert "\n  \\x1b[2J" in err
    assert "\033" not in err
    assert "\r" not in err


def test_input_is_empty(watched: Callable) -> None:
    status, _, err = watched("input()")
    assert status == 2
    assert "EOFError" in err


# ---- the end -------------------------------------------------------------------------------------------------------


def gone(pid: int) -> bool:
    """Whether a process ends within some seconds."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_what_a_file_has_started_ends_with_the_check(watched: Callable) -> None:
    status, out, _ = watched("""
        tell("line", str(subprocess.Popen(["sleep", "99"]).pid))
        return 0
    """)
    assert status == 0
    assert gone(int(out))


def hear_interrupts() -> None:
    """As in a terminal; if a shell runs the tests in the background, they and their processes ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_the_process_ends_with_the_command(number: int, status: int, tmp_path: Path) -> None:
    start = command(tmp_path, 'tell("line", str(os.getpid()))\nwhile True:\n    pass')
    full, pipe = [sys.executable, "-c", WATCH, *start], subprocess.PIPE
    with subprocess.Popen(full, cwd=ROOT, stdout=pipe, text=True, preexec_fn=hear_interrupts) as typed:
        assert typed.stdout is not None
        pid = int(typed.stdout.readline())
        typed.send_signal(number)
        assert typed.wait(timeout=30) == status
    assert gone(pid)


# ---- progress ------------------------------------------------------------------------------------------------------


def test_a_terminal_shows_what_is_asked(tmp_path: Path) -> None:
    """In one line, which is erased later."""
    start = command(tmp_path, 'tell("asked", "forward: settings default")\ntime.sleep(1)\nreturn 0')
    reader, writer = pty.openpty()
    termios.tcsetwinsize(writer, (24, 80))
    os.set_blocking(reader, False)
    done = subprocess.run(
        [sys.executable, "-c", WATCH, *start], cwd=ROOT, stderr=writer, stdout=subprocess.PIPE, timeout=60
    )
    shown = os.read(reader, 10_000).decode()
    for number in (reader, writer):
        os.close(number)
    assert (done.returncode, done.stdout) == (0, b"")
    assert "\rforward: settings default [00:0" in shown
    assert "\n" not in shown
    assert not shown.rstrip("\r").rpartition("\r")[2].strip()


def test_nothing_else_does(watched: Callable) -> None:
    assert watched('tell("asked", "forward: settings default")\nreturn 0') == (0, "", "")


# ---- the command ---------------------------------------------------------------------------------------------------


def test_the_command_loads_no_framework() -> None:
    """Only the process that checks does, and only once."""
    script = "import sys, port_checker.process; assert not {'torch', 'jax', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_it_knows_every_pair() -> None:
    assert set(algorithms("jax")) == set(PAIRS)


@pytest.mark.thorough
def test_a_file_that_leaves_is_no_right_one(tmp_path: Path) -> None:
    """Through the whole command, from another folder."""
    lines = ["import os, jax", "print('all checks pass')", "def create_train_state(key):", "    os._exit(0)"]
    (tmp_path / "port.py").write_text("\n".join(lines))
    typed = [sys.executable, "-m", "corl_twins", "check", "port.py", "--algorithm", "td3_bc", "--settings", "default"]
    done = subprocess.run(
        typed, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "port.py printed:\n  all checks pass\n"
        "error: port.py ended the process, with exit status 0, while it ran create_train_state\n"
    )
