"""The denoiser of no_learning.py with a loss scale, watched while it trains.

python examples/diagnosing/watching.py [FOLDER]
"""

import sys

from no_learning import train

import keras_mp


def main():
    callback = keras_mp.NumericsCallback(every=4)
    train("mixed_float16", "dynamic", epochs=24, callbacks=[callback])
    callback.plot(sys.argv[1] if len(sys.argv) > 1 else ".", format="svg")


if __name__ == "__main__":
    main()
