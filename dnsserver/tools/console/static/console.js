// SPDX-License-Identifier: Apache-2.0

// Follows the server: when what a page shows has changed, fetches it again and shows what came and went.
// Without this script every page but Tail works by reloading.
"use strict";

const SHOWN_MS = 8000; // for which a row that has gone stays, and one that came is marked
const SHARE = 10; // fetching takes at most one part in so many of the time
const MOST_SAID = 4; // names that are read out at a time
const RETRY_MS = 10000; // after the server has refused a stream

const gone = new Map(); // rows that have gone, by list and key: the row, the key before it, and until when it is shown
const fresh = new Map(); // until when a row is marked as new, by list and key

function rowsOf(main) {
  const rows = new Map();
  for (const list of main.querySelectorAll("[data-rows]")) {
    for (const row of list.children) {
      if (row.dataset.key !== undefined && !row.classList.contains("gone")) rows.set(idOf(list, row), row);
    }
  }
  return rows;
}

// Several lists may have rows of one sort: each finding stands below its cause.
function nameOf(list) {
  const named = list.closest("[id]");
  return `${named ? named.id : ""}\n${list.dataset.rows}`;
}

function idOf(list, row) {
  return `${nameOf(list)}\n${row.dataset.key}`;
}

function mark(row, word) {
  const cell = row.matches("tr") ? row.querySelector("th") || row.firstElementChild : row.firstElementChild || row;
  const badge = document.createElement("span");
  badge.className = `badge change ${word === "gone" ? "bad" : "good"}`;
  badge.textContent = word;
  row.classList.add(word);
  cell.append(" ", badge);
}

function unmark(row) {
  row.classList.remove("new");
  for (const badge of row.querySelectorAll(".badge.change")) badge.remove();
}

// Notes what differs between two versions of the page; returns it in words.
function compare(before, after, now) {
  const said = [];
  const lists = new Set([...after.querySelectorAll("[data-rows]")].map((list) => list.dataset.rows));
  const had = rowsOf(before), has = rowsOf(after);
  for (const [id, row] of had) {
    if (has.has(id) || !lists.has(row.parentElement.dataset.rows)) continue;
    const previous = row.previousElementSibling;
    gone.set(id, { row: row.cloneNode(true), before: previous ? previous.dataset.key : null, list: nameOf(row.parentElement), until: now + SHOWN_MS });
    said.push(`${row.dataset.name} has gone`);
  }
  const known = new Set([...before.querySelectorAll("[data-rows]")].map((list) => list.dataset.rows));
  for (const [id, row] of has) {
    if (gone.delete(id) || (!had.has(id) && known.has(row.parentElement.dataset.rows))) {
      fresh.set(id, now + SHOWN_MS);
      said.push(`${row.dataset.name} is new`);
    }
  }
  return said;
}

// Shows in *main* what has gone and what is new.
function decorate(main, now) {
  for (const [id, row] of rowsOf(main)) {
    if ((fresh.get(id) || 0) > now) mark(row, "new");
    else fresh.delete(id);
  }
  for (const [id, lost] of gone) {
    const list = lost.until > now && [...main.querySelectorAll("[data-rows]")].find((list) => nameOf(list) === lost.list);
    if (!list) {
      gone.delete(id);
      continue;
    }
    const row = lost.row.cloneNode(true);
    unmark(row);
    mark(row, "gone");
    for (const link of row.querySelectorAll("a")) link.removeAttribute("href");
    const before = [...list.children].find((other) => other.dataset.key === lost.before);
    if (before) before.after(row);
    else list.prepend(row);
  }
}

function sweep() {
  const now = Date.now();
  for (const [id, lost] of gone) if (lost.until <= now) gone.delete(id);
  for (const [id, until] of fresh) if (until <= now) fresh.delete(id);
  const main = document.getElementById("main");
  for (const row of main.querySelectorAll(".gone[data-key]")) if (!gone.has(idOf(row.parentElement, row))) row.remove();
  for (const row of main.querySelectorAll(".new[data-key]")) {
    if (fresh.has(idOf(row.parentElement, row))) continue;
    unmark(row);
  }
}

function say(texts) {
  if (!texts.length) return;
  const more = texts.length > MOST_SAID ? ` and ${texts.length - MOST_SAID} more change${texts.length - MOST_SAID === 1 ? "" : "s"}` : "";
  const line = document.createElement("p");
  line.textContent = texts.slice(0, MOST_SAID).join(", ") + more;
  const said = document.getElementById("said");
  said.append(line);
  while (said.children.length > 5) said.firstElementChild.remove();
}

