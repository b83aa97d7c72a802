"""A served page, a browser, and what to do where one is missing: skip on a desk, fail in CI."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def needed(module: str) -> Any:
    """The module; without it a skip that says how to get it, or a failure where CI=true."""
    if importlib.util.find_spec(module) is not None:
        return importlib.import_module(module)
    words = f"{module} is not installed: pip install 'unhinge[web]' playwright"
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(words)
    pytest.skip(words)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Without Dash nothing here can even be imported; CI must not overlook that."""
    missing = importlib.util.find_spec("dash") is None
    return True if missing and os.environ.get("CI", "").lower() != "true" else None


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page that runs in this process, with a small folder of results."""
    from unhinge.web.serve import serve
    from web.folder_of_results import write_results

    running = serve(port=0, results=write_results(tmp_path_factory.mktemp("results")))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    yield running.url
    running.stop()
    thread.join(10)


class Patient:
    """A browser whose pages wait for minutes, not for Playwright's 30 seconds: a busy machine fails no test."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium

    def new_page(self, **options: Any) -> Any:
        page = self._chromium.new_page(**options)
        page.set_default_timeout(900_000)
        return page

    def new_context(self, **options: Any) -> Any:
        context = self._chromium.new_context(**options)
        context.set_default_timeout(900_000)
        return context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chromium, name)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A real Chromium."""
    playwright = needed("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        tried = Path(sys.prefix) / ".no-chromium"  # `make setup` could not install one, and says why
        words = (
            f"no chromium on this machine: {tried.read_text().strip() if tried.is_file() else 'apt install chromium'}"
        )
        if os.environ.get("CI", "").lower() == "true" and not tried.is_file():
            pytest.fail(words)
        pytest.skip(words)
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield Patient(chromium)
        chromium.close()
