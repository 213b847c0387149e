"""Screenshots of the reports for the docs: `python bench/screenshots.py`. Needs the packages playwright and Chromium.

Writes docs/figures/report-NAME.png for each command of `PAGES`, wide and light, and one narrow and dark. Look at them before a commit.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
SWEEP = """
[points]
systems = ["deepep", "comet", "dysharp"]
models = ["S-8", "M-8"]
gpus = 8
tokens = [128, 512]
"""
PAGES = {
    "compare": ("compare", "--gpus", "8", "--tokens", "256"),
    "advise": ("advise", "deepseek-v3", "--cluster", "hw-dgx-h100", "--tokens", "128"),
    "sweep": ("sweep", "sweep.toml", "--store", "store"),
}
SHAPES = {"": (1100, 1400, "light"), "-narrow": (390, 844, "dark")}


def main() -> None:
    """Write the pictures."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or sys.exit("found no chromium")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as play:
        folder = Path(name)
        (folder / "sweep.toml").write_text(SWEEP)
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        for page, command in PAGES.items():
            subprocess.run([sys.executable, "-m", "dysharp", *command, "--report", f"{page}.html"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            for ending, (width, height, scheme) in SHAPES.items():
                if ending and page != "compare":
                    continue
                tab = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme).new_page()
                tab.goto((folder / f"{page}.html").as_uri())
                tab.screenshot(path=folder / "page.png")
                few = Image.open(folder / "page.png").convert("RGB").quantize(128, dither=Image.Dither.NONE)
                few.save(FIGURES / f"report-{page}{ending}.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
