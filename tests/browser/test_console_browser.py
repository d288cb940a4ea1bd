# SPDX-License-Identifier: Apache-2.0

"""The console in a real Chromium. No page that a test visits has an error (``tests/kit/browser.py``)."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import tarfile
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote_plus, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from examples.demo import cluster
from examples.demo.asking import Asker
from examples.demo.day import Query
from tests.kit.api_objects import REGION, ZONE, listed
from tests.kit.browser import FaultyPageError, Scheme, running_chromium, visiting
from tests.kit.console_pages import untried
from tests.kit.crowded_zone import balanced, crowded
from tests.kit.lost_zone import three_zones
from tests.kit.made_once import made_once
from tests.kit.skewed import balanced_if, skewed
from tests.kit.this_machine import needs_tool
from tests.kit.topodns_process import COMMAND, Process, Server, reload, serving

IN_ZONE_B, IN_ZONE_C = "10.244.6.10", "10.244.11.10"
EXPLAINED = f"/explain?name=memcached.shop&client={IN_ZONE_B}"
SERVICE = "/services/shop/memcached"
LISTS = ("/", "/map", "/services")
PAGES = (
    *LISTS,
    "/map?within=topology.kubernetes.io/zone%3Deu-west-a",
    f"{SERVICE}?client={IN_ZONE_B}&keys=-",
    "/nodes/local/node-a1",
    "/findings?code=NodeWithoutZone",
    "/gain?price=0.02&traffic=3000",
    "/explain",
    EXPLAINED,
    "/explain?name=svc/memcache&namespace=shop&client=nobody",
    "/search?text=a1",
    "/tail",
)
REFUSED = r"(: |status of )40[04]\b"  # what is not known: the page says so
FLAGS = {"http": "127.0.0.1:0", "trusted-forwarder": "127.0.0.0/8"}
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
PHONE = 400
WIDER = """() => [...document.querySelectorAll(".scroll:not(.picture)")]
    .filter(region => region.scrollWidth > region.clientWidth).map(region => region.ariaLabel)"""
NARROW = {"width": 360, "height": 740}
SHADES = 64  # bytes of which no blank picture has so many different ones

# axe-core finds what keeps people from using a page: with a screen reader, with little sight, by keyboard.
AXE = "4.14.1"
# As npm writes it into lock files.
INTEGRITY = "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
SERIOUS = ("serious", "critical")
FETCHING = 120.0  # seconds

RUN = """async () => (await axe.run({resultTypes: ["violations"]})).violations.flatMap(
    ({id, impact, help, nodes}) => nodes.map(({target}) => [impact, `${id}: ${help}: ${target.join(" ")}`]))"""

HOSTILE = "<img src=x onerror=alert(1)>"
TAKEN_IN = "img, iframe, main script, [onerror]"  # what a page has only if it took a name for HTML


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("console")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """Serve the example cluster. Who asks on loopback can name clients."""
    cluster.write(cluster.example(), folder / "cluster.yaml")
    with serving(folder, folder / "cluster.yaml", flags=FLAGS) as running:
        yield running


@pytest.fixture(scope="module")
def hostile_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve the example cluster, with names in it that would run scripts."""
    text = json.dumps(cluster.example())
    for name in ("node-a1", "eu-west-a", "topology.example.com/rack", "storefront-7drggrtsq"):
        text = text.replace(name, name + HOSTILE)
    for name in ("memcached-0", "memcached-1"):
        text = text.replace(f'"name": "{name}', f'"name": "{HOSTILE}{name}')
    folder = tmp_path_factory.mktemp("hostile")
    cluster.write(json.loads(text), folder / "cluster.yaml")
    with serving(folder, folder / "cluster.yaml", flags=FLAGS) as running:
        yield running


def at(server: Server, path: str) -> str:
    return f"http://{server.http}{path}"


def ask(server: Server, client: str, name: str) -> None:
    """Ask as a forwarder that names a client."""
    asker = Asker((server.host, server.port))
    asker.ask(Query("127.0.0.1", client, f"{name}.svc.cluster.local", "A"))
    asker.close()
    assert not asker.lost


