"""The page in a real browser, before a server that answers without a model; see page_server.py.

Skipped where there is no Chromium, unless CI is set. Screenshots are in pytest's temporary folder,
which --basetemp chooses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import serving
from axe_playwright_python.sync_playwright import Axe
from page_server import KEY, PageServer
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from pyselfspec.serve.settings import Capacity
from pyselfspec.serve.static_files import FOLDER
from pyselfspec.speculate.config import DraftConfig

WIDE, PHONE = {"width": 1200, "height": 800}, {"width": 320, "height": 640}
KING = "The old king had two sons."


@pytest.fixture(scope="module")
def running() -> Iterator[PageServer]:
    with PageServer().running() as server:
        yield server


@pytest.fixture
def server(running: PageServer) -> PageServer:
    running.reset()
    return running


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("screenshots")


class Window:
    """A page that has been opened, and what must not happen in it."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context, self.url = context, url
        self.page = context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: m.type in ("error", "warning") and self.complain(m.text))
        self.page.on("pageerror", lambda error: self.complain(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)

    def complain(self, text: str) -> None:
        self.complaints.append(text)

    def say(self, text: str) -> Locator:
        """Type and press Enter; the answer, when it has ended."""
        answers = self.page.locator("article.answer")
        n = answers.count()
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")
        expect(answers).to_have_count(n + 1)
        return self.ended(answers.nth(n))

    def begin(self, text: str) -> Locator:
        """Type and press Enter; the answer, when it has some text."""
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")
        answer = self.page.locator("article.answer").last
        expect(answer.locator(".prose")).to_contain_text("The")
        return answer

    def fail_all(self) -> None:
        """Act as a server that is gone."""
        self.page.route("**/*", lambda route: route.abort())

    def ended(self, answer: Locator) -> Locator:
        expect(answer.locator(".below .tools")).to_have_count(1)
        return answer

    def reopen(self) -> None:
        """Reload the page as a first visitor sees it."""
        self.page.unroute_all()
        self.page.set_viewport_size(WIDE)
        self.page.emulate_media(color_scheme="light")
        self.page.evaluate("localStorage.clear(); sessionStorage.clear()")
        self.page.goto(self.url)
        expect(self.page.get_by_role("heading", name="toy-12b")).to_be_visible()
        self.complaints.clear()


@pytest.fixture(scope="module")
def opened(browser: Browser, running: PageServer) -> Iterator[Window]:
    expect.set_options(timeout=20_000)
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    yield Window(context, running.url)
    context.close()


@pytest.fixture
def window(opened: Window, server: PageServer) -> Iterator[Window]:
    opened.reopen()
    yield opened
    assert not opened.complaints
    assert all(url.startswith(server.url) for url in opened.requests), "asked a foreign host"


def prose(answer: Locator) -> str:
    return answer.locator(".prose").inner_text()


def from_source(answer: Locator, source: str) -> list[str]:
    return answer.locator(f'[data-source="{source}"].from').all_inner_texts()


def colour(element: Locator, of: str = "backgroundColor") -> str:
    return str(element.evaluate("(element, of) => getComputedStyle(element)[of]", of))


def test_an_answer_shows_where_its_tokens_are_from(window, server, shots):
    answer = window.say("Tell me")
    window.page.screenshot(path=shots / "light.png")
    assert prose(answer) == KING
    assert from_source(answer, "ngram") == ["old king"]
    assert from_source(answer, "layer-skip") == ["had two"]
    spans = answer.locator(".from")
    tints = {colour(spans.nth(i)) for i in range(2)} | {colour(answer.locator(".prose"))}
    assert len(tints) == 3, "two sources and the model's own look different"
    assert window.page.locator("#legend").inner_text().split("\n") == [
        "model",
        "n-gram",
        "layer skip",
    ]
    assert server.asked[-1]["pyselfspec"] == {"draft": "auto", "show": True}

    window.page.get_by_role("switch", name="Sources").click()
    assert {colour(spans.nth(i)) for i in range(2)} == {colour(answer.locator(".prose"))}


def test_the_details_say_what_the_server_counted(window):
    answer = window.say("Tell me")
    summary = answer.locator("summary")
    assert summary.inner_text() == "6 tokens · 100 tokens/s · about 1.4x plain decoding"
    summary.click()
    cards = answer.locator(".cards")
    chips = [text.split() for text in cards.locator(".chips li").all_inner_texts()]
    assert [chip[:-2] for chip in chips] == [
        ["model", "2"],
        ["n-gram", "2"],
        ["layer", "skip", "2"],
    ]
    columns = cards.get_by_role("img", name="Accepted draft tokens by position")
    assert "position 1: 1 of 2, position 2: 1 of 2, position 3: 1 of 1" in str(
        columns.get_attribute("aria-label")
    )
    heights = columns.locator("rect.ghost").evaluate_all(
        "rects => rects.map(r => r.height.baseVal.value)"
    )
    assert heights[0] == heights[1] == 2 * heights[2] > 0
    assert cards.locator(".strip").all_inner_texts() == [
        "attention\n8 of 12",
        "feed-forward\n10 of 12",
    ]
    assert [strip.locator(".skipped").count() for strip in cards.locator(".strip").all()] == [4, 2]


def test_escape_stops_the_answer_and_the_server_notices(window, server):
    page = window.page
    page.get_by_label("Message", exact=True).fill("wait")
    page.keyboard.press("Enter")
    answer = page.locator("article.answer")
    expect(answer.locator(".prose")).to_contain_text("The")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.keyboard.press("Escape")
    assert "was stopped here" in window.ended(answer).inner_text()
    assert server.left.wait(5), "the server goes on writing"
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    assert prose(window.say("Go on")) == KING
    roles = [each["role"] for each in server.asked[-1]["messages"]]
    assert roles == ["user", "assistant", "user"], "what was written so far belongs to the text"


def test_comparing_asks_the_same_without_drafts(window, server, shots):
    answer = window.say("Tell me")
    answer.get_by_role("button", name="Compare with plain").click()
    expect(answer.locator(".verdict")).to_have_text(
        "1.60 times the speed. The same text, all 6 tokens."
    )
    window.page.screenshot(path=shots / "compared.png")
    assert answer.locator(".number").all_inner_texts() == ["100 tokens/s", "62.5 tokens/s"]
    drafted, plain = server.asked
    assert drafted.pop("pyselfspec") != plain.pop("pyselfspec") == {"draft": None, "show": True}
    assert drafted == plain and isinstance(plain["seed"], int)

    server.plain_differs = True
    answer.get_by_role("button", name="Compare with plain").click()
    expect(answer.locator(".verdict")).to_contain_text("The texts differ from character 26 on")


def test_text_of_a_model_stays_text(window):
    answer = window.say("html")
    assert "<script>document.title='broken in'</script>" in prose(answer)
    assert "[click](javascript:alert(1))" in prose(answer)
    assert answer.locator("strong").inner_text() == "<b>bold</b>"
    assert answer.locator("pre").inner_text().strip() == "<script>alert(1)</script>"
    assert not answer.locator(".prose :is(img, script, b, a)").count()
    question = window.say("<b>mine</b>").page.locator("article.question").last
    assert "<b>mine</b>" in question.inner_text()
    assert "broken in" not in window.page.title()


def test_markdown_becomes_elements_and_keeps_the_colours(window, server):
    answer = window.say("markdown")
    assert answer.locator(".prose h3").inner_text() == "Merging"
    assert answer.locator("pre").inner_text() == "def merge(a, b):\n    return sorted(a + b)"
    assert answer.locator("strong .from, code .from").all_inner_texts()[:2] == ["indices", "while"]
    assert answer.locator("em").inner_text() == "two"
    assert answer.locator("ul li").all_inner_texts() == ["one", "two", "bought", "read"]
    tasks = answer.locator("li.task")
    expect(tasks.get_by_role("checkbox", name="Done", checked=True)).to_have_count(1)
    expect(tasks.get_by_role("checkbox", name="To do", checked=False)).to_have_count(1)
    assert tasks.locator(".from").all_inner_texts() == ["bought"]
    assert answer.locator("ol li").all_inner_texts() == ["first", "second"]
    assert answer.locator("blockquote").inner_text() == "quoted"
    answer.get_by_role("button", name="Copy").first.click()
    expect(window.page.get_by_text("Copied.")).to_be_visible()
    assert (
        window.page.evaluate("navigator.clipboard.readText()") == answer.locator("pre").inner_text()
    )


# Texts of marks and newlines, at random; every leaf must be what the text has at its places, and
# nothing may be shown twice. What grows by pieces must end as what is painted at once.
LEAVES = """async (seed) => {
  const {blocks, inline} = await import("/markdown.js");
  const {Painter} = await import("/paint.js");
  const parts = ["a", "b c", " ", "\\n", "\\n\\n", "```", "`", "**", "*", "_", "- ", "1. ", "> ",
    "- [ ] ", "$", "$$", "\\\\(", "\\\\)", "x^2", "\\\\frac12", "# ",
    "[x](http://y)", "\\\\", "  ", "    ", "~~~", "---", "é🙂", "|", "a | b\\n",
    "|--|:-:|\\n", "py\\n", "def f(x): # 'y", '"', "/*", "<think>", "</think>",
    "<b onclick=alert(1)>"];
  const KNOWN = "p h3 hr ul ol li blockquote div span button pre code strong em a table thead tbody"
    .concat(" tr th td details summary input math mrow mi mn mo msup msub mfrac").split(" ");
  const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
  let n = 0;
  for (let round = 0; round < 300; round++) {
    const pieces = Array.from({length: 1 + random(40)}, () => parts[random(parts.length)]);
    const text = pieces.join("");
    let last = -1;
    const leaf = (at, shown) => {
      if (text[at] !== shown || at <= last) throw new Error(`${at} of ${JSON.stringify(text)}`);
      last = at;
      n += 1;
    };
    const walk = (nodes) => nodes.forEach((node) => node.tag
      ? walk(node.children)
      : node.text.split("").forEach((c, i) => leaf(node.at[i], c)));
    const visit = (block) => {
      if (block.type === "code") for (const {start, end} of block.lines) {
        for (let at = start; at < end; at++) leaf(at, text[at]);
      } else if (block.rows) block.rows.flat().forEach((cell) => walk(inline(text, [cell])));
      else if (block.lines) walk(inline(text, block.lines));
      (block.items ?? [block]).flatMap((each) => each.blocks ?? []).forEach(visit);
    };
    blocks(text).forEach(visit);
    const [grown, whole] = [document.createElement("div"), document.createElement("div")];
    const [slow, fast] = [new Painter(grown), new Painter(whole)];
    for (const piece of pieces) slow.add(piece, [[piece.length, "ngram"]]), slow.paint();
    fast.add(text, pieces.map((piece) => [piece.length, "ngram"]));
    fast.paint();
    const made = [...whole.querySelectorAll("*")].map((each) => each.localName);
    const odd = made.filter((name) => !KNOWN.includes(name));
    if (odd.length) throw new Error(`${odd} from ${JSON.stringify(text)}`);
    if (!grown.isEqualNode(whole)) throw new Error(`grows otherwise: ${JSON.stringify(text)}`);
  }
  return n;
}"""


def test_any_text_is_shown_once_and_in_order_however_it_grows(window):
    for seed in (1, 2026):
        print(f"seed {seed}")
        assert window.page.evaluate(LEAVES, seed) > 5000


def test_the_theme_follows_the_system_until_it_is_chosen(window, shots):
    page, body = window.page, window.page.locator("body")
    light = colour(body)
    page.emulate_media(color_scheme="dark")
    dark = colour(body)
    assert light != dark
    window.say("Tell me")
    page.screenshot(path=shots / "dark.png")
    button = page.get_by_role("button", name="Colours")
    button.click()
    expect(button).to_have_accessible_name("Colours: light")
    assert colour(body) == light
    page.reload()
    assert colour(body) == light
    button.click()
    page.emulate_media(color_scheme="light")
    assert colour(body) == dark
    button.click()
    expect(button).to_have_accessible_name("Colours: as the system")
    assert colour(body) == light


def scrolls_sideways(page: Page) -> bool:
    return bool(
        page.evaluate(
            "[document.documentElement, document.getElementById('scroll')]"
            ".some((element) => element.scrollWidth > element.clientWidth)"
        )
    )


def test_a_phone_shows_all_without_scrolling_sideways(window, shots):
    page = window.page
    page.set_viewport_size(PHONE)
    assert not scrolls_sideways(page)
    window.say("markdown").locator("summary").click()
    assert not scrolls_sideways(page)
    page.screenshot(path=shots / "phone.png")
    page.get_by_role("button", name="Settings").click()
    box = page.get_by_role("dialog").bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"]
    page.keyboard.press("Escape")
    new = page.get_by_role("button", name="New conversation")
    expect(new).to_be_hidden()
    page.get_by_role("button", name="Conversations").click()
    expect(new).to_be_focused()
    page.keyboard.press("Escape")
    expect(new).to_be_hidden()


def test_no_accessibility_rule_is_broken(window, server):
    page = window.page

    def check(what: str) -> None:
        found = Axe().run(page, options={"resultTypes": ["violations"]})
        assert not found.response["violations"], f"{what}: {found.generate_report()}"

    check("welcome")
    window.say("markdown").locator("summary").click()
    window.say("table")
    window.say("formulas")
    window.say("think").locator("summary").first.click()
    window.say("word " * 400)
    window.say("```py\nprint('x')  # y\n```").get_by_role("button", name="Again").click()
    expect(page.locator(".versions")).to_have_count(1)
    server.breaks_off = True
    window.say("Tell me")
    window.say("busy")
    server.breaks_off = False
    window.complaints.clear()  # the browser reports every status of 400 and more
    check("light")
    page.emulate_media(color_scheme="dark")
    check("dark")
    page.get_by_role("button", name="This conversation").click()
    check("menu")
    page.get_by_role("button", name="Rename").click()
    check("rename")
    page.keyboard.press("Escape")
    server.models = ("toy-12b", "other")
    page.reload()
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("Model", exact=True)).to_be_visible()
    check("settings")
    page.keyboard.press("Escape")
    page.get_by_label("Search conversations").fill("zebra")
    window.begin("wait")
    check("writing")
    page.set_viewport_size(PHONE)
    check("phone")
    page.get_by_role("button", name="Conversations").click()
    check("drawer")
    server.more.set()
    window.ended(page.locator("article.answer").last)


