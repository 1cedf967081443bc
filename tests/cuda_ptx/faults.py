"""What a kernel must not do."""


class Fault(Exception):
    """An access or a synchronization that PTX leaves undefined."""


def check(ok, message):
    """Raises a fault unless all of `ok` holds."""
    if not (ok if isinstance(ok, bool) else ok.all()):
        raise Fault(message)