def faults(page: Page) -> list[str]:
    """Return the serious and critical faults of a page: the rule, what it asks for, and where it is broken."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(axe_core())
    return [text for impact, text in page.evaluate(RUN) if impact in SERIOUS]


@cache
def axe_core() -> str:
    """Return axe-core, which npm fetches once, into ``.cache/``."""
    return (made_once("axe-core", [INTEGRITY.encode()], fetch_axe) / "axe.min.js").read_text()


def fetch_axe(folder: Path) -> None:
    """Put axe-core into a folder. Raises ValueError if it is not the one that we know."""
    npm = needs_tool("npm")
    command = (npm, "pack", "--silent", "--ignore-scripts", f"axe-core@{AXE}")
    subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=FETCHING)
    archive = folder / f"axe-core-{AXE}.tgz"
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != INTEGRITY:
        raise ValueError(f"axe-core {AXE} has integrity {found}, expected {INTEGRITY}")
    with tarfile.open(archive) as packed:
        script = packed.extractfile("package/axe.min.js")
        assert script is not None
        (folder / "axe.min.js").write_bytes(script.read())


def shades(picture: bytes) -> int:
    """Return how many different bytes a PNG holds, compressed line by line: text has many, an empty page a handful."""
    chunks, where = b"", 8
    while where < len(picture):
        size = int.from_bytes(picture[where : where + 4], "big")
        if picture[where + 4 : where + 8] == b"IDAT":
            chunks += picture[where + 8 : where + 8 + size]
        where += size + 12
    return len(set(zlib.decompress(chunks)))


def check_in_both_schemes(page: Page) -> None:
    """Light and wide, then dark and narrow: no serious fault, something to see, and no need to scroll sideways."""
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert shades(page.screenshot()) > SHADES
        page.set_viewport_size(NARROW)


FAULTY = """<!doctype html><html lang="en"><title>A page</title><meta http-equiv="Content-Security-Policy"
content="script-src 'unsafe-inline'; img-src 'none'"><main><h1>A page</h1>
<p style='color: #aaa; background: #fff'>Grey on white.</p></main><link rel=stylesheet href=missing.css>
<script>console.error('told')</script><script>missing()</script><script>alert('Hello')</script><img alt='' src=data:,>
</html>"""
ERRORS = (
    *("console: .*: told", "script: missing is not defined", "request: .*/missing.css: net::ERR_FILE_NOT_FOUND"),
    *("dialog: Hello", "console: .*Content Security Policy"),
)


def test_an_error_in_a_page_is_noticed(chromium: Browser, tmp_path: Path) -> None:
    """Of each sort, and what axe finds: so the tests below can fail."""
    (tmp_path / "page.html").write_text(FAULTY)
    found: list[str] = []
    with pytest.raises(FaultyPageError) as caught:
        visit(chromium, (tmp_path / "page.html").as_uri(), found)
    assert [fault.partition(":")[0] for fault in found] == ["color-contrast"]
    for error in ERRORS:
        assert re.search(error, str(caught.value)), error


def visit(chromium: Browser, url: str, found: list[str]) -> None:
    with visiting(chromium, url) as page:
        found += faults(page)


IN_PEACE, IN_OUTAGE = three_zones(), cluster.changed(cluster.example(), lost={"eu-west-b"})
WIDTHS = (1280, 768, 400)
FIRST_SIGHT = (
    re.compile("10 clients in eu-west-b get nothing of shop/orders-db"),  # how many, where, of what
    re.compile("(in this dump|since .* UTC)"),
    re.compile("Its only endpoint there is not ready"),
    re.compile(r"kubectl -n shop annotate service orders-db --overwrite .*zone,\*'"),
)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("items", "wrong"), [(IN_PEACE, False), (IN_OUTAGE, True)], ids=["peace", "outage"])
def test_what_is_wrong_now(
    chromium: Browser, tmp_path: Path, items: list[cluster.Item], wrong: bool, width: int
) -> None:
    """Without scrolling, somebody sees which Service, where, how many clients, and what to do; or that all is well."""
    cluster.write(items, tmp_path / "cluster.yaml")
    with (
        serving(tmp_path, tmp_path / "cluster.yaml", flags={**FLAGS, "forwarder-service": "off"}) as running,
        visiting(chromium, at(running, "/"), width=width, height=800) as page,
    ):
        worst = rf"{FIRST_SIGHT[0].pattern}, and \d more" if wrong else "Nothing is wrong"
        expect(page).to_have_title(re.compile(f"^{worst} · topodns$"))
        expect(page.locator("h1")).to_have_text(re.compile(r"^\d things are wrong$" if wrong else f"^{worst}$"))
        first = page.locator(".troubles > li").first if wrong else page.locator("h2#wrong + p")
        for text in FIRST_SIGHT if wrong else [re.compile("Nothing is wrong: every client gets an endpoint of 2")]:
            expect(first).to_have_text(text)
        box = first.bounding_box()
        assert box is not None and box["y"] + box["height"] <= 800
        assert page.locator(".tile.good").count() == (0 if wrong else 3)
        assert faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_each_page_has_a_row() -> None:
    """No page is left out."""
    assert not untried(PAGES), "add them to PAGES"


@pytest.mark.parametrize("path", PAGES)
def test_a_page(chromium: Browser, server: Server, path: str) -> None:
    """Each page of a server."""
    allowed = REFUSED if "nobody" in path else ""
    with visiting(chromium, at(server, path), allowed=allowed) as page:
        check_in_both_schemes(page)


LABELLED = """() => [...document.querySelectorAll("main tbody td")].filter(cell => !cell.dataset.label
    || cell.checkVisibility() && !getComputedStyle(cell, "::before").content.includes(cell.dataset.label)
).map(cell => cell.outerHTML)"""


@pytest.mark.parametrize("path", PAGES)
def test_rows_are_cards_on_a_phone(chromium: Browser, server: Server, path: str) -> None:
    """Each cell has the words of its column before it, and no region of a table scrolls sideways."""
    allowed = REFUSED if "nobody" in path else ""
    with visiting(chromium, at(server, path), width=PHONE, allowed=allowed) as page:
        assert page.evaluate(LABELLED) == []
        assert page.evaluate(WIDER) == []


def test_the_page_of_a_dump(chromium: Browser) -> None:
    """``topodns console`` has another first page, which simulates who gets what."""
    onto_stderr = ("sh", "-c", 'exec "$@" >&2', "sh", *COMMAND)  # where the lines of a process are read
    process = Process(["console", str(cluster.EXAMPLE)], command=onto_stderr)
    try:
        url = process.wait_for(r"^http://\S+/$")[0]
        with visiting(chromium, url) as page:
            expect(page.locator("main")).to_contain_text("orders-db")
            check_in_both_schemes(page)
    finally:
        assert process.end() == 0


@pytest.mark.parametrize("path", [path for path in PAGES if path in LISTS or "client=" in path])
def test_without_javascript(chromium: Browser, server: Server, path: str) -> None:
    """A page says the same."""
    allowed = REFUSED if "nobody" in path else ""
    said = []
    for javascript in (True, False):
        with visiting(chromium, at(server, path), javascript=javascript, allowed=allowed) as page:
            text = re.sub(r"\n+Copy\b", "", page.inner_text("main"))
            said.append(re.sub(r"\d+ (second|minute)s?", "some time", text))
    assert said[0] == said[1] != ""


def test_tail_without_javascript(chromium: Browser, server: Server) -> None:
    """It names the command that shows the same."""
    with visiting(chromium, at(server, "/tail"), javascript=False) as page:
        # Where only the test switches scripts off, Chromium does not show what stands here for others.
        assert "topodns tail" in (page.locator("noscript").text_content() or "")


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until an element has the focus."""
    wanted = page.locator(selector)
    for _ in range(20):
        page.keyboard.press("Tab")
        if wanted.evaluate("element => element === document.activeElement"):
            return
    pytest.fail(f"Tab does not lead to {selector}")