def test_everything_can_be_reached_by_keyboard(window):
    page = window.page
    window.say("Tell me")
    focused = (
        "document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText"
    )
    page.get_by_role("link", name="Skip to the message").focus()
    names = []
    for _ in range(20):
        names.append(str(page.evaluate(focused)).strip().split("\n")[0])
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        is_message = page.evaluate("document.activeElement.id === 'message'")
        assert outline == "solid" or is_message, f"{names[-1]} does not show its focus"
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break
    order = [
        "Skip to the message",
        "New conversation",
        "",  # to search
        "Tell me",
        "Delete “Tell me”",
        "Colours: as the system",
    ]
    order += ["This conversation", "Settings", "Copy", "Edit"]
    order += ["6 tokens · 100 tokens/s · about 1.4x plain decoding", "Copy"]
    order += ["Again", "Compare with plain", "", "Send", "Sources"]
    assert names == order
    page.get_by_role("button", name="Settings").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Settings")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Settings")).to_be_focused()


def test_shift_enter_is_a_new_line(window, server):
    field = window.page.get_by_label("Message", exact=True)
    field.press_sequentially("one")
    before = field.bounding_box()
    field.press("Shift+Enter")
    field.press_sequentially("two")
    assert field.input_value() == "one\ntwo" and not server.asked
    after = field.bounding_box()
    assert before and after and after["height"] > before["height"]
    field.press("Enter")
    window.ended(window.page.locator("article.answer"))
    assert server.asked[-1]["messages"] == [{"role": "user", "content": "one\ntwo"}]
    field.press("Enter")
    assert len(server.asked) == 1, "an empty message is sent"


