#!/usr/bin/env python3
"""Draws docs/monitoring/dashboard.svg: Debian's Prometheus scrapes a mount in which two runs save, and answers the queries
of the dashboard. Grafana is not run: the lines are drawn here. Takes five minutes. Run as root.

Options: --seconds N; --out FILE.
"""

import html
import json
import os
import random
import sys
import time
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, free_port
from cluster import wait_until
from monitoring_tools import MONITORING, dashboard, dashboard_queries, fetch, is_reached, make_run, prometheus, save

MIB = 1 << 20
SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
RUNS = {"base-7b": (8, 12 * MIB), "ablation": (13, 5 * MIB)}  # seconds from save to save, bytes of which half stay
WIDTH, HEIGHT, COLUMNS = 330, 190, 3
COLORS = ("#2a6f97", "#d9a441", "#7a5195", "#ef5675")


def option(name, default):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def train(mount, seconds):
    """Saves now and then, and keeps the last checkpoints."""
    chance, begin = random.Random(7), time.monotonic()
    same = {name: chance.randbytes(size // 2) for name, (_, size) in RUNS.items()}
    due, step = dict.fromkeys(RUNS, 0.0), dict.fromkeys(RUNS, 0)
    while time.monotonic() - begin < seconds:
        for name, (every, size) in RUNS.items():
            if time.monotonic() - begin < due[name]:
                continue
            due[name] += every
            step[name] += 100
            save(f"{mount.path}/{name}", step[name], same[name] + chance.randbytes(size // 2))
        time.sleep(0.2)


def lines_of(address, expression, legend, begin, end):
    """The lines of a query: legend and points."""
    query = urllib.parse.urlencode({"query": expression, "start": begin, "end": end, "step": 2})
    result = json.loads(fetch(address, "/api/v1/query_range?" + query))["data"]["result"]
    for series in result:
        name = legend
        for key, value in series["metric"].items():
            name = name.replace("{{" + key + "}}", value)
        yield name, [(at, float(value)) for at, value in series["values"] if value != "NaN"]


def text_of(value, unit):
    if unit in ("bytes", "Bps"):
        size, name = next((each for each in SIZES if value >= each[0]), (1, "B"))
        return f"{value / size:.0f} {name}" + ("/s" if unit == "Bps" else "")
    return {"percentunit": f"{value:.0%}", "s": f"{value:.3g} s"}.get(unit, f"{value:.6g}")


def chart(panel, lines, begin, end):
    unit = panel["fieldConfig"]["defaults"]["unit"]
    top = panel["fieldConfig"]["defaults"].get("max") or max((value for _, points in lines for _, value in points), default=0) or 1
    left, right, low, high = 12, WIDTH - 12, HEIGHT - 44, 40
    parts = [f'<rect x="2" y="2" width="{WIDTH - 4}" height="{HEIGHT - 4}" fill="white" stroke="#cccccc"/>',
             f'<text x="12" y="20" font-weight="bold">{html.escape(panel["title"])}</text>',
             f'<text x="12" y="35" fill="#666666">{text_of(top, unit)}</text>',
             f'<line x1="{left}" x2="{right}" y1="{low}" y2="{low}" stroke="#999999"/>']
    for number, (name, points) in enumerate(lines[:len(COLORS)]):
        at = " ".join(f"{left + (right - left) * (when - begin) / (end - begin):.1f},{low - (low - high) * min(value / top, 1):.1f}"
                      for when, value in points)
        parts += [f'<polyline points="{at}" fill="none" stroke="{COLORS[number]}" stroke-width="1.5"/>',
                  f'<text x="{12 + number % 2 * (WIDTH // 2)}" y="{HEIGHT - 26 + number // 2 * 15}" fill="{COLORS[number]}">'
                  f'{html.escape(name)}</text>']
    return "\n".join(parts)


def draw(address, begin, end):
    board = {panel["title"]: panel for panel in dashboard()["panels"]}
    lines = {}
    for title, expression, legend in dashboard_queries("30s"):
        if board[title]["type"] == "timeseries":
            lines.setdefault(title, []).extend(lines_of(address, expression, legend, begin, end))
    shown = [title for title in lines if lines[title]]  # those of several hosts have none
    size = COLUMNS * WIDTH, (len(shown) + COLUMNS - 1) // COLUMNS * HEIGHT
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" viewBox="0 0 {size[0]} {size[1]}" '
             'font-family="sans-serif" font-size="12">', f'<rect width="{size[0]}" height="{size[1]}" fill="#f4f4f4"/>']
    for number, title in enumerate(shown):
        place = number % COLUMNS * WIDTH, number // COLUMNS * HEIGHT
        parts.append(f'<g transform="translate({place[0]} {place[1]})">\n{chart(board[title], lines[title], begin, end)}\n</g>')
    return "\n".join(parts) + "\n</svg>\n"


def main():
    with Scratch() as scratch:
        target = f"127.0.0.1:{free_port()}"
        mount = Mount(scratch, options=f"{SMALL},dedup=owner,metrics_address={target}")
        for name in RUNS:
            make_run(f"{mount.path}/{name}")
        with prometheus(scratch, target) as address:
            wait_until(lambda: is_reached(address), what="Prometheus scrapes the mount")
            begin = time.time()
            train(mount, int(option("--seconds", "300")))
            picture = draw(address, begin, time.time())
        mount.umount()
    with open(option("--out", os.path.join(MONITORING, "dashboard.svg")), "w", encoding="utf-8") as file:
        file.write(picture)


if __name__ == "__main__":
    main()
