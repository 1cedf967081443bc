"""Prints the folder and the version of the installed TensorFlow, without importing it.

`pip install` builds in an environment of its own. The TensorFlow of the environment
that it installs into comes first: that is the one which will load the library. Folders
that are named are searched instead.
"""

import importlib.metadata
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

NAMES = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu")

paths = sys.argv[1:] or [
    sysconfig.get_path("purelib"),
    sysconfig.get_path("platlib"),
    *sys.path,
]
spec = PathFinder.find_spec("tensorflow", paths)
if spec is None or not spec.submodule_search_locations:
    sys.exit("tensorflow is not installed")
folder = Path(spec.submodule_search_locations[0])
for distribution in importlib.metadata.distributions(path=[str(folder.parent)]):
    if distribution.name in NAMES:
        print(f"{folder};{distribution.version}")
        break
else:
    sys.exit(f"no version of the TensorFlow in {folder}")
