"""The two files that a run leaves: JSON with everything, and one page of text."""

import dataclasses
import json
import pathlib


def _not_run(tests):
    """One line for each reason: a report that passed must not hide what was not tried."""
    by_reason = {}
    for name, how in tests.items():
        if how.startswith("not run"):
            by_reason.setdefault(how.removeprefix("not run: "), []).append(name)
    return [f"NOT RUN: {', '.join(names)}: {reason}" for reason, names in by_reason.items()]


def page(report):
    """The text, of what the JSON holds."""
    lines = [
        f"gpu-check: {report['device']}, library built for {report['build']}, torch {report['torch']}",
        f"state of {report['bytes'] / 1e9:.3g} GB in {report['directory']} on {report['file_system']}, "
        f"{report['rounds']} rounds, {report['chain_saves']} saves with a tenth changed",
        *_not_run(report["tests"]),
        "",
        f"{'':60} {'measured':>12}  {'goal':12} verdict",
    ]
    for row in report["rows"]:
        figure = "-" if row["figure"] is None else f"{row['figure']:.3g} {row['unit']}"
        note = f" ({row['note']})" if row["note"] else ""
        lines.append(f"{row['row']:60} {figure:>12}  {row['goal']:12} {row['verdict']}{note}")
    lines += ["", *(f"{name:60} {how}" for name, how in report["tests"].items())]
    lines += [f"{name}: {text}" for name, text in report["errors"].items()]
    return "\n".join(lines) + "\n"


def write(report, rows, folder):
    """Makes gpu-check.json and gpu-check.txt; the text."""
    report = {**report, "rows": [dataclasses.asdict(row) for row in rows]}
    folder = pathlib.Path(folder)
    (folder / "gpu-check.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    text = page(report)
    (folder / "gpu-check.txt").write_text(text, encoding="utf-8")
    return text
