"""What notebooks show of an object, a door for those that cannot know who draws it."""

from __future__ import annotations

import functools


@functools.singledispatch
def html(shown: object) -> str | None:
    """A picture of an object and its numbers, or None; `_rich` says of which kinds."""
    del shown
    return None


class ReprHtml:
    """An object with a picture."""

    def _repr_html_(self) -> str | None:
        return html(self)
