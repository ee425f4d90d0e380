"""A headless Chromium without a network, for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: Collects the text of a page, that in shadow roots included.
TEXT = """
const parts = [];
const walk = (node) => {
  if (node.nodeType === Node.TEXT_NODE) { parts.push(node.textContent); }
  if (node.nodeName === "STYLE" || node.nodeName === "SCRIPT") { return; }
  if (node.shadowRoot) { node.shadowRoot.childNodes.forEach(walk); }
  node.childNodes.forEach(walk);
};
walk(document.body);
return parts.join(" ").replace(/\\s+/g, " ");
"""


@contextmanager
def page(path: Path) -> Iterator[Any]:
    """Yield selenium's driver with a file loaded; skip the test where there is no Chromium."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for option in ("headless=new", "no-sandbox", "disable-gpu", "window-size=1500,900"):
        options.add_argument(f"--{option}")
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    running = webdriver.Chrome(options=options, service=service)
    try:
        running.get(path.as_uri())
        yield running
    finally:
        running.quit()
