"""python app.py: the CampLens page."""

from __future__ import annotations

import argparse
import os
import sys

from app.opening import add_engines_flags, add_gallery_flag, open_engine_choice
from matching.command import run_command


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python app.py", description=__doc__)
    # Spaces reaches the page from outside its container; everywhere else it stays on this machine.
    host = "0.0.0.0" if os.environ.get("SPACE_ID") else "127.0.0.1"
    parser.add_argument("--host", default=os.environ.get("GRADIO_SERVER_NAME", host))
    parser.add_argument(
        "--port", type=int, default=int(os.environ.get("GRADIO_SERVER_PORT", "7860"))
    )
    add_gallery_flag(parser)
    add_engines_flags(parser)
    arguments = parser.parse_args(argv)
    print("CampLens is starting ...", flush=True)
    engines = open_engine_choice(arguments)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    from app.page import launch_page  # gradio takes seconds to import: errors come first

    launch_page(engines, arguments.host, arguments.port)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
