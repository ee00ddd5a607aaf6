"""The tools that answer, wait, notify and ask; the table in fake_child.py says what each does."""

import os

from fake_wire import OUT, STATE, after, dump, opened, structured, text, tool

# What is written at once of something long, so that a long fault costs no memory here.
CHUNK = 1 << 20


@tool
def echo(call):
    return structured(call.raw)


@tool
def result(call):
    return call.given["result"]


@tool
def error(call):
    OUT.answer(call.id, b"error", call.given["error"])


@tool
def bytes_(call):
    return text("x" * call.get("size"))


@tool
def raw(call):
    data = call.get("text").encode(call.get("encoding", "utf-8"))
    OUT.raw(data.replace(b"$ID", call.id).replace(b"$TOKEN", call.token or b"null"))
    return text("written") if call.get("answer") else None


@tool
def line(call):
    first = b'{"jsonrpc":"2.0","id":%s,"result":%s}\n' % (call.id, text("good")) if call.get("good") else b""
    left = call.get("size")
    while left > 0:
        OUT.raw(first + b"x" * min(left, CHUNK))
        first, left = b"", left - CHUNK
    OUT.raw(b"\n" if call.get("newline", True) else b"")


@tool
def bomb(call):
    size, ok = call.get("size", 1000), text("ok")
    rest = {
        "depth": lambda: b'"result":%s%s' % (b"[" * size, b"]" * size),
        "keys": lambda: b'"result":{%s}' % b",".join(b'"k%d":0' % n for n in range(size)),
        "number": lambda: b'"result":{"content":[],"n":[1e400,-0,1E5,%s]}' % (b"9" * size),
        "duplicate-id": lambda: b'"id":999999,"result":%s' % ok,
        "duplicate-result": lambda: b'"result":%s,"result":{"content":[]}' % ok,
        "both": lambda: b'"result":%s,"error":{"code":1,"message":"both"}' % ok,
        "neither": lambda: b'"other":0',
        "batch": lambda: b'"result":%s' % ok,
    }[call.get("kind")]()
    whole = b'{"jsonrpc":"2.0","id":%s,%s}' % (call.id, rest)
    OUT.line(b"[%s]" % whole if call.get("kind") == "batch" else whole)


@tool
def torn(call):
    OUT.raw(b'{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"te' % call.id)
    os._exit(0)


@tool
def transcript(call):
    return text(STATE.read[call.get("from", 0):].hex())


@tool
def state(call):
    lists = {name: b"[" + b",".join(getattr(STATE, name)) + b"]" for name in ("cancelled", "stray")}
    return structured(
        b'{"initialize":%s,"initializes":%d,"initialized":%d,"level":%s,"subscriptions":%s,'
        b'"cancelled":%s,"stray":%s,"pid":%d}'
        % (STATE.initialize, STATE.initializes, STATE.initialized, dump(STATE.level),
           dump(sorted(STATE.subscriptions)), lists["cancelled"], lists["stray"], os.getpid()))


# When answers come, and how often.


@tool
def hold(call):
    gate = call.get("gate")
    STATE.held[gate] = STATE.held.get(gate, 0) + 1
    yield lambda: gate in STATE.gates
    STATE.held[gate] -= 1
    return structured(call.raw)


@tool
def release(call):
    STATE.gates.add(call.get("gate"))
    return text("released")


@tool
def await_held(call):
    gate, count = call.get("gate"), call.get("count", 1)
    yield lambda: STATE.held.get(gate, 0) >= count
    return text(f"{count} calls wait")


@tool
def wait(call):
    yield opened(call.get("path"))
    return text("opened")


@tool
def sleep(call):
    yield after(call.get("seconds"))
    return text("slept")


@tool
def delay(call):
    yield after(call.get("seconds"))
    return structured(call.raw)


@tool
def silent(call):
    yield lambda: False


@tool
def reverse(call):
    STATE.reversed.append(call)
    if len(STATE.reversed) >= call.get("of"):
        while STATE.reversed:
            last = STATE.reversed.pop()
            last.answer(structured(last.raw))


@tool
def await_cancelled(call):
    yield lambda: len(STATE.cancelled) >= call.get("count", 1)
    return structured(b'{"cancelled":[%s]}' % b",".join(STATE.cancelled))


@tool
def late(call):
    yield lambda: call.id in STATE.cancelled
    return text("late")


@tool
def twice(call):
    for _ in range(call.get("times", 2)):
        call.answer(structured(call.raw))


@tool
def answer_as(call):
    OUT.answer(call.given["id"], b"result", text("for another"))
    return text("own") if call.get("then", True) else None


# Notifications and requests of its own.


@tool
def progress(call):
    values = call.get("values") or list(range(1, call.get("count", 3) + 1))
    token = call.given.get("token")
    for value in values:
        if pace := call.get("pace", 0):
            yield after(pace)
        call.progress(value, len(values), token, call.get("bytes", 0))
    if gate := call.get("gate"):
        yield lambda: gate in STATE.gates
    call.answer(text("progressed"))
    for extra in range(call.get("late", 0)):
        call.progress(len(values) + extra + 1, len(values), token)


@tool
def log(call):
    data = dump("x" * call.get("bytes", 0))
    params = b'{"level":%s,"logger":"fake","data":%s}' % (dump(call.get("level", "info")), data)
    OUT.notify("notifications/message", params, call.get("count", 1))
    return text("logged")


@tool
def notify(call):
    OUT.notify(call.get("method"), call.given.get("params", b"{}"), call.get("count", 1))
    return text("notified")


@tool
def touch(call):
    uri = call.get("uri")
    if uri in STATE.subscriptions:
        OUT.notify("notifications/resources/updated", dump({"uri": uri}))
    return text(f"subscribed: {uri in STATE.subscriptions}")


@tool
def ask(call):
    id = call.given.get("id", b'"ask"')
    STATE.answers.pop(id, None)
    OUT.line(b'{"jsonrpc":"2.0","id":%s,"method":%s,"params":%s}'
             % (id, dump(call.get("method", "ping")), call.given.get("params", b"{}")))
    if call.get("cancel"):
        OUT.notify("notifications/cancelled", b'{"requestId":%s,"reason":"changed my mind"}' % id)
    elif call.get("wait", True):
        STATE.answers[id] = None
        yield lambda: STATE.answers[id] is not None
        return structured(STATE.answers.pop(id))
    return text("asked")


@tool
def batch(call):
    note = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}'
    parts = [note % (call.token or b"0", n + 1) for n in range(call.get("count", 2))]
    parts.append(b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (call.id, text("batched")))
    OUT.line(b"[" + b",".join(parts) + b"]")