def test_edit_and_again_write_the_conversation_anew(window, server):
    page = window.page
    window.say("first")
    answer = window.say("second")
    answer.get_by_role("button", name="Again").click()
    expect(page.locator("article.answer")).to_have_count(2)
    window.ended(page.locator("article.answer").last)
    one, two = server.asked[-2:]
    assert one["messages"] == two["messages"] and one["seed"] != two["seed"]
    page.locator("article.question").first.hover()
    page.get_by_role("button", name="Edit").first.click()
    editor = page.get_by_label("Edit your message")
    expect(editor).to_be_focused()
    editor.fill("other")
    page.keyboard.press("Enter")
    expect(page.locator("article.answer")).to_have_count(1)
    window.ended(page.locator("article.answer"))
    assert server.asked[-1]["messages"] == [{"role": "user", "content": "other"}]


def test_conversations_are_kept_and_can_be_deleted(window):
    page = window.page
    window.say("first of all").get_by_role("button", name="Compare with plain").click()
    expect(page.locator(".verdict")).to_be_visible()
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator("article")).to_have_count(0)
    window.say("another")
    page.reload()
    rows = page.locator("#conversations .row")
    expect(rows).to_have_text(["another", "first of all"])
    rows.nth(1).click()
    answer = page.locator("article.answer")
    assert from_source(answer, "ngram") == ["old king"]
    assert "1.60x plain decoding (measured)" in answer.inner_text()
    page.get_by_role("button", name="Delete “first of all”").click()
    expect(rows).to_have_text(["another"])
    expect(page.locator("article")).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(rows).to_have_count(2)
    expect(answer).to_contain_text(KING)


