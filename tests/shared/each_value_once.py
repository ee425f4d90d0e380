"""A plugin of pytest that runs each test with each value of each parameter, but no grids of them.

It is for test runs on another version of a library, which meets all that a version can change.
"""

from __future__ import annotations

from collections import defaultdict

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests whose every value stood in an earlier test of the same function."""
    seen: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    kept, left_out = [], []
    for item in items:
        parameters = getattr(item, "callspec", None)
        values = {
            (name, repr(value)) for name, value in (parameters.params if parameters else {}).items()
        }
        function = item.nodeid.split("[")[0]
        (left_out if values and values <= seen[function] else kept).append(item)
        seen[function] |= values
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)
