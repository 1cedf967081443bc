"""Runs a script in two processes of JAX."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path


def in_two_processes(script, *arguments):
    """Runs `script RANK PORT *arguments` for both ranks, with one device each.

    Returns:
        List of what each has printed last, read as JSON.
    """
    environment = os.environ | {"XLA_FLAGS": "", "KERAS_BACKEND": "jax"}
    path, port = str(Path(__file__).parent / script), free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, path, rank, port, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        outputs = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(text.splitlines()[-1]) for text, _ in outputs]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])
