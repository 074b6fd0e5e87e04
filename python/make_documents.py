#!/usr/bin/env python3
"""Writes the dataclasses of package/uzswap/documents from the schemas in docs/reference/schema.

With --check it writes nothing, and ends with exit code 1 where a file is not what it would write.
"""

import json
import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).parent
SCHEMAS = HERE.parent / "docs" / "reference" / "schema"

# The module, its schema, the part of it, the name of its dataclass, and the command.
DOCUMENTS = [
    ("compare", "compare-1.json", None, "Compare", "`uzswap compare`"),
    ("compare_limit", "compare-limit-1.json", None, "CompareLimit", "`uzswap compare --limit`"),
    ("capture", "capture-1.json", None, "Capture", "`uzswap capture`"),
    ("advise", "advise-1.json", None, "Advise", "`uzswap advise`"),
    ("stats", "stat-1.json", "stats", "Stats", "`Store.stats`"),
]

PLAIN = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}


class Module:
    """The dataclasses of one schema, in the order in which they need each other."""

    def __init__(self, schema):
        self.definitions = schema.get("$defs", {})
        # The schema that owns a name: a definition owns its own.
        self.named = {camel(name): of for name, of in self.definitions.items()}
        self.classes = {}

    def type_of(self, schema, names):
        """The type of a schema in Python; `names` are for a class of its own, the best first."""
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[1]
            return self.add([camel(name)], self.definitions[name])
        if "enum" in schema:
            return f"Literal[{', '.join(map(quoted, schema['enum']))}]"
        if "const" in schema:
            return f"Literal[{quoted(schema['const'])}]"
        if "anyOf" in schema:
            # Null comes last. Of several objects, the first field makes the name.
            choices = sorted(schema["anyOf"], key=lambda one: one.get("type") == "null")
            fields = [next(iter(one["properties"])) for one in choices if "properties" in one]
            if len(fields) == 1:
                return " | ".join(self.type_of(one, names) for one in choices)
            of_field = iter([names[0] + camel(field)] for field in fields)
            return " | ".join(
                self.type_of(one, next(of_field) if "properties" in one else names)
                for one in choices
            )
        kind = schema["type"]
        if isinstance(kind, list):
            return " | ".join(PLAIN[one] for one in kind)
        if kind == "array":
            singular = [name.removesuffix("s") for name in names]
            return f"list[{self.type_of(schema['items'], singular)}]"
        if kind == "object":
            return self.add(names, schema)
        return PLAIN[kind]

    def add(self, names, schema):
        """Adds the class of an object, once, by the first name that no other one has."""
        name = next(name for name in names if self.named.setdefault(name, schema) == schema)
        if name in self.classes:
            return name
        lines = ["@dataclass(frozen=True, kw_only=True, slots=True)", f"class {name}:"]
        lines += described('"""', schema.get("description", f"{name}."), '"""')
        lines.append("")
        for field, of in schema["properties"].items():
            if "description" in of:
                lines += described("#: ", of["description"], "")
            kind = self.type_of(of, [camel(field), name + camel(field)])
            if field not in schema["required"]:
                kind = f"{kind} | None = None"
            lines.append(f"    {field}: {kind}")
        self.classes[name] = lines
        return name


def camel(name):
    return "".join(word.capitalize() for word in name.split("_"))


def quoted(value):
    return json.dumps(value)


def described(start, text, end):
    """A text as a docstring or comment of a class."""
    after = "    #: " if start == "#: " else "    "
    return textwrap.wrap(
        start + text + end,
        width=99,
        initial_indent="    ",
        subsequent_indent=after,
        break_on_hyphens=False,
    )


def text_of(schema_name, part, class_name, command):
    schema = json.loads((SCHEMAS / schema_name).read_text())
    module = Module(schema)
    module.add([class_name], schema["$defs"][part] if part else schema)
    body = "\n\n\n".join("\n".join(lines) for lines in module.classes.values())
    literal = "from typing import Literal\n" if "Literal[" in body else ""
    return (
        f'"""The document of {command}.\n\nmake_documents.py wrote it from {schema_name}.\n"""\n\n'
        f"from dataclasses import dataclass\n{literal}\n\n{body}\n"
    )


def main():
    stale = []
    for module, schema, part, class_name, command in DOCUMENTS:
        path = HERE / "package" / "uzswap" / "documents" / f"{module}.py"
        text = text_of(schema, part, class_name, command)
        if not path.exists() or path.read_text() != text:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text)
    if stale and "--check" in sys.argv:
        sys.exit(f"not what python/make_documents.py writes: {', '.join(stale)}")


if __name__ == "__main__":
    main()