def complete(page: Page, field: str, text: str, proposal: str) -> None:
    """Type the beginning of a proposal, wait until it is offered, and take it by typing all of it.

    Without a display, Chromium draws no list from which the arrow keys could choose.
    """
    page.keyboard.type(text)
    page.wait_for_selector(f'{field}-proposals option[value="{proposal}"]', state="attached")
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type(proposal)


def test_explain_by_keyboard(chromium: Browser, server: Server) -> None:
    """Type, choose what is proposed, press Enter, read. The address of the answer gives the same to somebody else."""
    with visiting(chromium, at(server, "/explain")) as page:
        tab_to(page, "#name")
        complete(page, "#name", "memca", "memcached.shop")
        tab_to(page, "#client")
        complete(page, "#client", "storefront-7drggrtsq-kp", "pod/shop/storefront-7drggrtsq-kpj5c")
        page.keyboard.press("Enter")
        expect(page.locator("#answer")).to_contain_text("nearest")
        expect(page.locator("[data-rows=record] th")).to_have_text(["10.244.5.10", "10.244.7.7"])
        sent = parse_qs(urlsplit(page.url).query)
        assert (sent["name"], sent["client"]) == (["memcached.shop"], ["pod/shop/storefront-7drggrtsq-kpj5c"])
        link, read = page.url, page.inner_text("main")
    with visiting(chromium, link) as page:
        assert page.inner_text("main") == read