// Where the keyboard and the eyes are, and what was typed: as a function that puts it back.
function remember(main) {
  const active = main.contains(document.activeElement) ? document.activeElement : null;
  const path = active && pathOf(active);
  const range = active && "selectionStart" in active ? [active.selectionStart, active.selectionEnd] : null;
  const typed = [...main.querySelectorAll("input[id], select[id]")]
    .filter((field) => field === active || (field.matches("select") ? [...field.options].some((option) => option.selected !== option.defaultSelected) : field.value !== field.defaultValue))
    .map((field) => [field.id, field.value]);
  const scrolled = [...main.querySelectorAll(".scroll")].map((region) => [region.getAttribute("aria-label"), region.scrollTop, region.scrollLeft]);
  const open = [...main.querySelectorAll("details[open][id]")].map((details) => details.id);
  const [x, y] = [window.scrollX, window.scrollY];
  return (next, kept) => {
    for (const [id, value] of typed) {
      const field = next.querySelector(`#${CSS.escape(id)}`);
      if (field && !kept?.contains(field)) field.value = value;
    }
    for (const id of open) next.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", "");
    for (const [label, top, left] of scrolled) {
      const region = [...next.querySelectorAll(".scroll")].find((other) => other.getAttribute("aria-label") === label);
      if (region) region.scrollTo(left, top);
    }
    const target = path && !kept && find(next, path);
    if (target) {
      target.focus({ preventScroll: true });
      if (range && range[0] !== null) try { target.setSelectionRange(...range); } catch { /* not of this type */ }
    }
    window.scrollTo(x, y);
  };
}

function pathOf(element) {
  if (element.id) return { id: element.id };
  const row = element.closest("[data-key]");
  return { key: row && row.dataset.key, list: row && row.parentElement.dataset.rows, href: element.getAttribute("href"), label: element.getAttribute("aria-label"), tag: element.tagName };
}

function find(main, path) {
  if (path.id) return main.querySelector(`#${CSS.escape(path.id)}`);
  const within = path.key === null || path.key === undefined ? main : [...main.querySelectorAll("[data-key]")].find((row) => row.dataset.key === path.key && row.parentElement.dataset.rows === path.list);
  return within && [...within.querySelectorAll(path.tag)].find((other) => other.getAttribute("href") === path.href && other.getAttribute("aria-label") === path.label);
}

// Which element of *next* stands where each element between *main* and *kept* does; null if they differ.
function pairsAround(main, next, kept) {
  const pairs = [];
  for (let old = main, other = next; old !== kept; ) {
    const child = [...old.children].find((one) => one.contains(kept));
    const like = (one) => one.tagName === child.tagName && one.className === child.className;
    const number = [...old.children].filter(like).indexOf(child);
    const counterpart = [...other.children].filter(like)[number];
    if (!counterpart) return null;
    pairs.push([old, child, other, counterpart]);
    [old, other] = [child, counterpart];
  }
  return pairs;
}

// Puts *next* in the place of *main*. A form that somebody is in stays the very same: its proposals may be open.
function put(main, next) {
  const form = main.contains(document.activeElement) && document.activeElement.closest("form");
  const pairs = form && pairsAround(main, next, form);
  if (!pairs) {
    main.replaceWith(next);
    return [next, null];
  }
  for (const [old, child, other, counterpart] of pairs) {
    const nodes = [...other.childNodes], at = nodes.indexOf(counterpart);
    for (const node of [...old.childNodes]) if (node !== child) node.remove();
    child.before(...nodes.slice(0, at));
    child.after(...nodes.slice(at + 1));
  }
  return [main, form];
}

let fetching = false, again = false;

async function refresh() {
  if (fetching) {
    again = true;
    return;
  }
  fetching = true;
  const began = performance.now();
  try {
    const response = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const next = page.getElementById("main");
    if (response.status === 503) again = true; // busy, or it has just started: what is shown stays
    else if (next) swap(next, page);
  } catch { /* the server is away: the stream notices, and connects again */ }
  const pause = Math.max(1000, SHARE * (performance.now() - began));
  setTimeout(() => {
    fetching = false;
    if (again) {
      again = false;
      refresh();
    }
  }, pause);
}

// Whether somebody has selected text in *main*, to copy a command, say.
function isSelected(main) {
  const selection = document.getSelection();
  return !selection.isCollapsed && main.contains(selection.anchorNode) && !document.activeElement?.matches("input, select");
}

let shown = null; // what the server sent last, without our marks

