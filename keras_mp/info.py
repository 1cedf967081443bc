"""`python -m keras_mp info` prints what a bug report should contain."""

import importlib.metadata
import platform

import keras

from keras_mp.ops import build_info


def facts() -> dict[str, str]:
    """Returns versions, and which implementation of the ops this machine uses."""
    return {
        "keras_mp": importlib.metadata.version("keras_mp"),
        "python": platform.python_version(),
        "keras": keras.__version__,
        "machine": f"{platform.machine()}, {platform.system()}",
        **build_info(),
    }


def main() -> None:
    """Prints the facts."""
    for name, value in facts().items():
        print(f"{name + ':':14}{value}")


if __name__ == "__main__":
    main()
