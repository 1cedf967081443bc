"""Two workers of a MultiWorkerMirroredStrategy, killed and started again."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

# Longer than a worker may take to start, and to see that another one is dead.
PATIENCE = 240


class Workers:
    """Two processes that listen on this machine, each with a log.

    Args:
        folder: path, of the logs.
        command: what Python is to run.
        homes: two paths, where they start. Defaults to where the test does.
    """

    def __init__(self, folder, *command, homes=(None, None)):
        self.folder, self.command = folder, [sys.executable, *command]
        self.homes = homes
        addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
        tasks = [{"type": "worker", "index": index} for index in range(2)]
        self.configs = [
            json.dumps({"cluster": {"worker": addresses}, "task": task})
            for task in tasks
        ]
        self.processes = [None, None]
        self.ended = []

    def start(self, index):
        with self.log(index).open("a") as log:
            self.processes[index] = subprocess.Popen(
                self.command,
                cwd=self.homes[index],
                env=os.environ | {"TF_CONFIG": self.configs[index]},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def log(self, index):
        return self.folder / f"worker{index}.log"

    def run(self, kills, progress):
        """Runs to the end of both.

        Args:
            kills: list of (worker, progress, seconds): whom to kill, once there is so
                much progress, and so many seconds after the kill before.
            progress: function that returns a number.
        """
        kills, killed = list(kills), 0.0
        deadline = time.monotonic() + PATIENCE * (1 + len(kills))
        self.start(0)
        self.start(1)
        try:
            while any(process.poll() != 0 for process in self.processes):
                now = time.monotonic()
                assert now < deadline, self.log(0).read_text()[-4000:]
                if kills and now - killed >= kills[0][2] and progress() >= kills[0][1]:
                    self.kill(kills.pop(0)[0])
                    killed = now
                self.start_again_what_failed()
                time.sleep(0.02)
        finally:
            for process in self.processes:
                process.kill()
                process.wait()

    def run_once(self):
        """Runs both to their ends, and returns their exit codes."""
        self.start(0)
        self.start(1)
        try:
            return [process.wait(timeout=PATIENCE) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
                process.wait()

    def kill(self, index):
        self.processes[index].send_signal(signal.SIGKILL)
        self.processes[index].wait()

    def start_again_what_failed(self):
        for index, process in enumerate(self.processes):
            if process.poll() not in (None, 0):
                self.ended.append((index, process.returncode))
                self.start(index)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
