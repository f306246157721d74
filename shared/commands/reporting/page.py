"""The formats of a report: a self-contained HTML page, Markdown and LaTeX."""

from collections.abc import Mapping, Sequence

from bokeh.embed import json_item
from bokeh.plotting import figure
from bokeh.resources import Resources
from jinja2 import Environment
from markupsafe import Markup

from shared.commands.reporting.tables import Table

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<title>{{ title }}</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 0 auto; padding: 1rem; color: #222; }
  nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; }
  p { max-width: 45rem; color: #555; }
  .wide { overflow-x: auto; }
  table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; font-size: 14px; }
  th, td { padding: .25rem .7rem; text-align: left; border-bottom: 1px solid #ddd; }
  th { border-bottom: 2px solid #888; }
  th:first-child, td:first-child { position: sticky; left: 0; background: #fff; }
  @media (max-width: 600px) {
    th:first-child, td:first-child { min-width: 8rem; white-space: normal; overflow-wrap: anywhere; }
  }
  tbody tr:hover td { background: #f3f6fa; }
  #newer { display: none; position: fixed; right: 1rem; bottom: 1rem; padding: .6rem 1rem; background: #1f77b4; }
  #newer a { color: #fff; }
  .charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); gap: 1rem; }
</style>
{{ library }}
</head>
<body>
<h1>{{ title }}</h1>
<p>{{ about }}</p>
<nav>{% for name in sections %}<a href="#{{ loop.index }}">{{ name }}</a>{% endfor %}</nav>
{% for name, section in sections.items() %}
<h2 id="{{ loop.index }}">{{ name }}</h2>
<p>{{ section.note }}</p>
{{ section.body }}
{% endfor %}
<script>
  // A chart is drawn when it comes into view: many at once would keep the page from opening.
  const charts = {{ charts|tojson }};
  const observer = new IntersectionObserver(entries => entries.filter(entry => entry.isIntersecting).forEach(entry => {
    observer.unobserve(entry.target);
    Bokeh.embed.embed_item(charts[entry.target.id], entry.target.id);
  }), { rootMargin: "300px" });
  document.querySelectorAll(".chart").forEach(place => observer.observe(place));
</script>
{{ watcher }}
</body>
</html>
"""

# Checks for new results, but lets readers decide when to load them, because they may have zoomed in.
_WATCHER = """\
<div id="newer"><a href="">There are newer results: show them</a></div>
<script>
  const shown = "{{ digest }}";
  setInterval(async () => {
    const newest = await fetch("digest").then(answer => answer.text()).catch(() => shown);
    if (newest !== shown) document.getElementById("newer").style.display = "block";
  }, 5000);
</script>
"""


# Whatever a name or a library contains, the page loads nothing, and only connects to its own server.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'"
)
_ZOOM = "Drag to zoom, and click a name to hide it. Bands are 95% of the bootstrap over seeds."


class Section:
    """A section of the page: a note, and HTML."""

    def __init__(self, note: str, body: str) -> None:
        self.note, self.body = note, Markup(body)


def _place(chart: figure) -> str:
    """The element in which a chart is drawn."""
    return f'<div class="chart" id="{chart.id}" style="min-height: {chart.height}px"></div>'


def html(
    title: str, about: str, tables: Sequence[Table], charts: Mapping[str, Sequence[figure]], digest: str | None = None
) -> str:
    """Renders the page.

    Args:
        title: The heading of the page.
        about: The summary below the heading.
        tables: The tables in order.
        charts: Charts by the heading of their section.
        digest: The digest of the results on the page; with one, the page asks its server for newer results.
    """
    of_tables = [
        (table.title, Section(table.note, f'<div class="wide">{table.shown("html")}</div>')) for table in tables
    ]
    of_charts = [
        (name, Section(_ZOOM, f'<div class="charts">{"".join(map(_place, group))}</div>'))
        for name, group in charts.items()
    ]
    sections = dict([*of_tables[:1], *of_charts, *of_tables[1:]])
    environment = Environment(autoescape=True)
    # Bokeh relies on the order of the keys in a chart.
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    return environment.from_string(_PAGE).render(
        title=title,
        about=about,
        policy=_POLICY,
        sections=sections,
        library=Markup(Resources(mode="inline", components=["bokeh"]).render()),
        charts={chart.id: json_item(chart) for group in charts.values() for chart in group},
        watcher=Markup(environment.from_string(_WATCHER).render(digest=digest)) if digest else "",
    )


def markdown(title: str, about: str, tables: Sequence[Table]) -> str:
    """All tables as Markdown."""
    parts = [f"## {table.title}\n\n{table.note}\n\n{table.shown('pipe')}" for table in tables]
    return "\n\n".join([f"# {title}", about, *parts]) + "\n"


def latex(tables: Sequence[Table]) -> str:
    """All tables as LaTeX with the package booktabs, each after a comment with its title."""
    return "\n\n".join(f"% {table.title}: {table.note}\n{table.shown('latex_booktabs')}" for table in tables) + "\n"
