"""``python -m gdsdeploy``, and the command ``gdsdeploy``."""

import gc
import signal
import sys


def main() -> None:
    """Run the command line; until there is something to clean up, Ctrl-C ends the process without a traceback."""
    # Most of what is made at first are modules, which stay: looking for garbage among them takes a tenth of the time.
    gc.set_threshold(100_000)
    # paramiko imports it for "Match exec" in SSH's configuration, which OpenSSH reads for us; it takes longer than
    # paramiko itself.
    sys.modules.setdefault("invoke", None)  # type: ignore[arg-type]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gdsdeploy import cli

    cli.main()


if __name__ == "__main__":
    main()
