#!/usr/bin/env python3
r"""A scripted MCP stdio server that does what real servers do wrong. Standard library only.

One thread and one select loop: a tool that waits is a generator that yields a condition, looked at
again after every line, timer or gate, so holding and releasing calls needs no sleep. Bytes of the
client are sliced from its line and written back as they came, never re-serialised.

Options (argv)         what the child does
---------------------  ---------------------------------------------------------------------------
--banner TEXT          writes TEXT first of all; repeatable; `\n`, `\xff` and the like are escapes
--noise TEXT           writes TEXT before every answer; repeatable; escapes as above
--crlf                 ends its lines with CR LF, and puts an empty such line after each
--bom                  begins its first line with a byte order mark
--trickle SECONDS      writes one byte at a time, pausing so long after each (may be 0)
--stderr TEXT          writes TEXT and a newline to stderr first of all; repeatable
--exit CODE            exits at once               --exit-after SECONDS   exits with 1 so long after start
--exit-init CODE       exits when it reads initialize
--kill-init SIGNAL     kills itself when it reads initialize
--wait-for PATH        opens the named pipe PATH before anything else: a slow start
--wait-init PATH       reads initialize, then waits for the named pipe PATH before it answers
--init-silent          never answers initialize   --init-error CODE      answers it with that error
--version V            answers initialize with version V instead of the one asked for
--init-merge JSON      adds these members to the InitializeResult (capabilities, instructions, any)
--init-raw JSON        this text is the InitializeResult, byte for byte
--after-init TEXT      writes this line right after the InitializeResult; repeatable
--after-initialized T  writes this line when `initialized` comes; repeatable
--strict               answers -32602 to every request but ping until `initialized` came
--unknown WHAT         on an unknown method: exit, ignore, or an error code (else -32601)
--ping-silent          never answers ping
--tools-raw JSON       this text is the result of tools/list, byte for byte
--tasks                offers tasks: a call with `task` becomes one, which tells when it is over; `task-1`,
                       `task-2`, … in every process
--task-id ID           every task has that id
--uris-file PATH       the resources are those that file names, one a line, if it exists
--list-file PATH       `tools/list` is that file's text, if it exists; `error` in it: an error
--page-size N          lists tools in pages of N, with opaque cursors; -32602 for a cursor it never gave
--ignore-eof           lives on when stdin ends    --ignore-term         ignores SIGTERM
--stop-reading         reads nothing after `initialized`
--grandchild KIND      starts one at once, see the tool `spawn`
--record DIRECTORY     appends every byte it reads to DIRECTORY/PID
--mark WORD            nothing: a word to find this process by, given to all it starts

Tool                   arguments, and what it does
---------------------  ---------------------------------------------------------------------------
echo                   any: text and structuredContent are the arguments, byte for byte
result, error          {"result"|"error": any}: that is the answer's member, byte for byte
bytes                  {"size"}: a result whose text has that many bytes
raw                    {"text", "encoding": "utf-8"|"latin-1", "answer": false}: writes text as it is;
                       $ID is the id as the child sees it, $TOKEN its progress token; then answers or not
line                   {"size", "newline": true, "good": false}: one line of that many bytes; `good`: the
                       answer first, in the same write. Answers no further
bomb                   {"kind", "size"}: an answer that is depth, keys, number, duplicate-id,
                       duplicate-result, both, neither or batch
torn                   {}: writes half an answer and exits
transcript             {"from": 0}: hex of everything read so far
state                  {}: initialize and its count, initialized count, level, subscriptions,
                       cancelled ids, stray answers, pid
hold, release          {"gate"}: waits for that gate; opens it, for calls to come too
await_held             {"gate", "count"}: answers when so many calls wait at that gate
wait                   {"path"}: waits for that named pipe, while other calls go on
sleep                  {"seconds"}: waits so long
delay                  {"seconds", …}: waits so long, then as echo
silent                 {}: never answers
reverse                {"of"}: waits until so many of these calls are there; answers the last one first
await_cancelled        {"count": 1}: answers when so many cancellations came, with the raw ids
late                   {}: answers only after it was cancelled
twice                  {"times": 2}: the same answer so often
answer_as              {"id": any, "then": true}: an answer under that id, byte for byte; then its own
progress               {"count": 3, "late": 0, "pace": 0, "token": any, "values": […], "bytes": 0, "gate"}:
                       so many progress notifications, one every `pace` seconds, each so much longer;
                       `late` more after the answer; `token` instead of the client's; `gate`: waits for it
                       before the answer
log                    {"level": "info", "count": 1, "bytes": 0}: log messages, each so much longer
notify                 {"method", "params", "count": 1}: a notification, params byte for byte
touch                  {"uri"}: resources/updated, only if subscribed to
ask                    {"method", "params", "id": "ask", "wait": true, "cancel": false}: its own request,
                       id and params byte for byte; answers with the raw reply; `cancel`: cancels it at once
batch                  {"count": 2}: progress notifications and the answer as one array (2025-03-26)
exit, signal           {"code"} {"signal"}: ends in the middle of the call
close                  {"fd": 1}: closes stdin or stdout and lives on, without an answer
stop_reading           {"until": PATH}: reads no more, for ever or until that named pipe opens; answers
spawn                  {"kind", "seconds": 3600}: a grandchild: group, stdout (holds stdout), setsid, term
                       (ignores TERM), exit (group and stdout, then the child exits), chatter (setsid, and
                       writes log messages to stdout without end); answers its pid
stderr                 {"bytes", "newline": true, "text"}: writes so much, or text, to stderr first
dump                   {"pid": own}: env, argv, cwd, descriptors, ids, signals, limits, and /proc of that pid
consume                {"kind": memory|cpu|files|processes, "amount"}: takes so much, then answers

Also: tools, resources and prompts lists; resources/read and subscribe (-32002 for what is not
there); logging/setLevel; completion; a second initialize gets -32600; `vendor/…` requests get their
params back, byte for byte.
"""

