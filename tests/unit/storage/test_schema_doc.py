from pathlib import Path

from hpcrl.storage.schema import TABLES
from hpcrl.storage.schema_doc import markdown

README = Path(__file__).parents[3] / "analysis" / "README.md"


def test_the_page_in_the_tree_is_the_generated_one() -> None:
    assert README.read_text() == markdown(), "run `hpcrl schema > analysis/README.md`"


def test_every_column_is_on_the_page() -> None:
    page = markdown()
    for table in TABLES.values():
        for column in table.columns:
            assert f"| `{column.name}` | {column.dtype} |" in page
