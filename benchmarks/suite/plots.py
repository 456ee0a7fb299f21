"""Bar charts as SVG, written by hand: no library, and the same bytes for the same figures."""

import html
import os

WIDTH, LABEL, BAR, GAP, TOP = 760, 250, 20, 8, 44
COLORS = {"CairnFS": "#2a6f97", "prototype": "#a9a9a9"}
OTHER = "#d9a441"


def bar_chart(title, unit, bars):
    """`bars`: (label, Summary, scale). A bar is the median; the line through its end goes from lowest to highest."""
    top = max(summary.high * scale for _, summary, scale in bars) or 1.0
    room = WIDTH - LABEL - 110
    height = TOP + len(bars) * (BAR + GAP) + 14
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
             'font-family="sans-serif" font-size="13">',
             f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
             f'<text x="12" y="24" font-size="15" font-weight="bold">{html.escape(title)}</text>']
    for i, (label, summary, scale) in enumerate(bars):
        y = TOP + i * (BAR + GAP)
        def x_of(value, scale=scale):
            return LABEL + room * value * scale / top
        color = COLORS.get(label.split(",")[0], OTHER)
        middle = y + BAR / 2
        parts += [f'<text x="{LABEL - 8}" y="{y + 15}" text-anchor="end">{html.escape(label)}</text>',
                  f'<rect x="{LABEL}" y="{y}" width="{x_of(summary.median) - LABEL:.1f}" height="{BAR}" fill="{color}"/>',
                  f'<line x1="{x_of(summary.low):.1f}" x2="{x_of(summary.high):.1f}" y1="{middle}" y2="{middle}" '
                  'stroke="black" stroke-width="1.5"/>',
                  f'<text x="{max(x_of(summary.high), x_of(summary.median)) + 6:.1f}" y="{y + 15}">'
                  f'{summary.median * scale:.3g} {unit}</text>']
    return "\n".join(parts) + "\n</svg>\n"


PLOTS = (  # file, title, how the measure begins, unit of the figures
    ("stall", "Time in write(2): what the trainer waits for", "stall", "B/s"),
    ("durable-new", "Durable save into new segments", "durable: save and rename, into new", "B/s"),
    ("durable-recycled", "Durable save into recycled segments", "durable: save and rename, into recycled", "B/s"),
    ("unchanged", "Durable save of what is stored already", "unchanged save", "B/s"),
    ("restore-cold", "Restore, cold", "restore, cold", "B/s"),
    ("restore-hot", "Restore, just saved", "restore, hot", "B/s"),
    ("mmap", "Loading through a mapping, cold", "mmap load of", "B/s"),
    ("writers", "Files saved at once, durable", "more writers", "B/s"),
    ("cpu-new", "CPU time of the daemon by step, new data", "CPU of the daemon per GiB saved, new", "ns/KiB"),
    ("cpu-known", "CPU time of the daemon by step, known data", "CPU of the daemon per GiB saved, known", "ns/KiB"),
    ("cut-points", "Cut points, one core", "cut points", "B/s"),
    ("cluster-save", "Three hosts: durable save of new data, two copies", "cluster: durable save", "B/s"),
    ("cluster-stall", "Three hosts: time in write(2)", "cluster: stall", "s"),
    ("cluster-known", "Three hosts: save of known data", "cluster: save of known", "B/s"),
    ("cluster-restore", "Three hosts: restore where nothing of it lies, cold", "cluster: restore", "B/s"),
    ("cluster-names", "Three hosts: small files in a directory of another host", "cluster: names", "/s"),
)


def write_plots(rows, directory):
    """One file per measure that was run; their names."""
    written = []
    for name, title, beginning, unit in PLOTS:
        row = next((row for row in rows if row.measure.startswith(beginning) and row.figures), None)
        if row is None:
            continue
        scale = 1e-9 if unit == "B/s" else 1.0
        bars = [(who.removeprefix("step: "), figure, scale) for who, figure in row.figures.items() if figure.unit == unit]
        if not bars:
            continue
        os.makedirs(directory, exist_ok=True)
        path = os.path.join(directory, name + ".svg")
        with open(path, "w", encoding="utf-8") as file:
            file.write(bar_chart(title, "GB/s" if unit == "B/s" else unit, bars))
        written.append(path)
    return written
