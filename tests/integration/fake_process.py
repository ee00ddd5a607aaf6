"""The tools that concern the process: its end, its descriptors, its children, what it can see and take."""

import os
import resource
import signal
import sys
import time

from fake_wire import STATE, dump, opened, option, structured, text, tool, write_all

@tool
def exit_(call):
    os._exit(call.get("code", 1))


@tool
def signal_(call):
    kill_self(call.get("signal", "KILL"))


def kill_self(name):
    number = getattr(signal, "SIG" + name)
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


@tool
def close(call):
    os.close(call.get("fd", 1))
    if call.get("fd", 1) == 0:
        STATE.reading = False


@tool
def stop_reading(call):
    STATE.reading = False
    call.answer(text("stopped"))
    if call.get("until"):
        yield opened(call.get("until"))
        STATE.reading = True


def spawn_grandchild(kind, seconds=3600):
    code = "import os,signal,time\n"
    if kind == "term":
        code += "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    if kind == "chatter":
        # Ends when nobody reads any more: to Python a broken pipe is an error.
        line = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"on"}}\n'
        code += f"while True: os.write(1, {line!r}); time.sleep(0.002)\n"
    words = [sys.executable, "-I", "-S", "-c", f"{code}time.sleep({seconds})", option("mark", "grandchild")]
    pid = os.fork()
    if pid == 0:
        if kind in ("setsid", "chatter"):
            os.setsid()
            if os.fork():
                os._exit(0)
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        if kind not in ("stdout", "exit", "chatter"):
            os.dup2(null, 1)
        os.dup2(null, 2)
        os.execv(words[0], words)
    if kind in ("setsid", "chatter"):
        os.waitpid(pid, 0)
    return pid


@tool
def spawn(call):
    kind = call.get("kind", "group")
    pid = spawn_grandchild(kind, call.get("seconds", 3600))
    if kind == "exit":
        os._exit(0)
    return text(str(pid))


@tool
def stderr(call):
    write_all(2, call.get("text", "").encode())
    left = call.get("bytes", 0)
    while left > 0:
        write_all(2, b"x" * min(left, 1 << 20))
        left -= 1 << 20
    write_all(2, b"\n" if call.get("newline", True) else b"")
    return text("written")


def attempt(read):
    try:
        return read()
    except OSError as refused:
        return f"refused: {refused.strerror}"


def file_text(path):
    with open(path, "rb") as file:
        return file.read(1 << 20).decode("utf-8", "replace")


@tool
def dump_(call):
    proc = f"/proc/{call.get('pid', os.getpid())}"
    links = lambda: {fd: attempt(lambda: os.readlink(f"{proc}/fd/{fd}")) for fd in os.listdir(f"{proc}/fd")}
    limits = {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name)) for name in ("CORE", "NOFILE", "NPROC")}
    umask = os.umask(0)
    os.umask(umask)
    return structured(dump({
        "env": dict(os.environ), "argv": sys.argv, "cwd": attempt(os.getcwd), "umask": umask, "limits": limits,
        "pid": os.getpid(), "ppid": os.getppid(), "pgid": os.getpgid(0), "sid": os.getsid(0), "uid": os.getuid(),
        "blocked_signals": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "proc": {
            "environ": attempt(lambda: file_text(f"{proc}/environ")),
            "cmdline": attempt(lambda: file_text(f"{proc}/cmdline")),
            "status": attempt(lambda: file_text(f"{proc}/status")),
            "fd": attempt(links), "cwd": attempt(lambda: os.readlink(f"{proc}/cwd")),
        },
    }))


KEPT = []


@tool
def consume(call):
    kind, amount, refused = call.get("kind"), call.get("amount"), None
    try:
        if kind == "memory":
            KEPT.append(b"x" * amount)
        elif kind == "cpu":
            end = time.process_time() + amount
            while time.process_time() < end:
                pass
        else:
            one = (lambda: os.open("/dev/null", os.O_RDONLY)) if kind == "files" else (lambda: spawn_grandchild("group"))
            KEPT.extend(one() for _ in range(amount))
    except (OSError, MemoryError) as error:
        refused = str(error)
    return text("taken" if refused is None else f"refused: {refused}")