def test_pictures_are_there_when_the_server_is_gone(window, server, shots):
    answer = window.say("Tell me")
    window.fail_all()
    answer.get_by_role("button", name="Again").click()
    expect(answer.get_by_role("alert")).to_be_visible()
    window.say("hello")
    window.page.screenshot(path=shots / "gone.png")
    empty = """uses => uses.filter(use => {
      const target = document.querySelector(use.getAttribute("href"));
      return !target || (use.checkVisibility() && !use.getBBox().width);
    }).map(use => use.getAttribute("href"))"""
    assert window.page.locator("use:not(.logo use)").evaluate_all(empty) == []
    assert window.page.locator("use").count() > 10
    window.complaints.clear()


def test_trying_again_loses_nothing(window, server):
    """An interrupted answer stays until new text arrives, which becomes another version."""
    server.breaks_off = True
    answer = window.say("Tell me")
    assert prose(answer).strip() == "The"
    window.fail_all()
    answer.get_by_role("button", name="Try again").click()
    expect(answer.get_by_role("alert")).to_contain_text("still running?")
    assert prose(answer).strip() == "The"
    window.page.unroute_all()
    server.breaks_off = False
    answer.get_by_role("button", name="Try again").click()
    expect(answer.locator(".prose")).to_have_text(KING)
    expect(answer.locator(".versions")).to_contain_text("2 / 2")
    assert not answer.get_by_role("alert").count()
    answer.get_by_role("button", name="Earlier version").click()
    assert prose(answer).strip() == "The"
    window.complaints.clear()


def test_an_answer_that_broke_off_goes_on_where_it_was(window, server):
    server.breaks_off = True
    answer = window.say("Tell me")
    window.fail_all()
    answer.get_by_role("button", name="Continue").click()
    expect(answer.get_by_role("alert")).to_contain_text("still running?")
    assert prose(answer).strip() == "The"
    window.page.unroute_all()
    server.breaks_off = False
    answer.get_by_role("button", name="Continue").click()
    expect(answer.locator(".prose")).to_have_text(KING)
    assert server.asked[-1]["messages"][-1] == {"role": "assistant", "content": "The "}
    assert server.asked[-1]["pyselfspec"]["continue"] is True
    assert from_source(answer, "ngram") == ["old king"]
    assert not answer.get_by_role("button", name="Continue").count()
    window.complaints.clear()


def test_an_answer_that_was_cut_can_be_continued_and_compared(window, server):
    set_limit(window, "3")
    answer = window.say("Tell me")
    answer.locator("summary").click()
    answer.get_by_role("button", name="Continue").click()
    expect(answer.locator(".prose")).to_have_text(KING)
    expect(answer.locator("summary")).to_have_text(
        "6 tokens · 100 tokens/s · about 1.4x plain decoding"
    )
    assert [each["max_tokens"] for each in server.asked] == [3, 3]
    assert "4 of 8 draft tokens" in answer.locator(".cards").inner_text(), "both parts count"
    answer.get_by_role("button", name="Compare with plain").first.click()
    expect(answer.locator(".verdict")).to_have_text(
        "1.60 times the speed. The same text, all 3 tokens."
    )
    drafted, plain = server.asked[-2:]
    assert drafted["messages"] == plain["messages"] and drafted["seed"] == plain["seed"]


def set_limit(window: Window, limit: str) -> None:
    window.page.get_by_role("button", name="Settings").click()
    window.page.get_by_label("Max tokens").fill(limit)
    window.page.keyboard.press("Escape")


def test_an_answer_may_be_as_long_as_the_server_has_room_for(window, server):
    window.say("Tell me")
    assert "max_tokens" not in server.asked[-1]
    set_limit(window, "3")
    window.say("Tell me")
    assert server.asked[-1]["max_tokens"] == 3
    set_limit(window, "")
    window.say("Tell me")
    assert "max_tokens" not in server.asked[-1]
    server.chat_template = False
    window.page.reload()
    expect(window.page.get_by_text("This model has no chat template")).to_be_visible()
    window.say("Once")
    assert server.asked[-1]["max_tokens"] == 512, "completions are short unless they say more"


def test_tables_and_code_are_shown_as_such(window, shots):
    answer = window.say("table")
    window.page.screenshot(path=shots / "table.png")
    table = answer.locator("table")
    assert table.locator("th").all_inner_texts() == ["River", "Length", "a|b"]
    assert table.locator("tbody tr").all_inner_texts() == [
        "Rhine\t1233\tlong",
        "<b>Elbe</b>\t1094\t",
    ]
    assert table.locator("td .from").all_inner_texts() == ["Rhine"]
    assert table.locator("td strong").inner_text() == "long" and not table.locator("b").count()
    assert colour(table.locator("td").nth(1), "textAlign") == "right"
    code = answer.locator("pre code")
    assert code.inner_text() == "# a note\ndef f(x):\n    return 'one' + 2  # end"
    for kind, texts in {
        "comment": ["# a note", "# end"],
        "keyword": ["def", "return"],
        "string": ["'one'"],
        "number": ["2"],
    }.items():
        found = code.locator(f".code-{kind}")
        assert found.all_inner_texts() == texts
        assert colour(found.first, "color") != colour(code, "color")


# Blocks of texts that are nearly tables: what GitHub's specification of Markdown says of them.
BLOCKS = """async (texts) => {
  const {blocks} = await import("/markdown.js");
  return texts.map((text) => blocks(text).map(({type, rows}) => (rows ? rows.length : type)));
}"""