function swap(next, page) {
  document.body.dataset.version = page.body.dataset.version;
  document.title = page.title;
  if (shown === next.innerHTML) return;
  const main = document.getElementById("main"), now = Date.now();
  if (isSelected(main)) {
    tell("waits while text is selected");
    document.addEventListener("selectionchange", refresh, { once: true });
    return;
  }
  tell("live");
  const said = compare(main, next, now);
  shown = next.innerHTML;
  const restore = remember(main);
  const adopted = document.importNode(next, true);
  decorate(adopted, now);
  offerCopies(adopted);
  restore(...put(main, adopted));
  say(said);
  setTimeout(sweep, SHOWN_MS + 100);
}

function tell(text) {
  const state = document.getElementById("state");
  if (state.textContent !== text) state.textContent = text;
}

let stream = null;

function follow() {
  const wanted = document.body.dataset.live.split(" ").filter(Boolean);
  if (!wanted.length || stream || document.hidden) return;
  stream = new EventSource("/live");
  stream.addEventListener("state", (event) => {
    tell("live");
    if (rested || JSON.parse(event.data).version !== document.body.dataset.version) refresh();
    rested = false;
  });
  stream.addEventListener("changed", (event) => {
    const changed = JSON.parse(event.data);
    if (changed.what.some((what) => wanted.includes(what))) refresh();
  });
  stream.onerror = () => {
    const refused = stream.readyState === EventSource.CLOSED;
    tell(refused ? "not live: the server refuses, reload to see changes" : "not live: connecting again");
    if (!refused) return;
    rest();
    setTimeout(follow, RETRY_MS);
  };
}

let rested = false; // whether the page may have missed something

// A browser opens six connections to a server at most: tabs that nobody sees leave theirs to others.
function rest() {
  stream?.close();
  stream = null;
  rested = true;
}

// Proposals while somebody types.
function complete(field) {
  const list = document.getElementById(field.getAttribute("list"));
  let last = null, timer = 0;
  const ask = async () => {
    const text = field.value;
    if (text === last) return;
    last = text;
    const query = new URLSearchParams({ for: field.dataset.completes, text });
    try {
      const response = await fetch(`/complete?${query}`);
      if (!response.ok || field.value !== text) return;
      const { proposals } = await response.json();
      list.replaceChildren(...proposals.map(({ value }) => {
        const option = document.createElement("option");
        option.value = value;
        return option;
      }));
    } catch { /* no proposals, then */ }
  };
  field.addEventListener("focus", ask);
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(ask, 150);
  });
}

// Fields come anew with each swap.
document.addEventListener("focusin", (event) => {
  const field = event.target;
  if (field.dataset?.completes && !field.dataset.completing) {
    field.dataset.completing = "yes";
    complete(field);
    field.dispatchEvent(new Event("focus"));
  }
});

// Keys, as in k9s: never while somebody types, and nothing that has no link.
const GO_MS = 1500; // for which the second key after "g" is awaited
let going = 0;

document.addEventListener("keydown", (event) => {
  const dialog = document.getElementById("key-list");
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || dialog.open) return;
  if (event.target.closest("input, select, textarea, [contenteditable]")) return;
  if (Date.now() - going < GO_MS) {
    going = 0;
    const links = [...document.querySelectorAll("nav[aria-label=Pages] a")];
    links.find((link) => link.textContent.trim().toLowerCase().startsWith(event.key))?.click();
  } else if (event.key === "/" || event.key === ":") {
    event.preventDefault();
    document.getElementById("search").focus();
  } else if (event.key === "?") dialog.showModal();
  else if (event.key === "g") going = Date.now();
});

const COPIED_MS = 3000;

// A button beside each command. Commands come anew with each swap.
function offerCopies(main) {
  if (!navigator.clipboard) return; // it is there on loopback, and by HTTPS
  for (const command of main.querySelectorAll(".command")) {
    if (command.nextElementSibling?.matches(".copy")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.ariaLabel = `Copy ${command.textContent.slice(0, 60)}`;
    command.after(button);
  }
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest(".copy");
  if (!button) return;
  const name = button.ariaLabel;
  button.ariaLabel = null; // until it says again what it does
  try {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
    say(["copied"]);
  } catch {
    document.getSelection().selectAllChildren(button.previousElementSibling); // the browser refuses: Ctrl-C copies it
    button.textContent = "Selected";
  }
  setTimeout(() => {
    button.textContent = "Copy";
    button.ariaLabel = name;
  }, COPIED_MS);
});

shown = document.getElementById("main").innerHTML;
offerCopies(document.getElementById("main"));
document.addEventListener("visibilitychange", () => (document.hidden ? rest() : follow()));
window.addEventListener("pagehide", rest);
window.addEventListener("pageshow", follow);
follow();
