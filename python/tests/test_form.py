"""The JSON form is as its schema says."""

from __future__ import annotations

import json
import unittest
from typing import Any, Dict

from overfly.astf.__main__ import schema
from overfly.astf.rehearsal import _Flow
from overfly.astf.tunables import TUNABLES
from tests.running import WithProfiles
from tests.test_profiles import EXPECTED

KINDS = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}


class Invalid(Exception):
    """Where something is not as the schema says."""


def validate(rules: Dict[str, Any], value: Any, root: Dict[str, Any], where: str = "$") -> None:
    """As much of JSON Schema (2020-12) as the schema uses; an unknown word in it is an error."""
    rest = {key: rule for key, rule in rules.items() if key not in ("$schema", "$defs", "title", "description")}
    for key, rule in rest.items():
        if key == "$ref":
            validate(root["$defs"][rule.rsplit("/", 1)[1]], value, root, where)
        elif key == "type":
            if not isinstance(value, KINDS[rule]) or (rule in ("integer", "number") and isinstance(value, bool)):
                raise Invalid(f"{where} is no {rule}: {value!r:.60}")
        elif key == "const" and value != rule or key == "enum" and value not in rule:
            raise Invalid(f"{where} is {value!r:.60}, not {rule}")
        elif key == "minimum" and value < rule or key == "maximum" and value > rule:
            raise Invalid(f"{where} is {value}: {key} {rule}")
        elif key == "minLength" and len(value) < rule or key == "maxLength" and len(value) > rule:
            raise Invalid(f"{where} has {len(value)} characters: {key} {rule}")
        elif key == "required" and set(rule) - set(value):
            raise Invalid(f"{where} lacks {sorted(set(rule) - set(value))}")
        elif key == "properties":
            for name in set(rule) & set(value):
                validate(rule[name], value[name], root, f"{where}.{name}")
        elif key == "additionalProperties" and set(value) - set(rules["properties"]):
            raise Invalid(f"{where} has {sorted(set(value) - set(rules['properties']))} too")
        elif key == "items":
            for index, each in enumerate(value):
                validate(rule, each, root, f"{where}[{index}]")
        elif key == "oneOf":
            matching = [each for each in rule if each["properties"]["op"]["const"] == value.get("op")]
            if len(matching) != 1:
                raise Invalid(f"{where}: {len(matching)} rules are for {value!r:.60}")
            validate(matching[0], value, root, where)
        elif key not in ("const", "enum", "minimum", "maximum", "minLength", "maxLength", "required", "additionalProperties"):
            raise Invalid(f"the schema's word {key!r} is unknown here")


class Form(WithProfiles):
    schema: Dict[str, Any] = json.loads(schema())

    def test_every_profile_is_valid(self) -> None:
        used = set()
        for name in EXPECTED:
            with self.subTest(profile=name):
                form = self.compiled(f"{name}.py")
                validate(self.schema, form, self.schema)
                used |= {command["op"] for program in form["programs"] for command in program["commands"]}
                for program in form["programs"]:
                    self.assertEqual(len(program["lines"]), len(program["commands"]))
        known = {each["properties"]["op"]["const"] for each in self.schema["$defs"]["command"]["oneOf"]}
        # The rest of the operations: see test_api.
        self.assertEqual(known - used, {"add_timer"})

    def test_the_validator_refuses(self) -> None:
        good = self.compiled("udp.py")
        for change in (
            lambda form: form.update(version=2),
            lambda form: form["templates"][0]["client"].update(port=0),
            lambda form: form["templates"][0]["client"].pop("cps"),
            lambda form: form["programs"][0]["commands"][0].update(op="dance"),
            lambda form: form["programs"][0]["commands"][0].update(more=1),
            lambda form: form["buffers"][0].update(bytes="50"),
        ):
            form = json.loads(json.dumps(good))
            change(form)
            with self.assertRaises(Invalid):
                validate(self.schema, form, self.schema)

    def test_the_schema_has_the_tunables_ranges(self) -> None:
        for name in ("tcp", "ip", "ipv6", "path"):
            rules = self.schema["$defs"][name]
            self.assertEqual(set(rules["properties"]), set(TUNABLES[name]))
            for each, tunable in TUNABLES[name].items():
                if not tunable.is_address:
                    self.assertEqual((rules["properties"][each]["minimum"], rules["properties"][each]["maximum"]), (tunable.low, tunable.high))
                self.assertEqual(each in rules["required"], tunable.default is not None)

    def test_every_operation_can_be_rehearsed(self) -> None:
        for each in self.schema["$defs"]["command"]["oneOf"]:
            self.assertTrue(hasattr(_Flow, "do_" + each["properties"]["op"]["const"]), each)


if __name__ == "__main__":
    unittest.main()
