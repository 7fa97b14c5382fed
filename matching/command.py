"""How a command ends: 0 done, 1 its own check failed, 2 bad arguments or input, in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable


def run_command(main: Callable[[], int]) -> int:
    """Runs a command's main; an error of the input becomes one line on standard error."""
    try:
        return main()
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
