"""``python -m gdsdeploy``, and the command ``gdsdeploy``."""

import signal


def main() -> None:
    """Run the command line; until there is something to clean up, Ctrl-C ends the process without a traceback."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gdsdeploy import cli

    cli.main()


if __name__ == "__main__":
    main()
