"""docs/astf.md says what is so: its commands run, its tables name everything that is there."""

from __future__ import annotations

import os
import re
import shlex
import unittest

from overfly import astf
from overfly.astf.tunables import TUNABLES
from tests.running import PYTHON, command

PAGE = os.path.join(PYTHON, os.pardir, "docs", "astf.md")


class Docs(unittest.TestCase):
    def setUp(self) -> None:
        with open(PAGE, encoding="utf-8") as file:
            self.page = file.read()

    def test_commands(self) -> None:
        block = re.search(r"```sh\ncd python\n(.*?)```", self.page, re.DOTALL)
        assert block is not None
        for line in block[1].splitlines():
            words = shlex.split(line.split(" > ")[0])
            self.assertEqual(words[:3], ["python3", "-m", "overfly.astf"])
            done = command(*words[3:], folder=PYTHON)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_tables_name_everything(self) -> None:
        words = set(re.findall(r"\w+", self.page))
        errors = {name for name in astf.__all__ if name.startswith("ASTFError")}
        self.assertEqual(set(astf.__all__) - errors - words, set())
        methods = {name for name in vars(astf.ASTFProgram) if not name.startswith("_") and callable(getattr(astf.ASTFProgram, name))}
        self.assertEqual(methods - {"is_stream", "longest_delay_us"} - words, set())

    def test_the_tunables_ranges(self) -> None:
        for name, tunables in TUNABLES.items():
            row = re.search(rf"^\| {name}\. \| (.*) \|$", self.page, re.MULTILINE)
            assert row is not None, name
            said = row[1].replace("2³⁰", str(2**30))
            for each, tunable in tunables.items():
                dagger = "†" if tunable.per_template else ""
                self.assertRegex(said, rf"\b{each}{dagger}(?!†)", each)
                if not tunable.is_address:
                    after = said[re.search(rf"\b{each}\b", said).end() :]  # type: ignore[union-attr]
                    span = re.search(r"(\d+)–(\d+)(?: \((\d+)\))?", after)
                    assert span is not None
                    default = None if span[3] is None else int(span[3])
                    self.assertEqual((int(span[1]), int(span[2]), default), (tunable.low, tunable.high, tunable.default), each)


if __name__ == "__main__":
    unittest.main()
