"""The site builds strictly and without a network, and its reference is that of the source."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

import skylark.aio
from skylark.broker.config import BrokerConfig
from skylark.broker.stats.metrics import ROWS
from skylark.cli.main import cli
from skylark.client import public_names
from skylark.core.config import settings
from skylark.namesrv.config import ALWAYS_BLACK_LISTED, READ_AT_START, NamesrvConfig
from skylark.testing import testing_exports
from skylark.wire.catalogue import CATALOGUE
from tools.reference import commands
from tools.reference.__main__ import FOLDER, PAGES, stale_pages
from tools.reference.client_options import type_text
from tools.reference.comments import Remark, remarks
from tools.reference.markdown import slug, table
from tools.reference.settings import broker_change, namesrv_change
from tools.site_hooks import links_to_itself, plain_bars, site_link

ROOT = Path(__file__).parent.parent


def build(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder, *arguments],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


# ---- the site ------------------------------------------------------------------------------------


def test_every_document_is_a_page(site: Path) -> None:
    documents = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    pages = {path.parent.relative_to(site) for path in site.rglob("index.html")}
    names = {document.with_suffix("") for document in documents} - {Path("index")}
    assert names | {Path(), Path("changelog")} == pages


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("index.md", "[a](../README.md) [b](cli.md)", ["../README.md"]),
        ("how-to/a.md", "[a](a.md) [b](a.md#x) [c](#x) [d](../a.md)", ["a.md"]),
        ("a.md", "[a](../CHANGELOG.md) [b](https://example.org/a.md)", []),
    ],
)
def test_links_to_the_page_itself_are_found(page: str, text: str, expected: list[str]) -> None:
    assert links_to_itself(text, page) == expected


def test_readers_fetch_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(
        r"""<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link[^>]+href="https?:"""
    )
    assert [path for path in site.rglob("*.html") if loaded.search(path.read_text())] == []


def test_links_out_of_the_documents_lead_to_copies(site: Path) -> None:
    page = (site / "spark" / "index.html").read_text()
    assert 'href="../files/examples/pipeline/orders.yaml"' in page
    example = Path("examples/pipeline/orders.yaml")
    assert (site / "files" / example).read_bytes() == (ROOT / example).read_bytes()
    assert 'href=".."' in (site / "cli" / "index.html").read_text()  # the README: the first page


def test_the_pictures_are_elements_of_their_page(site: Path) -> None:
    page = (site / "design" / "architecture" / "index.html").read_text()
    assert re.findall(r'<svg class="skylark-picture" id="([^"]+)"', page) == [
        "send", "held-pull", "consumed-message", "transaction",
    ]  # fmt: skip
    assert "data-md-color-scheme=slate] .skylark-picture" in page
    assert re.search(r"<img[^>]*pictures/", page) is None  # no image is left
    links = re.findall(r'<a href="\.\./pictures/([^"]+)\.svg"><svg', page)
    assert links == ["send", "held-pull", "consumed-message", "transaction"]
    for picture in re.findall(r'<svg class="skylark-picture".*?</svg>', page, re.DOTALL):
        root = ElementTree.fromstring(picture)  # as it was written: nothing was taken for Markdown
        assert root.get("aria-label", "").startswith("The way of ")
        assert (ROOT / f"docs/design/pictures/{root.get('id')}.svg").read_text().strip() == picture


def test_a_phone_says_that_there_is_more_of_a_picture(site: Path) -> None:
    """The part that hangs out on the right is not announced by a scroll bar there."""
    styles = (site / "stylesheets" / "site.css").read_text()
    _, _, phone = styles.partition("(max-width: 44.9375em)")
    text = re.search(r'a:has\(> \.skylark-picture\)::before \{\s+content: "([^"]+)"', phone)
    assert text is not None
    assert len(text[1]) <= 40  # what 320 pixels hold
    pages = [path.read_text() for path in site.rglob("*.html")]
    pictures = sum(page.count('<svg class="skylark-picture"') for page in pages)
    links = sum(len(re.findall(r'<a [^>]*><svg class="skylark-picture"', page)) for page in pages)
    assert pictures == links >= 9  # all have the link to which the styles belong


