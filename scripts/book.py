#!/usr/bin/env python3
"""Makes the documents fit for a book, and looks at what became of them.

    book.py [supports RENDERER]     mdBook's preprocessor: links that leave the book become their words and the path, and links that a
                                    path stands for have the page's title
    book.py check FOLDER            every link of the made book leads somewhere

The forge shows the documents within the repository. In the book there is none: what is not one of its pages cannot be followed there.
"""

import json
import os
import re
import sys
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"^\s*(```|~~~)")


def chapters(sections):
    """All chapters of the book, with those below them."""
    for section in sections:
        if isinstance(section, dict) and "Chapter" in section:
            yield section["Chapter"]
            yield from chapters(section["Chapter"]["sub_items"])


def without_links_outside(text, page, pages):
    """A page's text, with the links that leave the book as words, and a page's title where a link's words are its path."""

    def judged(link):
        words, place = link[1], link[2]
        path = urllib.parse.unquote(place.partition("#")[0])
        if not path or re.match(r"[a-z][a-z0-9+.-]*:", path):
            return link[0]
        target = os.path.normpath(os.path.join(os.path.dirname(page), path))
        if target in pages:
            return f"[{pages[target]}]({place})" if words.endswith(".md") else link[0]
        named = os.path.normpath(os.path.join("docs", target))
        # A report's own files are nowhere else than in its session's folder.
        if named in words or not (ROOT / named).exists():
            return words
        return f"`{named}`" if words == Path(named).stem else f"{words} (`{named}`)"

    lines, fenced = [], False
    for line in text.split("\n"):
        if FENCE.match(line):
            fenced = not fenced
        lines.append(line if fenced else LINK.sub(judged, line))
    return "\n".join(lines)


def preprocess():
    _, book = json.load(sys.stdin)
    every = list(chapters(book.get("sections") or book.get("items")))
    pages = {chapter["path"]: chapter["name"] for chapter in every if chapter["path"]}
    for chapter in every:
        if chapter["path"]:
            chapter["content"] = without_links_outside(chapter["content"], chapter["path"], pages)
    json.dump(book, sys.stdout)


def check(folder):
    """How many links of the made pages lead nowhere; each is named."""
    nowhere = 0
    # print.html has all pages' text in one folder, and 404.html stands anywhere.
    pages = [page for page in sorted(folder.rglob("*.html")) if page.name not in ("print.html", "404.html", "toc.html")]
    names = {page: set(re.findall(r'\sid="([^"]+)"', page.read_text())) for page in pages}
    for page in pages:
        for link in re.findall(r'\s(?:href|src)="([^"]+)"', page.read_text()):
            path, _, name = urllib.parse.unquote(link).partition("#")
            if re.match(r"[a-z][a-z0-9+.-]*:", path):
                continue
            target = Path(os.path.normpath(page.parent / path)) if path else page
            if not target.exists() or name and target in names and name not in names[target]:
                print(f"{page.relative_to(folder)}: {link} leads nowhere", file=sys.stderr)
                nowhere += 1
    if not pages:
        print(f"{folder} has no pages", file=sys.stderr)
    return bool(nowhere) or not pages


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            preprocess()
        case ["supports", renderer]:
            sys.exit(renderer != "html")
        case ["check", folder]:
            sys.exit(check(Path(folder)))
        case _:
            sys.exit(__doc__)
