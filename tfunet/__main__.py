"""The command `tfunet`, and `python -m tfunet`."""

import sys


def main() -> int:
    """Run one command and return its exit code."""
    try:
        # Here, since Ctrl-C may come while the commands are imported.
        from tfunet import cli

        return cli.main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # tfunet.exit_codes.INTERRUPTED, which may not be imported yet.


if __name__ == "__main__":
    sys.exit(main())
