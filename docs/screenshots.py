"""Take the pictures of the explorer that the guide shows again: docs/images/explorer*.png.

    python docs/screenshots.py          # needs Debian's chromium, or another one that playwright finds

To be run after a change of the page; nothing compares the pictures with it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).resolve().parent / "images"
SIZE = {"width": 1400, "height": 800}
DRAWN = "window.explorer && explorer.answers > 0 && !explorer.busy && !explorer.waiting && !explorer.picture"
VIEWS = {
    "explorer": "view=free",
    "explorer_long_tail": "view=noise",
}


def main() -> int:
    served = subprocess.Popen(
        [sys.executable, "-m", "unhinge", "explore", "--no-browser", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert served.stdout is not None
        found = re.search(r"(http://\S+?)\?(token=\S+)", served.stdout.readline())
        assert found is not None, "unhinge explore did not say its address"
        base, token = found.groups()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page(viewport=SIZE, color_scheme="light")
            page.goto(f"{base}?{token}")
            for name, view in VIEWS.items():
                page.goto(f"{base}?{view}")
                page.wait_for_function(DRAWN, timeout=120_000)
                page.wait_for_timeout(1500)  # the moving picture has settled
                page.screenshot(path=IMAGES / f"{name}.png")
            browser.close()
    finally:
        served.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