import json
import os
import re
import select
import signal
import sys
import time

# Isolated mode (-I) leaves the script's own directory out.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import fake_tasks  # noqa: E402
import fake_tools  # noqa: E402,F401  registers its tools
from fake_process import kill_self, spawn_grandchild  # noqa: E402
from fake_wire import (  # noqa: E402
    OPTIONS, OUT, STATE, TOOLS, Call, dump, escaped, fields, is_readable, option, refuse, write_all,
)

CAPABILITIES = {
    "tools": {"listChanged": True}, "resources": {"subscribe": True, "listChanged": True},
    "prompts": {"listChanged": True}, "logging": {}, "completions": {},
}
URIS = ["fake://a", "fake://b"]


def list_tools(params):
    if os.path.exists(given := option("list-file", "")):
        with open(given, "rb") as file:
            return file.read()
    names = sorted(TOOLS)
    schema = {"type": "object"}
    tools = [{"name": name, "inputSchema": schema} for name in names]
    size = int(option("page-size", len(tools)))
    cursor = json.loads(params.get("cursor", b'"page-0"'))
    if not re.fullmatch(r"page-\d+", cursor) or (start := int(cursor[5:])) >= len(tools):
        return None
    page = {"tools": tools[start:start + size]}
    if start + size < len(tools):
        page["nextCursor"] = f"page-{start + size}"
    return dump(page)


def uris():
    if not os.path.exists(given := option("uris-file", "")):
        return URIS
    with open(given, encoding="utf-8") as file:
        return file.read().splitlines()


def resource_named(params):
    uri = json.loads(params.get("uri", b'""'))
    return uri if uri in uris() else None


def call_tool(id, params):
    if json.loads(fields(params).get("name", b'""')) not in TOOLS:
        return refuse(id, -32602, "unknown tool")
    call = (fake_tasks.Task if fake_tasks.asks_for_task(params) else Call)(id, params)
    made = TOOLS[call.name](call)
    if hasattr(made, "send"):
        step(made, call)
    elif made is not None:
        call.answer(made)


def step(generator, call):
    try:
        STATE.waiting.append((next(generator), generator, call))
    except StopIteration as stop:
        if stop.value is not None:
            call.answer(stop.value)


def initialize(id, params):
    STATE.initializes += 1
    if STATE.initializes > 1:
        return refuse(id, -32600, "initialized already")
    STATE.initialize = params
    if option("exit-init"):
        os._exit(int(option("exit-init")))
    if option("kill-init"):
        kill_self(option("kill-init"))
    if option("init-silent"):
        return None
    if option("wait-init"):
        os.close(os.open(option("wait-init"), os.O_RDONLY))
    if option("init-error"):
        return refuse(id, int(option("init-error")), "no")
    asked = json.loads(fields(params).get("protocolVersion", b'""'))
    answer = {
        "protocolVersion": option("version", asked), "capabilities": CAPABILITIES,
        "serverInfo": {"name": "fake-child", "version": "1"},
    }
    if option("tasks"):
        answer["capabilities"] = {**CAPABILITIES, "tasks": fake_tasks.CAPABILITY}
    answer.update(json.loads(option("init-merge", "{}")))
    OUT.answer(id, b"result", option("init-raw").encode() if option("init-raw") else dump(answer))
    for extra in OPTIONS["after-init"]:
        OUT.line(extra.encode())


