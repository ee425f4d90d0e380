"""HTML of objects in notebooks, from `inspection.notebook`, which is imported when it is needed."""

from __future__ import annotations

from importlib import import_module


class ReprHtml:
    """Base class of objects that notebooks show as HTML."""

    def _repr_html_(self) -> str | None:
        shown: str | None = import_module("ntk_alibi.inspection.notebook").html(self)
        return shown
