"""Hook for `_repr_html_`: `inspection.notebook` registers renderers, so no class imports it."""

from __future__ import annotations

import functools


@functools.singledispatch
def html(shown: object) -> str | None:
    """Return the HTML of an object, or None if no renderer is registered for its type."""
    del shown
    return None


class ReprHtml:
    """Base class of objects that notebooks show as HTML."""

    def _repr_html_(self) -> str | None:
        return html(self)
