// SPDX-License-Identifier: Apache-2.0

// Shows decisions as the server makes them.
"use strict";

const MOST_ROWS = 200;
const MOST_RECORDS = 4;
const AGAIN_MS = 5000;
const LABELS = ["", "Client", "Question", "Service", "Outcome", "Answer"]; // the words in the head, as cells have them on a phone
const ZONE = "topology.kubernetes.io/zone";

function tail(view) {
  const rows = document.getElementById("decisions"), state = document.getElementById("tail-state");
  const nothing = document.getElementById("nothing-new");
  const pause = document.getElementById("pause"), clear = document.getElementById("clear");
  let paused = false, missed = 0, lost = 0, connected = false;

  const show = (text) => {
    const parts = [text];
    if (paused) parts.push(`${missed} not shown`);
    if (lost) parts.push(`${lost} lost: the server makes more than it can tell`);
    state.textContent = parts.join(", ");
  };

  const add = (line) => {
    const row = document.createElement("tr");
    for (const [number, content] of contents(line).entries()) {
      const cell = document.createElement(number ? "td" : "th");
      if (number) cell.dataset.label = LABELS[number];
      else cell.scope = "row";
      cell.append(...content);
      row.append(cell);
    }
    nothing.hidden = true;
    rows.prepend(row);
    while (rows.children.length > MOST_ROWS) rows.lastElementChild.remove();
  };

  const connect = () => {
    const stream = new EventSource(view.dataset.source);
    stream.onopen = () => {
      connected = true;
      nothing.hidden = Boolean(rows.children.length);
      show(paused ? "paused" : "listening");
    };
    stream.onmessage = (event) => {
      if (paused) {
        missed += 1;
        show("paused");
      } else add(JSON.parse(event.data));
    };
    stream.addEventListener("lost", (event) => {
      lost += JSON.parse(event.data).lost;
      show(paused ? "paused" : "listening");
    });
    stream.onerror = async () => {
      if (stream.readyState !== EventSource.CLOSED) {
        show("the server has gone, connecting again");
        return;
      }
      connected = false;
      show(await reason(view.dataset.source));
      setTimeout(connect, AGAIN_MS);
    };
    window.addEventListener("pagehide", () => stream.close(), { once: true });
  };

  pause.addEventListener("click", () => {
    paused = !paused;
    missed = 0;
    pause.setAttribute("aria-pressed", paused);
    pause.textContent = paused ? "Resume" : "Pause";
    show(paused ? "paused" : connected ? "listening" : "connecting");
  });
  clear.addEventListener("click", () => rows.replaceChildren());
  connect();
}

// Why the server refuses a stream. EventSource does not tell.
async function reason(source) {
  const asked = new AbortController();
  try {
    const response = await fetch(source, { signal: asked.signal });
    if (response.ok) return "connecting again";
    const problem = await response.json();
    return `the server refuses: ${problem.detail}`;
  } catch {
    return "the server cannot be reached";
  } finally {
    asked.abort();
  }
}

// What stands in each cell of a row, as the macro in tail.html has it for decisions from before.
function contents(line) {
  const { client, question, service } = line;
  const who = client.address ? `${client.address} (${client.holder || client.located_by})` : `unnamed by ${line.source}`;
  const asked = `${question.name} ${question.type}`, query = new URLSearchParams({ name: question.name, client: client.address, type: question.type });
  const decisive = line.steps.length ? line.steps[line.steps.length - 1] : null;
  const by = line.outcome === "nearest" && decisive && decisive.value !== null ? ` ${decisive.key.split("/").pop()}=${decisive.value}` : "";
  return [
    [line.time.slice(11, 23)],
    [who, ...zone(client.address && client.labels[ZONE])],
    [client.address ? link(`/explain?${query}`, asked) : asked],
    service ? [link(`/services/${encodeURIComponent(service.namespace)}/${encodeURIComponent(service.name)}`, `${service.namespace}/${service.name}`)] : [],
    [badge(line.outcome, line.outcome), by],
    answers(line),
  ];
}

function answers(line) {
  const ending = line.truncated ? [", truncated"] : [];
  if (line.rcode !== "NOERROR") return [line.rcode, ...ending];
  if (!line.answers.length) return ["no records", ...ending];
  const places = new Map(line.places.map((place) => [place.address, place])), parts = [];
  for (const { data } of line.answers.slice(0, MOST_RECORDS)) {
    const place = places.get(data), pod = place?.holder?.startsWith("pod ") ? ` (${place.holder.slice(4)})` : "";
    parts.push(parts.length ? ", " : "", data + pod, ...zone(place?.zone));
  }
  if (line.answers.length > MOST_RECORDS) parts.push(` and ${line.answers.length - MOST_RECORDS} more`);
  return [...parts, ...ending];
}

function link(address, text) {
  const element = document.createElement("a");
  element.href = address;
  element.textContent = text;
  return element;
}

function zone(name) {
  if (!name) return [];
  const element = document.createElement("span");
  element.className = "of";
  element.textContent = name;
  return [" ", element];
}

function badge(outcome, text) {
  const tones = { nearest: ["good", "●"], all: ["warn", "◐"], spilled: ["spilled", "↷"], unmet: ["bad", "✕"] };
  const [tone, symbol] = tones[outcome] || ["note", "○"];
  const element = document.createElement("span");
  element.className = `badge ${tone}`;
  const sign = document.createElement("span");
  sign.ariaHidden = "true";
  sign.textContent = symbol;
  element.append(sign, ` ${text}`);
  return element;
}

const view = document.getElementById("tail");
if (view) tail(view);