def test_search_by_keyboard(chromium: Browser, server: Server) -> None:
    """A slash, part of a name, what is proposed, Enter; what was found is one Service, and so its page."""
    with visiting(chromium, at(server, "/map")) as page:
        page.keyboard.press("/")
        expect(page.locator("#search")).to_be_focused()
        complete(page, "#search", "memca", "shop/memcached")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{SERVICE}")


def test_keys(chromium: Browser, server: Server) -> None:
    """They lead to the pages and tell what they do, but not while somebody types."""
    with visiting(chromium, at(server, "/explain")) as page:
        page.locator("#name").focus()
        page.keyboard.type("?/gs")
        expect(page.locator("#name")).to_have_value("?/gs")
        page.locator("h1").click()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("Search for everything")
        assert faults(page) == []
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        page.keyboard.type("gs")
        page.wait_for_url("**/services")


def test_a_command_is_copied(chromium: Browser, server: Server) -> None:
    """A button beside it does that, and a screen reader hears of it."""
    with visiting(chromium, at(server, "/findings?code=NodeWithoutZone")) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        command = page.locator(".command").first
        command.locator("+ .copy").click()
        expect(page.locator("#said")).to_contain_text("copied")
        assert page.evaluate("navigator.clipboard.readText()") == command.text_content()
        assert faults(page) == []


def test_explain_by_keyboard_without_javascript(chromium: Browser, server: Server) -> None:
    """The form works."""
    with visiting(chromium, at(server, "/explain"), javascript=False) as page:
        tab_to(page, "#name")
        page.keyboard.type("orders-db.shop")
        tab_to(page, "#client")
        page.keyboard.type(IN_ZONE_C)
        page.keyboard.press("Enter")
        expect(page.locator("#answer")).to_contain_text("unmet")


def test_a_change_is_seen(chromium: Browser, server: Server, folder: Path) -> None:
    """Without a reload: what goes is marked as gone and what comes as new, and a screen reader says so."""
    before, after = cluster.example(), cluster.example()
    (slice_,) = (item for item in after if item["metadata"]["name"].startswith("memcached-nrlng"))
    (gone,) = (endpoint for endpoint in slice_["endpoints"] if endpoint["addresses"] == ["10.244.7.7"])
    gone |= {"addresses": ["10.244.7.99"], "hostname": "memcached-9"}
    try:
        with visiting(chromium, at(server, SERVICE)) as page:
            expect(page.locator("#state")).to_have_text("live")
            page.evaluate("window.sameVisit = true")
            cluster.write(after, folder / "cluster.yaml")
            reload(server)
            rows = page.locator("[data-rows=endpoint]")
            expect(rows.locator("tr.new")).to_contain_text("10.244.7.99")
            expect(rows.locator("tr.gone")).to_contain_text("10.244.7.7")
            for text in ("endpoint 10.244.7.7 has gone", "endpoint 10.244.7.99 is new"):
                expect(page.locator("#said")).to_contain_text(text)
            assert page.evaluate("window.sameVisit")
    finally:
        cluster.write(before, folder / "cluster.yaml")
        reload(server)


LISTS_OF = """keys => {
    const main = document.createElement("main");
    const cards = keys.map(list => `<section id="${list[0]}"><ul data-rows="finding">` + list.slice(1).map(
        key => `<li data-key="${key}" data-name="${key}"><p>${key}</p></li>`).join("") + "</ul></section>");
    main.innerHTML = cards.join("");
    return main;
}"""
CHANGED = f"""([before, after]) => {{
    const main = ({LISTS_OF})(after);
    say(compare(({LISTS_OF})(before), main, 0));
    decorate(main, 0);
    return [...main.querySelectorAll(".gone, .new")].map(row => [row.closest("section").id, row.dataset.key]);
}}"""