def test_only_tables_are_tables(window):
    """A number stands for a table with so many rows."""
    expected = {
        "| a | b |\n| --- | --- |\n| c | d |": [2],
        "a | b\n-|-\nc | d\n\ntext": [2, "p"],
        "text\na | b\n-|-": ["p", 1],
        "| a |\n| - |\n- item": [1, "list"],
        "> | a | b |\n> |:-:|-:|": ["quote"],
        "| a | b |\n| --- |": ["p"],
        "a\n---|---": ["p"],
        "| a | b |\n| -- x | - |": ["p"],
        "| a \\| b |\n| - |": [1],
    }
    found = window.page.evaluate(BLOCKS, list(expected))
    assert dict(zip(expected, found, strict=True)) == expected


def test_text_that_is_hard_to_read_is_read_at_once(window):
    """No text takes time that grows with the square of its length."""
    hard = [
        "a|b\n-" + " " * 40_000 + "x",
        "|" * 40_000 + "\n" + "|-" * 20_000,
        "```py\n" + "'" * 40_000 + '"""' * 10_000,
        "```js\n" + "/*" * 20_000,
        "<think>" * 5_000,
    ]
    paint = """async (text) => {
      const {Painter} = await import("/paint.js");
      const start = performance.now();
      const painter = new Painter(document.createElement("div"));
      painter.add(text, [[text.length, "ngram"]]);
      painter.paint();
      return performance.now() - start;
    }"""
    took = [window.page.evaluate(paint, text) for text in hard]
    assert max(took) < 5000, took


def test_code_in_a_message_is_shown_as_code(window, server):
    text = "Why *this*?\n\n```js\nlet x = '<b>';\n```\n\n1. and <i>that</i>"
    window.page.get_by_label("Message", exact=True).fill(text)
    window.page.keyboard.press("Enter")
    bubble = window.page.locator(".bubble")
    assert bubble.locator("pre").inner_text() == "let x = '<b>';"
    assert bubble.locator(".code-keyword").all_inner_texts() == ["let"]
    assert bubble.locator(".typed").all_inner_texts() == ["Why *this*?", "1. and <i>that</i>"]
    window.ended(window.page.locator("article.answer"))
    assert server.asked[-1]["messages"][-1]["content"] == text


FORMULAS = {
    r"x^2": "x2",
    r"\frac{a}{b+1} \cdot \frac12": "ab+1⋅12",
    r"\sum_{i=0}^n i = \sqrt[3]{x'}": "∑i=0ni=x\u20323",
    r"\left( \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} \right]": "((1234)]",
    r"f(x) = \begin{cases} 1 & \text{if } x > 0 \\ 0 \end{cases}": "f(x)={1if\u00a0x>00",
    r"\mathbb{R}^n \ni \vec v, \hat{\theta} \to \infty": "\u211dn∋v→,θ^→∞",
    r"\lim_{x\to0} \sin x": "limx→0sinx",
    "\\{a\\}": "{a}",
}
NOT_FORMULAS = [r"\foo", "{", "}", "a & b", "^", r"\frac{1}", r"\left( x", "{" * 99 + "}" * 99]
NOT_FORMULAS += [r"\toString", r"\hat" * 4900 + "a"]


def test_formulas_become_mathml(window):
    show = """async (latex) => (await import("/math.js")).formula(latex, false)?.textContent"""
    for latex, want in FORMULAS.items():
        assert window.page.evaluate(show, latex) == want, latex
    for latex in NOT_FORMULAS:
        assert window.page.evaluate(show, latex) is None, latex


def test_formulas_in_an_answer(window, server):
    answer = window.say("formulas")
    assert answer.locator("math").all_text_contents() == ["x2", "E=mc2", "a1", "b"]
    expect(answer.locator("math[display=block]")).to_have_count(2)
    assert "from $5 to $10, $HOME and $\\foo$." in prose(answer)
    assert answer.locator('[data-source="ngram"].from').all_text_contents() == ["a1"]


def test_a_long_message_is_folded(window, server):
    text = "\n".join(f"line {i}" for i in range(40))
    window.say(text)
    assert server.asked[-1]["messages"][-1]["content"] == text
    question = window.page.locator("article.question")
    bubble = question.locator(".bubble")

    def height() -> float:
        return float(bubble.evaluate("element => element.offsetHeight"))

    folded = height()
    question.get_by_role("button", name="Show all").click()
    assert height() > 2 * folded
    question.get_by_role("button", name="Show less").click()
    assert height() == folded
    window.say("short")
    expect(window.page.get_by_role("button", name="Show all")).to_have_count(1)


def test_what_a_model_thinks_first_is_folded(window):
    answer = window.say("think")
    assert answer.locator("summary").first.inner_text() == "Reasoning"
    expect(answer.locator(".thought")).to_be_hidden()
    assert prose(answer).split("\n")[-1] == "Here it is."
    answer.locator("summary").first.click()
    assert answer.locator(".thought").inner_text() == "The user wants that."
    assert from_source(answer, "ngram") == ["user"]


def test_a_reload_shows_the_same_conversation_and_back_the_one_before(window):
    page = window.page
    window.say("first of all")
    page.get_by_role("button", name="New conversation").click()
    window.say("another")
    page.reload()
    expect(page.locator(".bubble")).to_have_text("another")
    page.locator("#conversations .row").nth(1).click()
    expect(page.locator(".bubble")).to_have_text("first of all")
    page.go_back()
    expect(page.locator(".bubble")).to_have_text("another")
    page.get_by_role("link", name="Skip to the message").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.reload()
    expect(page.locator(".bubble")).to_have_text("another")


def test_an_answer_goes_on_in_another_conversation(window, server):
    page = window.page
    rows = page.locator("#conversations .row")
    window.begin("wait")
    expect(rows).to_have_text(["wait"])
    expect(page.locator("#legend")).to_contain_text("n-gram")
    page.get_by_role("button", name="New conversation").click()
    assert prose(window.say("Tell me")) == KING
    expect(rows.nth(1).get_by_role("img", name="Being written")).to_be_visible()
    server.more.set()
    expect(page.get_by_role("img", name="Being written")).to_have_count(0)
    assert not server.left.is_set()
    rows.filter(has_text="wait").click()
    answer = window.ended(page.locator("article.answer"))
    assert prose(answer) == KING and "stopped" not in answer.inner_text()
    assert "6 tokens" in answer.locator("summary").inner_text()


