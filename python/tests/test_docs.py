"""What is written works: docstrings, the guide, the notebook; the documents and the types.

The cells of the notebook are run in order in one namespace, without Jupyter: neither its display
nor its magic commands are tested.
"""

import contextlib
import doctest
import importlib.util
import inspect
import io
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import uzswap

PACKAGE = Path(__file__).parent.parent


def modules():
    yield uzswap
    for module in pkgutil.walk_packages(uzswap.__path__, "uzswap."):
        if not module.name.endswith("__main__"):
            yield importlib.import_module(module.name)


class Docstrings(unittest.TestCase):
    def examples(self, text, name):
        """Runs the examples of a docstring. Returns how many there are."""
        test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
        told = io.StringIO()
        result = doctest.DocTestRunner().run(test, out=told.write)
        self.assertEqual(result.failed, 0, told.getvalue())
        return result.attempted

    def test_examples(self):
        """Those of classes in Rust, too, which doctest's own search does not see."""
        count = 0
        texts = {}
        for module in modules():
            for name, thing in vars(module).items():
                of = str(getattr(thing, "__module__", ""))
                if name.startswith("_") or not of.startswith("uzswap"):
                    continue
                texts[name] = inspect.getdoc(thing) or ""
                if inspect.isclass(thing):
                    for method, of in vars(thing).items():
                        texts[f"{name}.{method}"] = getattr(of, "__doc__", "") or ""
        for name, text in texts.items():
            count += self.examples(text, name)
        self.assertGreater(count, 20)

    def test_everything_public_has_one(self):
        for name in uzswap.__all__:
            thing = getattr(uzswap, name)
            if not callable(thing):
                continue
            self.assertTrue(thing.__doc__, name)
            for method, of in vars(thing).items() if inspect.isclass(thing) else ():
                if not method.startswith("_") and callable(getattr(thing, method)):
                    self.assertTrue(of.__doc__, f"{name}.{method}")

    def test_the_guide(self):
        guide = PACKAGE.parent / "docs/how-to/use-from-python.md"
        with in_a_folder():
            self.assertGreater(self.examples(guide.read_text(), "use-from-python.md"), 10)


class Notebooks(unittest.TestCase):
    def test_cells_run_in_order(self):
        # test_fleet.py runs the one that needs samples.
        fleet = PACKAGE / "examples/fleet.ipynb"
        notebooks = sorted(set(PACKAGE.glob("examples/*.ipynb")) - {fleet})
        self.assertTrue(notebooks)
        for path in notebooks:
            names = {"__name__": "__main__"}
            notebook = json.loads(path.read_text())
            self.assertEqual(notebook["nbformat"], 4)
            cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
            self.assertTrue(cells)
            with in_a_folder(), contextlib.redirect_stdout(io.StringIO()):
                for number, cell in enumerate(cells):
                    self.assertEqual(cell["outputs"], [], "outputs are left out of the repository")
                    exec(compile("".join(cell["source"]), f"{path.name}[{number}]", "exec"), names)


class Types(unittest.TestCase):
    def test_documents_are_those_of_the_schemas(self):
        subprocess.run([sys.executable, PACKAGE / "make_documents.py", "--check"], check=True)

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed")
    def test_mypy(self):
        config = f"--config-file={PACKAGE / 'pyproject.toml'}"
        typed = PACKAGE / "tests" / "typed.py"
        for tool in (["mypy", config, "-p", "uzswap"], ["mypy", config, typed]):
            self.check(tool)
        self.check(["mypy.stubtest", "uzswap._uzswap", "--ignore-missing-stub"])

    def check(self, tool):
        with in_a_folder():
            told = subprocess.run([sys.executable, "-m", *tool], capture_output=True, text=True)
        self.assertEqual(told.returncode, 0, told.stdout + told.stderr)


@contextlib.contextmanager
def in_a_folder():
    """Work in a folder of its own: the package is the one installed, and files go there."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


if __name__ == "__main__":
    unittest.main()
