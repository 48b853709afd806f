#!/usr/bin/env python3
"""Licences of what the binaries are made of.

    licences.py check           every dependency's licence is in the allow list of deny.toml ($DENY names another), or says which is not
    licences.py write FOLDER    THIRD-PARTY.txt (the licences' texts) and sbom.cdx.json (CycloneDX 1.5) into FOLDER

Both look at what `cargo metadata --locked` resolves for this machine's target. Development dependencies are no part of it.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ("overfly-cli", "overfly-sockets")
TEXTS = re.compile(r"(?i)^(licen[cs]e|copying|copyright|notice|unlicense)")


def allowed(expression, allow):
    """Whether an SPDX expression (with / for OR, as crates.io has had it) is satisfied by the allow list."""
    words = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))

    def alternatives():
        holds = all_of()
        while words and words[0] == "OR":
            words.pop(0)
            holds = all_of() or holds
        return holds

    def all_of():
        holds = one()
        while words and words[0] == "AND":
            words.pop(0)
            holds = one() and holds
        return holds

    def one():
        if not words:
            raise ValueError(f"`{expression}` ends too early")
        word = words.pop(0)
        if word == "(":
            holds = alternatives()
            if not words or words.pop(0) != ")":
                raise ValueError(f"`{expression}` lacks a parenthesis")
            return holds
        if words and words[0] == "WITH":
            word += f" WITH {words[1]}"
            del words[:2]
        return word in allow

    holds = alternatives()
    if words:
        raise ValueError(f"`{expression}` is no SPDX expression")
    return holds


def dependencies():
    """The packages that the shipped binaries are made of, the workspace's own left out, by name and version."""
    host = re.search(r"host: (\S+)", subprocess.check_output(["rustc", "-vV"], text=True, cwd=ROOT))[1]
    command = [os.environ.get("CARGO", "cargo"), "metadata", "--format-version=1", "--locked", "--filter-platform", host]
    metadata = json.loads(subprocess.check_output(command, text=True, cwd=ROOT))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    own = set(metadata["workspace_members"])
    waiting = [one for one in own if packages[one]["name"] in SHIPPED]
    if len(waiting) != len(SHIPPED):
        raise SystemExit(f"not all of {SHIPPED} are in the workspace")
    seen = set(waiting)
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            kinds = {kind["kind"] for kind in dependency["dep_kinds"]}
            if kinds != {"dev"} and dependency["pkg"] not in seen:
                seen.add(dependency["pkg"])
                waiting.append(dependency["pkg"])
    return sorted((packages[one] for one in seen - own), key=lambda its: (its["name"], its["version"]))


def check():
    allow = set(tomllib.loads(Path(os.environ.get("DENY", ROOT / "deny.toml")).read_text())["licenses"]["allow"])
    found = dependencies()
    bad = [its for its in found if not its["license"] or not allowed(its["license"], allow)]
    for its in bad:
        print(f"{its['name']} {its['version']}: {its['license']} is not allowed by deny.toml", file=sys.stderr)
    if not bad:
        print(f"{len(found)} dependencies, all under licences that deny.toml allows")
    return bool(bad)


def texts(package):
    """The licence files of a package, also of what it carries along (LuaJIT)."""
    folder = Path(package["manifest_path"]).parent
    for place in sorted(folder.rglob("*")):
        if place.is_file() and TEXTS.match(place.name) and place.suffix not in (".rs", ".html", ".lua"):
            yield place.relative_to(folder), place.read_text(errors="replace").strip()


def texts_of_all(found):
    """By package's name and version: the texts. What was published without one has that of the others of its repository."""
    own = {(its["name"], its["version"]): [text for _, text in texts(its)] for its in found}
    for its in found:
        name = its["name"], its["version"]
        siblings = [own[other["name"], other["version"]] for other in found if other["repository"] == its["repository"]]
        yield its, own[name] or next((texts for texts in siblings if texts and its["repository"]), [])


def write(folder):
    folder.mkdir(parents=True, exist_ok=True)
    found = dependencies()
    users = {}
    for package, its_texts in texts_of_all(found):
        name = f"{package['name']} {package['version']} ({package['license']})"
        if not its_texts:
            raise SystemExit(f"{name} has no text of its licence: binaries that contain it cannot be shipped")
        for text in its_texts:
            users.setdefault(text, []).append(name)
    with open(folder / "THIRD-PARTY.txt", "w") as output:
        output.write("Overfly's binaries contain code of these packages, under these licences.\n")
        for package in found:
            output.write(f"\n{package['name']} {package['version']}: {package['license']}")
        for text, names in sorted(users.items(), key=lambda its: its[1]):
            output.write(f"\n\n{'=' * 80}\n" + "\n".join(dict.fromkeys(names)) + f"\n{'-' * 80}\n{text}")
        output.write("\n")
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    lock = {(its["name"], its["version"]): its for its in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]}

    def component(its):
        return {
            "type": "library",
            "name": its["name"],
            "version": its["version"],
            "purl": f"pkg:cargo/{its['name']}@{its['version']}",
            "licenses": [{"expression": re.sub(r"\s*/\s*", " OR ", its["license"])}],
            "hashes": [{"alg": "SHA-256", "content": lock[its["name"], its["version"]]["checksum"]}],
        }

    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "overfly", "version": version}},
        "components": [component(its) for its in found],
    }
    (folder / "sbom.cdx.json").write_text(json.dumps(bill, indent=1) + "\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["check"]:
            sys.exit(check())
        case ["write", folder]:
            write(Path(folder))
        case _:
            sys.exit(__doc__)