def test_a_conversation_can_be_left_and_entered_while_it_is_written(window, server):
    page = window.page
    window.begin("wait")
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    page.locator("#conversations .row").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    server.more.set()
    assert prose(window.ended(page.locator("article.answer"))) == KING
    page.get_by_role("button", name="New conversation").click()
    server.more.clear()
    window.begin("wait")
    page.get_by_role("button", name="Delete “wait”").first.click()
    assert server.left.wait(5), "the server goes on writing what was deleted"
    expect(page.locator("#conversations .row")).to_have_count(1)


def test_only_what_works_on_the_server_is_offered(window, server):
    page = window.page
    server.works = ("ngram", "layer-skip")
    stored = '{"draft": "head"}'
    page.evaluate("text => localStorage.setItem('pyselfspec.settings', text)", stored)
    page.reload()
    expect(page.get_by_role("heading", name="toy-12b")).to_be_visible()
    page.get_by_role("button", name="Settings").click()
    choice = page.get_by_label("Drafter")
    assert choice.locator("option").all_inner_texts()[2:] == ["layer skip", "n-gram"]
    assert choice.input_value() == "auto"
    page.keyboard.press("Escape")
    window.say("Tell me")
    assert server.asked[-1]["pyselfspec"]["draft"] == "auto"


def test_the_layers_are_those_of_what_drafted(window, server):
    masked = window.say("Tell me")
    server.works = ("ngram",)
    copied = window.say("Tell me")
    for each, said in ((masked, "skipped the empty blocks"), (copied, "No drafter skipped layers")):
        each.locator("summary").click()
        expect(each.locator(".card").last).to_contain_text(said)


def test_an_answer_without_drafts_says_so(window, server):
    page = window.page
    server.works = ()
    assert "no drafts" in window.say("Tell me").inner_text()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Drafter").select_option("plain")
    page.keyboard.press("Escape")
    answer = window.say("Tell me")
    answer.locator("summary").click()
    expect(answer.locator(".card")).to_have_count(2)
    assert "drafted" not in answer.inner_text() and "plain," not in answer.inner_text()


def test_settings_belong_to_the_conversation(window, server):
    page = window.page
    window.say("one")
    set_system(window, "Be brief.")
    page.get_by_role("button", name="New conversation").click()
    window.say("two")
    assert server.asked[-1]["messages"][0]["content"] == "Be brief.", "new ones begin with it"
    set_system(window, "Be verbose.")
    page.reload()
    page.locator("#conversations .row").nth(1).click()
    window.say("three")
    assert server.asked[-1]["messages"][0] == {"role": "system", "content": "Be brief."}


def set_system(window: Window, text: str) -> None:
    window.page.get_by_role("button", name="Settings").click()
    window.page.get_by_label("System prompt").fill(text)
    window.page.keyboard.press("Escape")


def do_with_conversation(window: Window, name: str) -> None:
    window.page.get_by_role("button", name="This conversation").click()
    window.page.get_by_role("button", name=name, exact=True).click()


def test_a_conversation_can_be_renamed_and_found(window):
    page = window.page
    window.say("Tell me")
    do_with_conversation(window, "Rename")
    page.get_by_label("Title").fill("Kings and sons")
    page.keyboard.press("Enter")
    rows = page.locator("#conversations .row")
    expect(rows).to_have_text(["Kings and sons"])
    page.get_by_role("button", name="New conversation").click()
    window.say("think")
    page.reload()
    expect(rows).to_have_text(["think", "Kings and sons"])
    search = page.get_by_label("Search conversations")
    for text, found in {
        "KINGS": ["Kings and sons"],
        "user wants": ["think"],
        "t": ["think", "Kings and sons"],
        "zebra": [],
    }.items():
        search.fill(text)
        expect(rows).to_have_text(found)
    expect(page.get_by_text("No conversation found.")).to_be_visible()


def test_a_conversation_can_be_copied_and_exported(window):
    page = window.page
    window.say("Tell me")
    markdown = f"# Tell me\n\n## You\n\nTell me\n\n## toy-12b\n\n{KING}\n"
    do_with_conversation(window, "Copy all")
    expect(page.get_by_text("Copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == markdown
    with page.expect_download() as download:
        do_with_conversation(window, "Export as Markdown")
    assert download.value.suggested_filename == "Tell-me.md"
    assert Path(download.value.path()).read_text(encoding="utf-8") == markdown
    with page.expect_download() as download:
        do_with_conversation(window, "Export as JSON")
    exported = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    assert [each["content"] for each in exported["messages"]] == ["Tell me", KING]
    assert exported["messages"][1]["statistics"]["n_accepted"] == 4


def test_again_keeps_the_answer_that_there_was(window, server):
    page = window.page
    answer = window.say("Tell me")
    later = window.say("html")
    answer.get_by_role("button", name="Again").click()
    expect(answer.locator(".versions")).to_contain_text("2 / 2")
    expect(later).to_have_count(0)
    page.reload()
    expect(answer.locator(".versions")).to_contain_text("2 / 2")
    answer.get_by_role("button", name="Earlier version").click()
    expect(answer.locator(".versions")).to_contain_text("1 / 2")
    expect(answer.get_by_role("button", name="Later version")).to_be_focused()
    assert from_source(answer, "ngram") == ["old king"]


def test_what_was_removed_with_again_can_be_had_back(window):
    page = window.page
    answer = window.say("Tell me")
    window.say("second")
    answer.get_by_role("button", name="Again").click()
    expect(answer.locator(".versions")).to_contain_text("2 / 2")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".bubble")).to_have_text(["Tell me", "second"])
    expect(answer.first.locator(".versions")).to_contain_text("1 / 2")