def test_what_goes_stays_in_its_list(chromium: Browser, server: Server) -> None:
    """For some seconds, where several lists have rows of one sort; what is too much to say is counted."""
    before = [["card-a", "a1", "a2", "a3", "a4"], ["card-b", "b1", "b2"], ["card-c", "c1"]]
    with visiting(chromium, at(server, "/")) as page:
        seen = page.evaluate(CHANGED, [before, [["card-a", "a1"], ["card-b", "b1"]]])
        assert seen == [["card-a", "a2"], ["card-a", "a3"], ["card-a", "a4"], ["card-b", "b2"]], "card-c is not there"
        expect(page.locator("#said")).to_contain_text("b2 has gone and 1 more change", use_inner_text=False)
        assert not (page.locator("#said").text_content() or "").endswith("changes")


MOVES = """elements => elements.map(element => getComputedStyle(element)).some(style =>
    parseFloat(style.transitionDuration) || parseFloat(style.animationDuration) || style.scrollBehavior === "smooth")"""


@pytest.mark.parametrize("still", [True, False], ids=["reduced", "any"])
def test_motion(chromium: Browser, server: Server, still: bool) -> None:
    """Nothing moves for who has asked for that."""
    with visiting(chromium, at(server, "/"), still=still) as page:
        assert page.eval_on_selector_all("*", MOVES) == (not still)


def test_tail(chromium: Browser, server: Server) -> None:
    """A decision appears as it is made, those that are filtered out do not."""
    with visiting(chromium, at(server, "/tail?outcome=unmet")) as page:
        expect(page.locator("#tail-state")).to_have_text("listening")
        expect(page.locator("#nothing-new")).to_contain_text("No new decision fits the filter")
        ask(server, IN_ZONE_B, "memcached.shop")
        ask(server, IN_ZONE_C, "orders-db.shop")
        row = page.locator("#decisions tr")
        expect(row).to_have_count(1)
        for text in (IN_ZONE_C, "orders-db", "unmet"):
            expect(row).to_contain_text(text)
        expect(page.locator("#nothing-new")).to_be_hidden()


def test_tail_leads_on(chromium: Browser, server: Server) -> None:
    """Each row says where the answers are, and leads to the Service and to the explanation of what was asked."""
    with visiting(chromium, at(server, "/tail?service=shop/memcached"), width=PHONE) as page:
        expect(page.locator("#tail-state")).to_have_text("listening")
        ask(server, IN_ZONE_B, "memcached.shop")
        row = page.locator("#decisions tr")
        expect(row.locator("[data-label=Answer]")).to_contain_text("(shop/memcached-2) eu-west-b")
        expect(row.locator("[data-label=Service] a")).to_have_attribute("href", SERVICE)
        assert page.evaluate(WIDER) == page.evaluate(LABELLED) == faults(page) == []
        row.locator("[data-label=Question] a").click()
        expect(page.locator("#answer")).to_contain_text("nearest memcached.shop.svc.cluster.local. A")
        assert parse_qs(urlsplit(page.url).query)["client"] == [IN_ZONE_B]


def test_passed_on(chromium: Browser, tmp_path: Path) -> None:
    """A client that the nearest endpoints have no room for stands out in both colour schemes."""
    (tmp_path / "cluster.json").write_text(listed(crowded(balanced(f"{ZONE},*"))))
    with serving(tmp_path, tmp_path / "cluster.json", flags=FLAGS) as server:
        for path in ("/explain?name=web.shop&client=127.1.0.1", "/services/shop/web?client=127.1.0.1"):
            with visiting(chromium, at(server, path)) as page:
                expect(page.locator(".badge.spilled").first).to_contain_text("spilled")
                check_in_both_schemes(page)
        with visiting(chromium, at(server, "/tail?outcome=spilled")) as page:
            expect(page.locator("#tail-state")).to_have_text("listening")
            ask(server, "127.1.0.2", "web.shop")
            ask(server, "127.1.0.1", "web.shop")
            expect(page.locator("#decisions .badge.spilled")).to_have_count(1)
            check_in_both_schemes(page)


