"""A process of its own for each system under test, driven over pipes.

Thread pools of different systems never share a process. Each process keeps to its cores, and only the one that was
called works, while the others block on a read. A request is a line {"call", "args"}; an answer is a line {"value"} or
{"error"}. The output of the systems goes to stderr.
"""

import importlib
import json
import os
import subprocess
import sys

from .machine import peak_memory, thread_environment


class WorkerError(RuntimeError):
    """The worker refused, failed or ended."""


class Worker:
    """An object in a new process on the given cores; `call` runs its methods there.

    factory: "module:name" of a class or function, which is called with the list of cores and then args. args and
    results have to be JSON. Raises WorkerError with the reason if the object cannot be made.
    """

    def __init__(self, factory: str, cores: list[int], args: dict):
        command = [sys.executable, "-m", "bench.worker", factory, json.dumps(cores), json.dumps(args)]
        environment = {**os.environ, **thread_environment(cores)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        try:
            self._answer()
        except WorkerError:
            self.close()
            raise

    def call(self, method: str, **args):
        try:
            self.process.stdin.write(json.dumps({"call": method, "args": args}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(f"the worker ended with code {self.process.wait()} before the call") from None
        return self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise WorkerError(f"the worker ended with code {self.process.wait()} and gave no answer")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer["value"]

    def close(self) -> None:
        """Ends the process, which exits when its input ends."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def serve(factory: str, cores: list[int], args: dict) -> None:
    os.sched_setaffinity(0, cores)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of a library must not mix with the answers

    def answer(make) -> bool:
        try:
            out = {"value": make()}
        except Exception as e:  # the other side raises it
            out = {"error": f"{type(e).__name__}: {e}"}
        answers.write(json.dumps(out) + "\n")
        answers.flush()
        return "value" in out

    served = {}

    def start():
        module, name = factory.split(":")
        served["it"] = getattr(importlib.import_module(module), name)(cores, **args)

    if answer(start):
        for line in sys.stdin:
            request = json.loads(line)
            if request["call"] == "peak_memory":
                answer(peak_memory)
            else:
                answer(lambda r=request: getattr(served["it"], r["call"])(**r["args"]))


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]))
