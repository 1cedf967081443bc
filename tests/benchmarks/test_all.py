"""benchmarks/all.py: tables, their page, and what the time leaves out."""

import pytest

SCRIPTS = {
    "quick": "print('| a |')",
    "failing": "print('half'); raise SystemExit(1)",
    "long": "import time; print('half', flush=True); time.sleep(600)",
    "late": "print('| b |')",
}


def test_tables_in_the_time_there_is(script, tmp_path, monkeypatch, capsys):
    make_tables = script("all")
    here, pages = tmp_path / "benchmarks", tmp_path / "docs"
    for folder in (here, pages):
        folder.mkdir()
    for name, text in SCRIPTS.items():
        (here / f"{name}.py").write_text(text)
    monkeypatch.setattr(make_tables, "HERE", here)
    monkeypatch.setattr(make_tables, "PAGES", pages)
    with pytest.raises(SystemExit, match="no new table of failing; see above"):
        make_tables.main([*SCRIPTS, "--minutes", "0.1"])
    printed = capsys.readouterr().out
    assert "0.1 minutes are over: no new table of long, late." in printed
    assert 'make bench ARGS="long late"' in printed
    [table] = here.rglob("*.md")
    assert (table.name, table.read_text()) == ("quick.md", "| a |\n")
    [page] = pages.iterdir()
    assert page.name == f"{table.parent.name}.md"
    once = page.read_text()
    assert "## Quick { #quick }\n\n`python benchmarks/quick.py`\n" in once
    assert f'--8<-- "{table.relative_to(tmp_path)}"\n' in once
    make_tables.main(["quick"])
    assert page.read_text() == once
