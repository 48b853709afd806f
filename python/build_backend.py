"""Makes the wheel that `pip install` asks for (PEP 517), with nothing but Python: so that it needs no network."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import tarfile
import zipfile
from typing import Any, Dict, Iterator, List, Optional

HERE = os.path.dirname(os.path.abspath(__file__))


def _project() -> Dict[str, str]:
    """The words of pyproject.toml's [project]; Python before 3.11 reads no TOML."""
    with open(os.path.join(HERE, "pyproject.toml"), encoding="utf-8") as file:
        section = file.read().split("[project]\n", 1)[1].split("\n[", 1)[0]
    return dict(re.findall(r'^([\w-]+) = "(.*)"$', section, re.MULTILINE))


def _files() -> Iterator[str]:
    """The package's files, by their names from here."""
    for folder, folders, names in os.walk(os.path.join(HERE, "overfly")):
        folders[:] = sorted(each for each in folders if each != "__pycache__")
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), HERE).replace(os.sep, "/")


def _metadata(project: Dict[str, str]) -> str:
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as file:
        readme = file.read()
    return (
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\nSummary: {project['description']}\n"
        f"Requires-Python: {project['requires-python']}\nDescription-Content-Type: text/markdown\n\n{readme}"
    )


def get_requires_for_build_wheel(config_settings: Optional[Dict[str, Any]] = None) -> List[str]:
    """Nothing."""
    return []


def build_wheel(
    wheel_directory: str, config_settings: Optional[Dict[str, Any]] = None, metadata_directory: Optional[str] = None
) -> str:
    """Writes the wheel; returns its name."""
    project = _project()
    title = f"{project['name']}-{project['version']}"
    name = f"{title}-py3-none-any.whl"
    records: List[str] = []
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:

        def add(path: str, content: bytes) -> None:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            records.append(f"{path},sha256={digest},{len(content)}\n")
            wheel.writestr(path, content)

        for path in _files():
            with open(os.path.join(HERE, path), "rb") as file:
                add(path, file.read())
        add(f"{title}.dist-info/METADATA", _metadata(project).encode())
        add(f"{title}.dist-info/WHEEL", b"Wheel-Version: 1.0\nGenerator: overfly\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        records.append(f"{title}.dist-info/RECORD,,\n")
        wheel.writestr(f"{title}.dist-info/RECORD", "".join(records))
    return name


def build_sdist(sdist_directory: str, config_settings: Optional[Dict[str, Any]] = None) -> str:
    """Writes the sources as an archive; returns its name."""
    project = _project()
    title = f"{project['name']}-{project['version']}"
    with tarfile.open(os.path.join(sdist_directory, f"{title}.tar.gz"), "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for path in ["pyproject.toml", "README.md", "build_backend.py", *_files()]:
            archive.add(os.path.join(HERE, path), f"{title}/{path}", recursive=False)
    return f"{title}.tar.gz"
