"""Tasks of 2025-11-25: a call that asks for one is answered with it at once and goes on behind it."""

import json

from fake_wire import OUT, STATE, Call, dump, fields, option, refuse

CAPABILITY = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
TASKS = {}
OVER = ("completed", "failed", "cancelled")


class Task(Call):
    """A call that became a task: what it answers is kept, under an id that any other process gives too."""

    def __init__(self, id, params):
        super().__init__(id, params)
        self.task = option("task-id", f"task-{len(TASKS) + 1}")
        self.ttl = json.loads(fields(fields(params)["task"]).get("ttl", b"null"))
        self.status, self.result = "working", None
        TASKS[self.task] = self
        OUT.answer(id, b"result", dump({"task": self.report()}))

    def report(self):
        at = "2025-11-25T10:30:00Z"
        return {"taskId": self.task, "status": self.status, "createdAt": at, "lastUpdatedAt": at, "ttl": self.ttl,
                "pollInterval": 10}

    def answer(self, result):
        if self.status not in OVER:
            self.status, self.result = "completed", result
            OUT.notify("notifications/tasks/status", dump(self.report()))


def asks_for_task(params):
    return option("tasks") and "task" in fields(params)


def request(id, query, params):
    """Answers a `tasks/…` request."""
    if query == "list":
        return OUT.answer(id, b"result", dump({"tasks": [task.report() for task in TASKS.values()]}))
    task = TASKS.get(json.loads(params.get("taskId", b"null")))
    if task is None:
        return refuse(id, -32602, "no such task")
    if query == "cancel":
        if task.status in OVER:
            return refuse(id, -32602, "it is over")
        task.status, task.result = "cancelled", b'{"content":[]}'
    if query == "result":
        STATE.waiting.append((lambda: task.status in OVER, give(task, id), None))
        return None
    return OUT.answer(id, b"result", dump(task.report()))


def give(task, id):
    OUT.answer(id, b"result", task.result)
    return
    yield
