"""What the commands of `keras-mp` do; keras_mp_cli.py has their arguments."""
