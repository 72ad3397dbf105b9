"""Child processes that check one operator after the other, so that a crash or a hang costs one operator.

A worker reads the name of an operator a line and answers each with one line of JSON.  One that dies or takes too long
is replaced.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any


class Died(Exception):
    """The worker ended, or was ended after its time limit, without an answer."""


class Worker:
    """A child process, started with the first question and again after it has died."""

    def __init__(self, command: Sequence[str], seconds: float):
        self.command = command
        self.seconds = seconds  # for one operator
        self.process: subprocess.Popen[str] | None = None

    def ask(self, name: str) -> Any:
        """The worker's answer.  Raises Died."""
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        process = self.process
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(self.seconds, process.kill)
        timer.start()
        try:
            process.stdin.write(name + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        if not answer:
            self.process = None
            raise Died(f"the process died (exit status {process.wait()})")
        return json.loads(answer)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def ask_all(
    names: Iterable[str],
    command: Sequence[str],
    seconds: float,
    jobs: int,
    answered: Callable[[str, Any], bool],
) -> None:
    """Asks `jobs` workers about all names.

    `answered` is called with a name and the answer, or the Died, in one thread at a time; where it returns False the
    worker is not used again.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    one_at_a_time = threading.Lock()

    def serve() -> None:
        worker = Worker(command, seconds)
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                break
            answer: Any
            try:
                answer = worker.ask(name)
            except Died as died:
                answer = died
            with one_at_a_time:
                healthy = answered(name, answer)
            if not healthy:
                worker.close()
        worker.close()

    threads = [threading.Thread(target=serve) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