def test_details_that_open_can_be_seen(window):
    window.page.set_viewport_size({"width": 1200, "height": 700})
    window.say("long")
    answer = window.say("Tell me")
    answer.locator("summary").click()
    expect(answer.locator(".card").last).to_be_in_viewport(ratio=1)


def test_what_was_written_outlives_the_page(window, server):
    page = window.page
    page.get_by_label("Message", exact=True).fill("wait")
    page.keyboard.press("Enter")
    expect(page.locator("article.answer .prose")).to_contain_text("The")
    page.reload()
    assert server.left.wait(5), "the server goes on writing"
    answer = page.locator("article.answer")
    assert prose(answer).startswith("The")
    expect(answer).to_contain_text("The answer was stopped here.")


def test_what_is_shown_is_not_read_out_again(window):
    window.say("first")
    window.page.evaluate(
        """() => new MutationObserver((records) => records.forEach(({addedNodes}) =>
             addedNodes.forEach((node) => (window.added ??= []).push(node.className))
           )).observe(document.getElementById("log"), {childList: true})"""
    )
    window.say("second")
    assert window.page.evaluate("window.added") == ["turn question", "turn answer"]


def test_one_of_several_models_can_be_chosen(window, server):
    page = window.page
    window.say("Tell me")
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("Model", exact=True)).to_be_hidden()
    page.keyboard.press("Escape")
    server.models = ("toy-12b", "large & slow")
    page.reload()
    window.say("Tell me")
    assert server.asked[-1]["model"] == "toy-12b"
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Model", exact=True).select_option("large & slow")
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="large & slow")).to_be_visible()
    window.say("Tell me")
    assert server.asked[-1]["model"] == "large & slow"
    page.reload()
    expect(page.get_by_role("heading", name="large & slow")).to_be_visible()


def test_models_that_write_no_text_are_not_offered(window, server):
    page = window.page
    server.encoders = ("bert",)
    page.reload()
    window.say("Tell me")
    assert server.asked[-1]["model"] == "toy-12b"
    server.models = ()
    page.reload()
    expect(page.get_by_text("This server has no model that generates text.")).to_be_visible()


SLOWS_DOWN = """(name) => {
  const own = window.fetch;
  window.fetch = async (address, ...others) => {
    if (address.includes(name)) await new Promise((made) => setTimeout(made, 500));
    return own(address, ...others);
  };
}"""


def test_of_two_models_that_are_loading_the_one_chosen_last_stays(window, server):
    page = window.page
    server.models = ("toy-12b", "large")
    page.reload()
    expect(page.get_by_role("heading", name="toy-12b")).to_be_visible()
    page.evaluate(SLOWS_DOWN, "model=large")
    page.get_by_role("button", name="Settings").click()
    choice = page.get_by_label("Model", exact=True)
    choice.select_option("large")
    choice.select_option("toy-12b")
    page.keyboard.press("Escape")
    page.wait_for_timeout(1500)  # by then the slow one has answered
    window.say("Tell me")
    assert server.asked[-1]["model"] == "toy-12b"


BRING = """async (how) => {
  const canvas = Object.assign(document.createElement("canvas"), {width: 3000, height: 1500});
  canvas.getContext("2d").fillRect(0, 0, 99, 99);
  const blob = await new Promise((made) => canvas.toBlob(made));
  const clipboardData = new DataTransfer();
  clipboardData.items.add(new File([blob], "shot.png", {type: blob.type}));
  if (how === "broken") clipboardData.items.add(new File(["x"], "broken.png", {type: blob.type}));
  if (how === "text") clipboardData.setData("text/plain", "a cell");
  const options = {clipboardData, dataTransfer: clipboardData, bubbles: true, cancelable: true};
  return document.getElementById("message").dispatchEvent(
    how === "drop" ? new DragEvent("drop", options) : new ClipboardEvent("paste", options));
}"""


def test_pictures_are_pasted_and_dropped(window, server):
    page = window.page
    assert page.evaluate(BRING, "text"), "the text goes into the field"
    page.evaluate(BRING, "paste")
    expect(page.get_by_text("This model reads no pictures.")).to_be_visible()
    server.reads_pictures = True
    page.reload()
    expect(page.get_by_role("heading", name="toy-12b")).to_be_visible()
    waiting = page.get_by_role("list", name="Pictures of your message")
    page.evaluate(BRING, "text")
    page.evaluate(BRING, "paste")
    page.evaluate(BRING, "drop")
    expect(waiting.get_by_role("img")).to_have_count(2)
    assert waiting.get_by_role("img").first.evaluate("i => [i.naturalWidth, i.naturalHeight]") == [
        1024,
        512,
    ]
    assert not Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    page.get_by_role("button", name="Remove picture 2").click()
    window.say("Tell me")
    expect(waiting).to_be_hidden()
    picture, text = server.asked[-1]["messages"][-1]["content"]
    assert text == {"type": "text", "text": "Tell me"}
    assert picture["image_url"]["url"].startswith("data:image/jpeg;base64,")
    expect(page.locator("article.question").get_by_role("img", name="Picture")).to_have_count(1)
    page.reload()
    window.say("And?")
    assert server.asked[-1]["messages"][0]["content"][0] == picture, "it stays"
    page.evaluate(BRING, "broken")
    expect(page.get_by_text("broken.png is no picture.")).to_be_visible()
    window.say("")
    assert [each["type"] for each in server.asked[-1]["messages"][-1]["content"]] == ["image_url"]


def test_settings_go_with_the_next_request(window, server):
    page = window.page
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Drafter").select_option("layer-skip")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Max tokens").fill("3")
    page.get_by_label("Max tokens").fill("-1")  # not allowed, so 3 stays
    page.get_by_label("Seed").fill("7")
    page.get_by_label("System prompt").fill("Be brief.")
    page.keyboard.press("Escape")
    page.reload()
    answer = window.say("Tell me")
    assert prose(answer).strip() == "The old king"
    assert "cut after 3 tokens" in answer.inner_text()
    asked = server.asked[-1]
    expected = {"temperature": 0, "max_tokens": 3, "seed": 7}
    assert {name: asked[name] for name in expected} == expected
    assert asked["pyselfspec"]["draft"] == "layer-skip"
    assert asked["messages"][0] == {"role": "system", "content": "Be brief."}


