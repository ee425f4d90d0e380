"""Hook for `_repr_html_`: `_notebook` registers renderers here, so that no class imports it."""

from __future__ import annotations

import functools


@functools.singledispatch
def html(shown: object) -> str | None:
    """Return the HTML of an object, or None if `_notebook` registers no renderer for its type."""
    del shown
    return None


class ReprHtml:
    """Base class of objects that notebooks show as HTML."""

    def _repr_html_(self) -> str | None:
        return html(self)
