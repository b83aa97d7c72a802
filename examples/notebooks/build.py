"""Make the notebooks from the scripts beside this folder, executed.

    python examples/notebooks/build.py [NAME ...]       # all five: a few minutes on one core

The script is the source: edit it, not the notebook. tests/test_examples.py fails where the two differ.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

HERE = Path(__file__).resolve().parent
NAMES = ("exact_dynamics", "long_tail", "many_classes", "kernel_prediction", "young_cross_entropy")


def notebook_of(name: str) -> NotebookNode:
    """The cells of a script, not executed; ids count up, so that the same script gives the same notebook."""
    notebook = jupytext.read(HERE.parent / f"{name}.py")
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    for number, cell in enumerate(notebook.cells):
        cell["id"], cell.metadata = f"cell-{number}", {}
    return notebook


def execute(notebook: NotebookNode, folder: Path) -> None:
    """Run its cells in `folder`, in a kernel on this machine."""
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, startup_timeout=600, record_timing=False, resources=resources)
    client.extra_arguments = ["--log-level=ERROR"]  # it would warn that a port of this machine is open to itself
    client.execute()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="which; all by default")
    for name in parser.parse_args().names or NAMES:
        notebook = notebook_of(name)
        execute(notebook, HERE)
        # Lines printed one by one arrive as many outputs: joined, they read as the script prints them.
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = joined(cell.outputs)
        notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
        nbformat.write(notebook, HERE / f"{name}.ipynb")
        print(f"{name}.ipynb: {(HERE / f'{name}.ipynb').stat().st_size / 1000:.0f} kB", flush=True)


def joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Neighbouring texts of one stream as one."""
    found: list[NotebookNode] = []
    for output in outputs:
        if found and output.output_type == "stream" == found[-1].output_type and output.name == found[-1].name:
            found[-1].text += output.text
        else:
            found.append(output)
    return found


if __name__ == "__main__":
    main()
