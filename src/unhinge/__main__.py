"""The command `unhinge`, also as `python -m unhinge`; without the extra `cli` it says how to install that."""

from __future__ import annotations

import sys

from unhinge.extras import MissingExtra, needed_for

__all__ = ["main"]


def main() -> None:
    """Run the command; a package that is missing, for the command as such or for what it was asked to do, is named."""
    try:
        with needed_for("this command"):
            from unhinge.cli import main as run

            run()
    except MissingExtra as error:
        print(f"unhinge: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:  # before the command itself could see it
        sys.exit(130)


if __name__ == "__main__":
    main()
