"""Runs every python block of README.md and docs/*.md, those of one page in order and in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_blocks_run(run_python, page):
    blocks = BLOCK.findall(page.read_text())
    if not blocks:
        pytest.skip("no python block")
    # Compiled one by one, so that an error names the block and the line in it.
    steps = [
        f"exec(compile({block!r}, {f'{name(page)}, block {i}'!r}, 'exec'))"
        for i, block in enumerate(blocks, 1)
    ]
    run_python("\n".join(steps))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_to_files_lead_somewhere(page):
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_environment_page_lists_what_the_code_reads():
    """Each SIMDEV_* variable named by the code has a row in docs/environment.md, and the other way round."""
    read: set[str] = set()
    macros = {"SIMDEV_ASSERT"}  # quoted names in generated code
    for pattern in ["csrc/**/*.cpp", "csrc/**/*.h", "torch_simdev/*.py", "tests/test_cases.py", "setup.py"]:
        for path in ROOT.glob(pattern):
            read |= set(re.findall(r'"(SIMDEV_[A-Z_]+)"', path.read_text()))
    rows = re.findall(r"^\| `(SIMDEV_[A-Z_]+)`", (ROOT / "docs/environment.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(read - macros)
