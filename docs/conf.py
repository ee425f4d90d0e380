"""The documentation site: Sphinx with MyST; `make docs` builds it without a network."""

from __future__ import annotations

import contextlib
import html
import io
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.pycode import ModuleAnalyzer

import ntk_alibi
from ntk_alibi import cli

os.environ |= {"COLUMNS": "90", "NO_COLOR": "1"}  # for the help of commands
sys.path.insert(0, str(Path(__file__).parent))
import names

project = "ntk_alibi"
author = "the authors of ntk_alibi"
release = version = ntk_alibi.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
default_role = "code"  # `names` in docstrings
smartquotes_action = "D"  # dashes alone: names and code stand between quotation marks
autosummary_generate = False
nb_execution_mode = "off"  # notebooks are committed with outputs, which the tests make again
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
highlight_language = "text"  # formulas, drawings, commands; Python says so, doctests show it

html_theme = "furo"
html_title = f"ntk_alibi {version}"
html_logo = html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).with_name("search_order.js"))
html_show_copyright = False
ACCENTED = ("brand-primary", "brand-content", "brand-visited", "api-name", "api-pre-name")
html_theme_options = {
    f"{theme}_css_variables": dict.fromkeys((f"color-{name}" for name in ACCENTED), accent)
    for theme, accent in (("light", "#0b6b68"), ("dark", "#5cc8be"))
}
copybutton_exclude = ".linenos, .gp, .go"
pygments_style = "tango"
pygments_dark_style = "github-dark"

maximum_signature_line_length = 80
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of other packages, which are not at hand offline


def mathml(self: Any, node: nodes.Element) -> None:
    """Formulas as MathML, made when the site is built: no script, no network."""
    block = isinstance(node, nodes.math_block)
    self.body.append(tex2mathml(node.astext(), as_block=block))
    raise nodes.SkipNode


def copy_notebooks(app: Any) -> None:
    """Sphinx reads pages below docs/ only; the copies are ignored by git."""
    copies = Path(app.srcdir) / "notebooks"
    shutil.rmtree(copies, ignore_errors=True)
    originals = Path(app.srcdir).parent / "notebooks"
    if originals.is_dir():
        shutil.copytree(originals, copies, ignore=shutil.ignore_patterns(".*"))


def write_pages_of_objects(app: Any) -> None:
    """Write a page for each public object, which git ignores."""
    names.write_pages(Path(app.srcdir) / "reference")


def describe(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Describe a page by its first paragraph, for search engines and previews."""
    if doctree is None:  # the index, the search, listings of code
        return
    paragraph = next(iter(doctree.findall(nodes.paragraph)), None)
    text = " ".join(paragraph.astext().split()) if paragraph else str(ntk_alibi.__doc__)
    title = re.sub(r"<[^>]+>", "", context.get("title") or project)
    for key, value in {
        'name="description"': text[:300],
        'property="og:title"': title,
        'property="og:description"': text[:300],
        'property="og:type"': "website",
        'property="og:site_name"': project,
    }.items():
        context["metatags"] += f'<meta {key} content="{html.escape(value)}">\n'


def links_of_the_site(app: Any, page: str, source: list[str]) -> None:
    """Between notebooks and documents, and to tables, which are elsewhere in the repository."""
    outside = r"\]\((\.\./(?:(?:studies|benchmarks)/[^)#]*|CHANGELOG)\.md)(?:#[^)]*)?\)"
    source[0] = (
        re.sub(outside, r"](path:\1)", source[0])  # a file to download
        .replace("](../docs/", "](../")
        .replace("](../../notebooks/", "](../notebooks/")
        .replace("](../notebooks/", "](../notebooks/" if "/" in page else "](notebooks/")
    )


def without_empty_contents(app: Any, page: str, source: list[str]) -> None:
    """Contents of notebooks where there are none would be a warning."""
    if page == "gallery" and not any((Path(app.srcdir) / "notebooks").glob("*.ipynb")):
        source[0] = re.sub(
            r"```{toctree}\n:hidden:\n:glob:.*?```\n", "", source[0], flags=re.DOTALL
        )


def entries_of_the_reference(app: Any, page: str, source: list[str]) -> None:
    """Blocks of names become tables and descriptions."""
    if page.startswith("reference/"):
        source[0] = names.expanded(source[0])


def help_of_commands(app: Any, page: str, source: list[str]) -> None:
    """Blocks `{command}` become what the command prints for --help."""

    def printed(block: re.Match[str]) -> str:
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            cli.main([*block[1].split()[1:], "--help"])
        return f"```\n{text.getvalue()}```"

    source[0] = re.sub(r"^```{command} (.*)\n```$", printed, source[0], flags=re.MULTILINE)


def show_implementations() -> None:
    """Let Sphinx show the signature of an implementation, which overloads repeat in part."""
    analyze = ModuleAnalyzer.analyze

    def analyze_without_overloads(analyzer: ModuleAnalyzer) -> None:
        analyze(analyzer)
        analyzer.overloads = {}

    ModuleAnalyzer.analyze = analyze_without_overloads  # type: ignore[method-assign]


def setup(app: Any) -> None:
    """Connect the functions above to the events of Sphinx."""
    show_implementations()
    app.connect("source-read", without_empty_contents)
    app.connect("source-read", entries_of_the_reference)
    app.connect("source-read", help_of_commands)
    app.connect("source-read", links_of_the_site)
    app.connect("builder-inited", copy_notebooks)
    app.connect("builder-inited", write_pages_of_objects)
    app.connect("html-page-context", describe)
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))


html_math_renderer = "mathml"
