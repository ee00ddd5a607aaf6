"""What every part of the fake child uses: its options, the messages as raw bytes, its output and state."""

import codecs
import json
import os
import re
import select
import sys
import time

FLAGS = {"crlf", "bom", "init-silent", "strict", "ping-silent", "ignore-eof", "ignore-term", "stop-reading", "tasks"}
LISTS = {"banner", "noise", "stderr", "after-init", "after-initialized"}
TOKEN = re.compile(rb'"(?:[^"\\]+|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.S)
TOOLS = {}


def options(words):
    found = {name: [] for name in LISTS}
    words = iter(words)
    for word in words:
        name = word[2:]
        if name in FLAGS:
            found[name] = True
        elif name in LISTS:
            found[name].append(next(words))
        else:
            found[name] = next(words)
    return found


OPTIONS = options(sys.argv[1:])


def option(name, default=None):
    return OPTIONS.get(name, default)


def fields(raw):
    """The members of a JSON object, each value as it was spelled."""
    found, depth, key, begin, end = {}, 0, None, None, None
    for token in TOKEN.finditer(raw):
        first = raw[token.start()]
        if depth == 1:
            if first in b",}":
                if begin is not None:
                    found[key] = raw[begin:end]
                key = begin = None
            elif key is None:
                key = json.loads(token.group())
                continue
            elif begin is None and first == 0x3A:
                continue
            elif begin is None:
                begin = token.start()
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
        end = token.end()
    return found


def dump(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def escaped(text):
    """The bytes an option's text stands for."""
    return codecs.escape_decode(text.encode())[0]


def write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]


class Output:
    """Stdout, with the faults that concern every line."""

    def __init__(self):
        self.first = True

    def raw(self, data):
        if option("trickle") is None:
            return write_all(1, data)
        for index in range(len(data)):
            os.write(1, data[index:index + 1])
            if pause := float(option("trickle")):
                time.sleep(pause)

    def line(self, data):
        mark = b"\xef\xbb\xbf" if option("bom") and self.first else b""
        self.first = False
        self.raw(mark + data + (b"\r\n\r\n" if option("crlf") else b"\n"))

    def answer(self, id, member, value):
        for noise in OPTIONS["noise"]:
            self.raw(escaped(noise))
        self.line(b'{"jsonrpc":"2.0","id":%s,"%s":%s}' % (id, member, value))

    def notify(self, method, params, count=1):
        line = b'{"jsonrpc":"2.0","method":%s,"params":%s}' % (dump(method), params)
        if count > 1 and not option("crlf"):
            return self.raw((line + b"\n") * count)
        for _ in range(count):
            self.line(line)


OUT = Output()


def refuse(id, code, message, data=None):
    error = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    OUT.answer(id, b"error", dump(error))


class State:
    """What the child knows, for conditions and for the tool `state`."""

    def __init__(self):
        self.read = bytearray()
        self.initialize, self.initializes, self.initialized = b"null", 0, 0
        self.level, self.subscriptions = None, set()
        self.cancelled, self.stray, self.answers = [], [], {}
        self.gates, self.held, self.reversed = set(), {}, []
        self.waiting = []  # (condition, generator, call)
        self.deadlines, self.pipes = [], {}
        self.reading = True


STATE = State()


class Call:
    """A tools/call on its way."""

    def __init__(self, id, params):
        members = fields(params)
        self.id = id
        self.name = json.loads(members.get("name", b'""'))
        self.raw = members.get("arguments", b"{}")
        self.token = fields(members.get("_meta", b"{}")).get("progressToken")
        self.given = fields(self.raw)

    def get(self, name, default=None):
        return json.loads(self.given[name]) if name in self.given else default

    def answer(self, result):
        OUT.answer(self.id, b"result", result)

    def progress(self, value, total, token=None, size=0):
        token = token or self.token
        if token is not None:
            message = b',"message":"%s"' % (b"x" * size) if size else b""
            params = b'{"progressToken":%s,"progress":%s,"total":%d%s}' % (token, dump(value), total, message)
            OUT.notify("notifications/progress", params)


def text(value):
    return b'{"content":[{"type":"text","text":%s}]}' % dump(value)


def structured(raw):
    """A result that holds raw JSON twice: as text, and as it is."""
    shown = dump(raw.decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode())
    return b'{"content":[{"type":"text","text":%s}],"structuredContent":%s}' % (shown, raw)


def tool(function):
    TOOLS[function.__name__.rstrip("_")] = function
    return function


# Conditions: a tool yields one and goes on when it holds.


def after(seconds):
    deadline = time.monotonic() + seconds
    STATE.deadlines.append(deadline)
    return lambda: time.monotonic() >= deadline


def is_readable(fd):
    return bool(select.select([fd], [], [], 0)[0])


def opened(path):
    """A named pipe that somebody has written to; the byte is left there for all who wait."""
    fd = STATE.pipes.setdefault(path, None)
    if fd is None:
        STATE.pipes[path] = fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    return lambda: is_readable(fd)