def request(id, method, raw):
    params = fields(raw)
    answer = lambda value: OUT.answer(id, b"result", value)
    if method == "initialize":
        return initialize(id, raw)
    if method == "ping":
        return None if option("ping-silent") else answer(b"{}")
    if option("strict") and not STATE.initialized:
        return refuse(id, -32602, "not initialized")
    if method == "tools/call":
        return call_tool(id, raw)
    if method == "tools/list" and option("tools-raw"):
        return answer(option("tools-raw").encode())
    if method == "tools/list":
        page = list_tools(params)
        if page == b"error":
            return refuse(id, -32603, "no list")
        return refuse(id, -32602, "unknown cursor") if page is None else answer(page)
    if method.startswith("tasks/") and option("tasks"):
        return fake_tasks.request(id, method[6:], params)
    if method == "resources/list":
        return answer(dump({"resources": [{"uri": uri, "name": uri[-1]} for uri in uris()]}))
    if method == "resources/templates/list":
        return answer(b'{"resourceTemplates":[{"uriTemplate":"fake://{x}","name":"x"}]}')
    if method in ("resources/read", "resources/subscribe", "resources/unsubscribe"):
        uri = resource_named(params)
        if uri is None:
            return refuse(id, -32002, "no such resource", {"uri": json.loads(params.get("uri", b"null"))})
        if method == "resources/read":
            return answer(dump({"contents": [{"uri": uri, "text": uri}]}))
        (STATE.subscriptions.add if method == "resources/subscribe" else STATE.subscriptions.discard)(uri)
        return answer(b"{}")
    if method == "prompts/list":
        return answer(b'{"prompts":[{"name":"p"}]}')
    if method == "prompts/get":
        return answer(b'{"messages":[{"role":"user","content":{"type":"text","text":"p"}}]}')
    if method == "completion/complete":
        return answer(b'{"completion":{"values":["a"]}}')
    if method == "logging/setLevel":
        STATE.level = json.loads(params.get("level", b"null"))
        return answer(b"{}")
    if method.startswith("vendor/"):
        return answer(raw)
    return unknown(id)


def unknown(id):
    what = option("unknown", "-32601")
    if what == "exit":
        os._exit(1)
    if what != "ignore":
        refuse(id, int(what), "unknown method")


def notification(method, params):
    if method == "notifications/cancelled":
        STATE.cancelled.append(fields(params).get("requestId", b"null"))
    elif method == "notifications/initialized":
        STATE.initialized += 1
        STATE.reading = not option("stop-reading")
        for extra in OPTIONS["after-initialized"]:
            OUT.line(extra.encode())


def receive(line):
    if not line.strip():
        return
    if line.lstrip().startswith(b"["):
        for message in json.loads(line):
            receive(dump(message))
        return
    message = fields(line)
    id, params = message.get("id"), message.get("params", b"{}")
    if "method" in message:
        method = json.loads(message["method"])
        notification(method, params) if id is None else request(id, method, params)
    elif id in STATE.answers and STATE.answers[id] is None:
        STATE.answers[id] = line
    else:
        STATE.stray.append(line)


def run_waiting():
    """Goes on with every tool whose condition holds now, until none is left."""
    again = True
    while again:
        again = False
        waiting, STATE.waiting = STATE.waiting, []
        for entry in waiting:
            if entry[0]():
                again = True
                step(entry[1], entry[2])
            else:
                STATE.waiting.append(entry)


def run_until_all_wait():
    """Goes on until every tool waits; the pipes whose opening must wake them. One that was opened stays readable, and
    must not wake anybody again, but one that was opened after it was looked at must."""
    closed = unopened_pipes()
    while True:
        run_waiting()
        before, closed = closed, unopened_pipes()
        if closed == before:
            return closed


def unopened_pipes():
    return [fd for fd in STATE.pipes.values() if not is_readable(fd)]


def receive_all(lines):
    """Whether there were any to receive."""
    some = False
    while STATE.reading and (line := lines.take()) is not None:
        some = True
        receive(line)
        run_waiting()
    return some


def serve():
    lines, open_ = Lines(), True
    while True:
        looked_at = time.monotonic()
        pipes = run_until_all_wait()
        if receive_all(lines):
            continue
        # One that passed after `looked_at` may have passed after it was looked at, too.
        STATE.deadlines = [deadline for deadline in STATE.deadlines if deadline >= looked_at]
        timeout = max(0, min(STATE.deadlines) - time.monotonic()) if STATE.deadlines else None
        stdin = [0] if open_ and STATE.reading else []
        if 0 in select.select(stdin + pipes, [], [], timeout)[0]:
            data = os.read(0, 65536)
            open_ = bool(data)
            if not open_ and not option("ignore-eof"):
                os._exit(0)
            STATE.read += data
            record(data)
            lines.add(data)


class Lines:
    """Bytes read, taken line by line; a long line is searched only once."""

    def __init__(self):
        self.buffer, self.searched = bytearray(), 0

    def add(self, data):
        self.buffer += data

    def take(self):
        end = self.buffer.find(b"\n", self.searched)
        if end < 0:
            self.searched = len(self.buffer)
            return None
        line = bytes(self.buffer[:end])
        del self.buffer[:end + 1]
        self.searched = 0
        return line


def record(data):
    if option("record"):
        fd = os.open(os.path.join(option("record"), str(os.getpid())), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        write_all(fd, data)
        os.close(fd)


def main():
    if option("ignore-term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for words in OPTIONS["stderr"]:
        write_all(2, words.encode() + b"\n")
    if option("exit"):
        os._exit(int(option("exit")))
    if option("wait-for"):
        os.close(os.open(option("wait-for"), os.O_RDONLY))
    for banner in OPTIONS["banner"]:
        OUT.raw(escaped(banner))
    if option("grandchild"):
        spawn_grandchild(option("grandchild"))
    if option("exit-after"):
        signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
        signal.setitimer(signal.ITIMER_REAL, float(option("exit-after")))
    serve()


if __name__ == "__main__":
    main()
