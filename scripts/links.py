#!/usr/bin/env python3
"""Links of the Markdown documents: every file and heading that one names is there, and every page of docs/ is in its SUMMARY.md.

    links.py [FOLDER]           (the repository's)

Headings are found as the forge makes their anchors: lower case, without punctuation, hyphens for spaces. Addresses elsewhere
are not looked at.
"""

import re
import subprocess
import sys
from pathlib import Path

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def prose(text):
    """The text without code, in which a bracket is no link."""
    text = re.sub(r"^( *)(```+)[^\n]*\n.*?^ *\2 *$", "", text, flags=re.M | re.S)
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", text, flags=re.S)


def anchors(text):
    """The anchors of a document's headings; of equal ones the second ends in -1, and so on."""
    found = set()
    text = re.sub(r"^( *)(```+)[^\n]*\n.*?^ *\2 *$", "", text, flags=re.M | re.S)
    for heading in re.findall(r"^#{1,6} +(.*?)#* *$", text, flags=re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number, unique = 0, name
        while unique in found:
            number += 1
            unique = f"{name}-{number}"
        found.add(unique)
    return found


def main(root):
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=root, capture_output=True, text=True, check=True,
    ).stdout.split("\0")
    pages = {(root / name).resolve() for name in listed if name and (root / name).exists()}
    texts = {page: page.read_text() for page in pages}
    faults, count = [], 0
    for page in sorted(pages):
        for match in LINK.finditer(prose(texts[page])):
            target = match[1] or match[2]
            if re.match(r"[a-z]+:", target):
                continue
            count += 1
            path, _, anchor = target.partition("#")
            place = (page.parent / path).resolve() if path else page
            # A report's links lead into the folder of its session, of which only the report is committed.
            if not place.exists() and page.parent == root / "docs" / "results":
                continue
            if not place.exists():
                faults.append(f"{page.relative_to(root)}: {target}: there is no such file")
            elif anchor and place in texts and anchor not in anchors(texts[place]):
                faults.append(f"{page.relative_to(root)}: {target}: there is no such heading")
    summary = root / "docs" / "SUMMARY.md"
    in_book = {(summary.parent / one[1]).resolve() for one in LINK.finditer(texts.get(summary.resolve(), ""))}
    for page in sorted(pages):
        if summary.parent.resolve() in page.parents and page != summary.resolve() and page not in in_book:
            faults.append(f"{page.relative_to(root)} is not in docs/SUMMARY.md")
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{count} links in {len(pages)} documents, {len(faults)} faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()))
