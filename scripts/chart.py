#!/usr/bin/env python3
"""Draws README's picture from a committed report.

    chart.py write      docs/results/quickstart.svg from docs/results/quickstart.json
    chart.py check      the file is what the report makes
"""

import json
import sys
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "docs/results"
REPORT, PICTURE = RESULTS / "quickstart.json", RESULTS / "quickstart.svg"
KERNEL, OVERFLY, INK, QUIET = "#9aa5b1", "#1f6feb", "#1f2328", "#59636e"
WIDTH, LEFT, RIGHT, TOP = 760, 186, 150, 82
BAR, BETWEEN, GROUP = 15, 2, 50


def size(payload):
    return "empty response" if not payload else f"{payload // 1024} KB" if payload % 1024 == 0 else f"{payload:,} B"


def label(cell):
    kind = {"close": "a new connection each", "keepalive": "connections kept open"}[cell["connection"]]
    return size(cell["payload_bytes"]), kind


def gain(cell):
    interval = cell["gain_interval"]
    seen = not interval["low"] <= 1 <= interval["high"]
    return f"{cell['gain']:.2f} times" if seen else "no difference seen"


def picture(report):
    cells = report["cells"]
    longest = max(cell[side]["median"] for cell in cells for side in ("kernel", "overfly"))
    scale = (WIDTH - LEFT - RIGHT) / longest
    height = TOP + GROUP * len(cells) + 34
    name = "sans-serif"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, {name}" font-size="13">',
        "<title>nginx on one core, requests per second, on the kernel and on Overfly</title>",
        # It is read on light and on dark pages.
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>',
        f'<text x="20" y="32" font-size="16" font-weight="600" fill="{INK}">nginx on one core: requests per second</text>',
        f'<rect x="20" y="47" width="12" height="12" rx="2" fill="{KERNEL}"/><text x="38" y="58" fill="{QUIET}">kernel</text>',
        f'<rect x="96" y="47" width="12" height="12" rx="2" fill="{OVERFLY}"/><text x="114" y="58" fill="{QUIET}">Overfly</text>',
    ]
    for row, cell in enumerate(cells):
        top = TOP + GROUP * row
        what, kind = label(cell)
        lines.append(f'<text x="{LEFT - 12}" y="{top + 13}" text-anchor="end" fill="{INK}">{what},</text>')
        lines.append(f'<text x="{LEFT - 12}" y="{top + 29}" text-anchor="end" fill="{INK}">{kind}</text>')
        for place, (side, colour) in enumerate((("kernel", KERNEL), ("overfly", OVERFLY))):
            value = cell[side]["median"]
            y, width = top + place * (BAR + BETWEEN), value * scale
            lines.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" fill="{colour}"/>')
            words = f"{value:,.0f}"
            if side == "overfly":
                words += f'<tspan dx="8" font-weight="600" fill="{INK}">{gain(cell)}</tspan>'
            lines.append(f'<text x="{LEFT + width + 6:.1f}" y="{y + 12}" font-size="12" fill="{QUIET}">{words}</text>')
    environment = report["environment"]
    where = f"{environment['cpu_model']}, {environment['cores']} cores, Linux {environment['kernel'].split('-')[0]}, veth"
    lines.append(
        f'<text x="20" y="{height - 16}" font-size="11" fill="{QUIET}">{where}; {cells[0]["connections"]} connections;'
        f" medians of {report['plan']['repeats']}; overfly bench {report['plan_file']}</text>"
    )
    return "\n".join(lines) + "\n</svg>\n"


if __name__ == "__main__":
    drawn = picture(json.loads(REPORT.read_text()))
    match sys.argv[1:]:
        case ["write"]:
            PICTURE.write_text(drawn)
        case ["check"]:
            if not PICTURE.exists() or PICTURE.read_text() != drawn:
                sys.exit(f"{PICTURE.name} is not what {REPORT.name} makes: type `scripts/chart.py write`")
        case _:
            sys.exit(__doc__)