def test_a_balance_is_tried(chromium: Browser, tmp_path: Path) -> None:
    """The proposal fills the form in; spilled clients have a colour of their own, and a word, in both schemes."""
    (tmp_path / "cluster.json").write_text(listed(balanced_if()))
    with serving(tmp_path, tmp_path / "cluster.json", flags=FLAGS) as server:
        with visiting(chromium, at(server, "/services/shop/web")) as page:
            page.get_by_role("link", name="Try max-overload").click()
            expect(page.locator("#overload")).to_have_value("1.5")
            colours = set()
            for scheme in SCHEMES:
                page.emulate_media(color_scheme=scheme)
                drawn = page.locator(".flows path.spilled, .flows path.same")
                colours |= {*drawn.evaluate_all("paths => paths.map(path => getComputedStyle(path).stroke)")}
            assert len(colours) == len(SCHEMES) * len(("same", "spilled"))
            expect(page.locator(".flows text", has_text="no room nearer")).to_be_visible()
            check_in_both_schemes(page)
        with visiting(chromium, at(server, "/")) as page:
            expect(page.locator("[data-rows=worst]")).to_contain_text("shop/web")
            check_in_both_schemes(page)


def test_what_would_be_gained(chromium: Browser, tmp_path: Path) -> None:
    """From the first page of a cluster without constraints, with a price, to a Service, and a click there."""
    (tmp_path / "cluster.json").write_text(listed(skewed(None)))
    with (
        serving(tmp_path, tmp_path / "cluster.json", flags=FLAGS) as server,
        visiting(chromium, at(server, "/")) as page,
    ):
        page.fill("#price", "0.02")
        page.fill("#traffic", "1000")
        page.get_by_role("button", name="Count in money").click()
        expect(page.locator("main")).to_contain_text("less a month")
        check_in_both_schemes(page)
        page.locator("[data-rows=gain]").get_by_role("link", name="shop/web").click()
        expect(page.locator("#keys")).to_have_value(f"{ZONE},*")
        expect(page.locator("#overload")).to_have_value("1.5")
        expect(page.locator("[aria-label^='The load with']")).to_contain_text("less a month at your price")
        check_in_both_schemes(page)
        page.get_by_role("link", name="own region, else all").click()
        expect(page.locator("#keys")).to_have_value(f"{REGION},*")
        expect(page.locator("#traffic")).to_have_value("1000")
        page.locator("#keys").fill("")
        page.locator("#keys").focus()
        complete(page, "#keys", "zone", ZONE)
        page.keyboard.type(",")
        page.wait_for_selector(f'#keys-proposals option[value="{ZONE},*"]', state="attached")


def test_where_the_console_is_off(chromium: Browser, tmp_path: Path) -> None:
    """The page that says so can be read by everybody."""
    cluster.write(cluster.example(), tmp_path / "cluster.yaml")
    with (
        serving(tmp_path, tmp_path / "cluster.yaml", flags={**FLAGS, "console": "off"}) as server,
        visiting(chromium, at(server, "/"), allowed=REFUSED) as page,
    ):
        expect(page.locator("main")).to_contain_text("topodns console")
        assert faults(page) == []
        page.set_viewport_size(NARROW)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_hostile_names(chromium: Browser, hostile_server: Server) -> None:
    """Names of nodes, pods, labels and keys are text on every page, and so are those that somebody asks for."""
    asked = f"?name={quote(HOSTILE)}&client={quote(HOSTILE)}&namespace={quote(HOSTILE)}&text={quote(HOSTILE)}"
    paths = [
        "/",
        "/services",
        f"{SERVICE}?client={IN_ZONE_B}",
        f"{SERVICE}?keys={quote(HOSTILE)}",
        *(f"{path}{asked}" for path in ("/explain", "/services")),
    ]
    with visiting(chromium, at(hostile_server, "/map"), allowed=REFUSED) as page:
        links = page.eval_on_selector_all("main a", "links => links.map(link => link.getAttribute('href'))")
        hostile = {link for link in links if HOSTILE in unquote_plus(link)}
        for name in ("node-a1", "eu-west-a"):
            assert any(name in link for link in hostile), links
        for path in (*paths, *hostile):
            assert page.locator(TAKEN_IN).count() == 0, page.url
            page.goto(at(hostile_server, path))
        assert page.locator(TAKEN_IN).count() == 0, page.url
        page.goto(at(hostile_server, "/tail"))
        expect(page.locator("#tail-state")).to_have_text("listening")
        ask(hostile_server, IN_ZONE_B, f"{HOSTILE}.shop")
        expect(page.locator("#decisions tr")).to_contain_text(HOSTILE)
        assert page.locator(TAKEN_IN).count() == 0, page.url