@pytest.mark.parametrize(
    "link", ["nosuch.md", "../nosuch.md", "cli.md#nosuch", "#nosuch", "../README.md", "index.md"]
)
def test_a_dead_link_fails(link: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# T\n\n[there]({link})\n")
    (tmp_path / "docs" / "cli.md").write_text("# T\n")
    config = (ROOT / "mkdocs.yml").read_text()
    config = config.partition("\nnav:")[0].replace("tools/", f"{ROOT}/tools/")
    (tmp_path / "mkdocs.yml").write_text(config)
    done = build(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert done.returncode != 0
    assert link in done.stderr


@pytest.mark.parametrize(
    ("link", "page", "expected"),
    [
        ("cli.md", "spark.md", "cli.md"),
        ("../cli.md", "how-to/backup.md", "../cli.md"),
        ("../README.md", "cli.md", "index.md"),
        ("../../README.md", "how-to/backup.md", "../index.md"),
        ("../mkdocs.yml", "cli.md", "files/mkdocs.yml"),
        ("../../mkdocs.yml", "how-to/backup.md", "../files/mkdocs.yml"),
        ("../nosuch.yml", "cli.md", "../nosuch.yml"),
        ("../../other/file", "cli.md", "../../other/file"),
    ],
)
def test_links_as_the_site_has_them(link: str, page: str, expected: str) -> None:
    assert site_link(link, page) == expected


def test_bars_in_code_in_tables() -> None:
    text = "| `a \\|\\| b` | c \\| d |\n\n`a \\| b`\n"
    assert plain_bars(text) == "| `a || b` | c \\| d |\n\n`a \\| b`\n"


def test_the_metrics_that_are_explained_exist() -> None:
    text = (ROOT / "docs" / "how-to" / "monitoring.md").read_text()
    named = set(re.findall(r"\b(?:rocketmq|skylark)_[a-z_]+[a-z]\b", text))
    assert len(named) > 20
    assert named <= {row.name for row in ROWS}


# ---- the reference -------------------------------------------------------------------------------


def test_the_reference_is_up_to_date() -> None:
    assert stale_pages() == [], "run make reference"
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(PAGES)


def test_every_request_setting_and_command_is_there() -> None:
    requests = (FOLDER / "requests.md").read_text()
    assert [row.name for row in CATALOGUE.values() if row.name not in requests] == []
    for config, name in ((BrokerConfig, "broker-config.md"), (NamesrvConfig, "namesrv-config.md")):
        text = (FOLDER / name).read_text()
        assert [info.java for info in settings(config) if f"`{info.java}`" not in text] == []
    pages = (FOLDER / "cli.md").read_text()
    found = list(commands.all_commands(cli, click.Context(cli, info_name="skylark")))
    assert len(found) > 40
    assert [path for path, *_ in found if f"\n## {path}\n" not in pages] == []


def test_every_public_name_is_there() -> None:
    text = (FOLDER / "api.md").read_text()
    names = {*public_names.__all__, *skylark.aio.__all__, *testing_exports.__all__}
    missing = {
        name for name in names if f"\n### {name}\n" not in text and f"| `{name}` " not in text
    }
    assert missing == set()
    for part in ("topics", "groups", "offsets", "stats", "messages", "dlq", "settings"):
        methods = re.findall(rf"^#### admin\.{part}\.(\w+)$", text, re.MULTILINE)
        assert len(methods) >= 2, part
    assert re.findall(r"``|:(?:class|meth|mod|func):", text.replace("```", "")) == []


def test_every_row_says_what_it_means() -> None:
    for name in PAGES:
        for line in (FOLDER / name).read_text().splitlines():
            if name != "requests.md" and line.startswith("| `"):
                cells = re.split(r"(?<!\\)\|", line)[1:-1]
                meaning = cells[-2] if name.endswith("-config.md") and len(cells) > 3 else cells[-1]
                assert meaning.strip(), f"{name}: {line}"


def examples() -> list[list[str]]:
    """The words of all lines of the page that are commands, up to where another command begins."""
    shown = re.findall(r"^```text\n(.*?)^```", (FOLDER / "cli.md").read_text(), re.MULTILINE | re.S)
    lines = [line.strip() for block in shown for line in block.splitlines()]
    found = []
    for line in lines:
        if "skylark " not in line or "[OPTIONS]" in line:
            continue
        words = shlex.shlex(
            line[line.index("skylark ") :].removesuffix(')"'), punctuation_chars="|>"
        )
        words.whitespace_split = True
        found.append(list(itertools.takewhile(lambda word: word[0] not in "|>", words)))
    return [shlex.split(" ".join(words)) for words in found]


def parse(command: click.Command, words: list[str], parent: click.Context | None = None) -> None:
    """Parse a command line without running it; files that do not exist are fine."""
    with command.make_context(command.name, words, parent) as context:
        if isinstance(command, click.Group):
            rest = [*context._protected_args, *context.args]
            _, below, more = command.resolve_command(context, rest)
            assert below is not None
            parse(below, more, context)


def test_every_example_is_a_command_line_that_can_be_typed() -> None:
    found = examples()
    assert len(found) > 45
    wrong = {}
    for words in found:
        try:
            parse(cli, words[1:])
        except click.UsageError as error:
            if "does not exist" not in error.message:
                wrong[" ".join(words)] = error.message
    assert wrong == {}


def test_what_a_change_at_run_time_does() -> None:
    keys = ["maxMessageSize", "listenPort", "storePathRootDir"]
    assert list(map(broker_change, keys)) == ["at once", "restart", "file only"]
    keys = ["orderMessageEnable", "listenPort", "kvConfigPath"]
    assert list(map(namesrv_change, keys)) == ["at once", "restart", "file only"]
    assert {info.java for info in settings(NamesrvConfig)} >= READ_AT_START | ALWAYS_BLACK_LISTED


class Example:
    """A class with remarks."""

    # --- where ---

    port: int = 9876  #: port to listen on
    #: address to listen on;
    #: loopback unless given
    host: str = "127.0.0.1"

    # --- how -----------
    #: not about the next one: a line between them

    fast: bool = True  # said to programmers only


def test_remarks_are_read_from_the_source() -> None:
    assert remarks(Example) == {
        "port": Remark("port to listen on", "where"),
        "host": Remark("address to listen on; loopback unless given", "where"),
        "fast": Remark("", "how"),
    }


def test_pieces_of_markdown() -> None:
    assert (
        table(["A", ""], [["x|y", "`a\\|b` "]]) == "| A |  |\n| --- | --- |\n| x\\|y | `a\\|b` |\n"
    )
    assert slug("SEND_MESSAGE (10)") == "send_message-10"
    assert slug("skylark topic  list") == "skylark-topic-list"
    assert type_text(int | None) == "integer"
    assert type_text(tuple[str, str]) == "tuple of text, text"