def test_the_temperature_is_the_servers_until_it_is_chosen(window, server):
    window.say("one")
    assert server.asked[-1]["temperature"] is None
    window.page.get_by_role("button", name="Settings").click()
    expect(window.page.locator("#temperature-value")).to_have_text("0.35")
    window.page.get_by_label("Temperature").fill("0.5")
    window.page.keyboard.press("Escape")
    window.say("two")
    assert server.asked[-1]["temperature"] == 0.5


def test_an_error_says_what_happened_and_can_be_tried_again(window, server):
    told = {
        "busy": "The server is busy. Try again in a moment. All slots are taken.",
        "too long": "The prompt has 4096 tokens, the context 2048; give a larger n_ctx (-c) or "
        "a shorter prompt.",
        "fail": "The model is out of memory.",
        "break": "The connection ended before the answer was complete.",
    }
    for said, expected in told.items():
        answer = window.say(said)
        assert answer.get_by_role("alert").locator("p").inner_text() == expected
    with window.page.expect_response("**/v1/**"):
        answer.get_by_role("button", name="Try again").click()
    expect(window.page.get_by_role("alert")).to_have_count(4)
    first, again = server.asked[-2:]
    assert first["messages"] == again["messages"]
    window.complaints.clear()  # the browser reports every status of 400 and more


def test_a_key_is_asked_for_and_kept_with_the_tab(window, server):
    server.needs_key = True
    page = window.page
    page.reload()
    dialog = page.get_by_role("dialog", name="API key")
    for given in ("wrong", KEY):
        expect(dialog).to_contain_text("The server requires an API key.")
        dialog.get_by_label("API key", exact=True).fill(given)
        page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="toy-12b")).to_be_visible()
    expect(dialog).to_be_hidden()
    assert prose(window.say("Tell me")) == KING
    assert KEY not in str(page.evaluate("JSON.stringify(localStorage)"))
    window.complaints.clear()


def test_a_model_without_a_template_goes_on_with_the_text(window, server):
    server.chat_template = False
    window.page.reload()
    expect(window.page.get_by_text("This model has no chat template")).to_be_visible()
    window.say("Once upon a time")
    window.say("Then")
    assert server.asked[-1]["prompt"] == f"Once upon a time{KING}\n\nThen"
    assert "messages" not in server.asked[-1]


def test_the_real_server_answers_the_page(opened, demo):
    """With drafts that are always taken, whether they pay here or not."""
    drafting = DraftConfig(draft="ngram", controller="fixed")
    capacity = Capacity(n_ctx=1024, n_slots=1, n_queue=1)
    with serving.running(demo, capacity=capacity, drafting=drafting) as served:
        window = Window(opened.context, f"{served.url}/")
        page = window.page
        expect(page.get_by_role("heading", name="demo")).to_be_visible()
        page.evaluate(
            "localStorage.setItem('pyselfspec.settings',"
            """ '{"temperature": 0, "max_tokens": 40, "draft": "ngram"}')"""
        )
        page.reload()
        answer = window.say("The king went home and the queen went home. " * 3)
        words = from_source(answer, "ngram")
        assert words and all(word in prose(answer) for word in words)
        answer.get_by_role("button", name="Compare with plain").click()
        verdict = answer.locator(".verdict")
        expect(verdict).to_contain_text("times the speed")
        if served.service.engine.context.abilities.exact_width:
            expect(verdict).to_contain_text("The same text, all 40 tokens.")
        counted = [text.split() for text in answer.locator(".chips li").all_inner_texts()]
        assert [name for name, *_ in counted] == ["model", "n-gram"]
        assert sum(int(n) for _, n, *_ in counted) == 40

        page.evaluate(
            "localStorage.setItem('pyselfspec.settings', '{\"max_tokens\": 900}')",
        )
        page.goto(f"{served.url}/")
        page.get_by_label("Message", exact=True).fill("Once")
        page.keyboard.press("Enter")
        expect(page.locator("article.answer .prose")).not_to_be_empty()
        page.keyboard.press("Escape")
        served.until(lambda: served.service.engine.n_running == 0)
        assert not window.complaints
        page.close()


def test_a_message_may_come_before_the_server_is_known(window, server):
    server.slow_props, server.chat_template = True, False
    window.page.reload()
    window.page.get_by_label("Message", exact=True).fill("Once")
    window.page.keyboard.press("Enter")
    answer = window.page.locator("article.answer")
    expect(answer).to_contain_text("Reading the prompt")
    assert not server.asked
    server.more.set()
    assert prose(window.ended(answer)) == KING
    assert server.asked[-1]["prompt"] == "Once"


def test_a_long_prompt_shows_its_progress(window, server):
    """It is the share of the tokens that had to be read."""
    window.page.get_by_label("Message", exact=True).fill("slow prompt")
    window.page.keyboard.press("Enter")
    answer = window.page.locator("article.answer")
    expect(answer).to_contain_text("Reading the prompt: 42 %")
    server.more.set()
    assert prose(window.ended(answer)) == KING
    expect(answer).not_to_contain_text("Reading")


def test_files_are_served_with_a_strict_policy(server):
    names = {path.name for path in FOLDER.iterdir()}
    client = httpx.Client(trust_env=False)
    for name in ("", *names):
        answer = client.get(server.url + name)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert client.get(server.url + "../page.py").status_code == 404
    assert client.get(server.url + "nothing").status_code == 404


def test_files_name_no_other_host_and_make_no_html():
    text = "\n".join(path.read_text() for path in FOLDER.iterdir())
    hosts = set(re.findall(r"https?://[^\s\"')]+", text))
    assert not {h for h in hosts if "w3.org" not in h and "whatwg.org" not in h and "[" not in h}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
