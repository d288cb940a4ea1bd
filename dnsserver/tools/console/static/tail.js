// SPDX-License-Identifier: Apache-2.0

// Shows decisions as the server makes them.
"use strict";

const MOST_ROWS = 200;
const MOST_RECORDS = 4;
const AGAIN_MS = 5000;
const LABELS = ["", "Client", "Question", "Outcome", "Answer"]; // the words in the head, as cells have them on a phone

function tail(view) {
  const rows = document.getElementById("decisions"), state = document.getElementById("tail-state");
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
    for (const [number, text] of texts(line).entries()) {
      const cell = document.createElement(number ? "td" : "th");
      if (number) cell.dataset.label = LABELS[number];
      else cell.scope = "row";
      cell.append(number === 3 ? badge(line.outcome, text) : text);
      row.append(cell);
    }
    rows.prepend(row);
    while (rows.children.length > MOST_ROWS) rows.lastElementChild.remove();
  };

  const connect = () => {
    const stream = new EventSource(view.dataset.source);
    stream.onopen = () => {
      connected = true;
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

function texts(line) {
  const client = line.client.address ? `${line.client.address} (${line.client.holder || line.client.located_by})` : `unnamed by ${line.source}`;
  const decisive = line.steps.length ? line.steps[line.steps.length - 1] : null;
  const by = line.outcome === "nearest" && decisive && decisive.value !== null ? ` ${decisive.key.split("/").pop()}=${decisive.value}` : "";
  const data = line.answers.map((answer) => answer.data);
  const more = data.length > MOST_RECORDS ? ` and ${data.length - MOST_RECORDS} more` : "";
  const answer = line.rcode !== "NOERROR" ? line.rcode : data.length ? data.slice(0, MOST_RECORDS).join(", ") + more : "no records";
  return [line.time.slice(11, 23), client, `${line.question.name} ${line.question.type}`, line.outcome + by, answer + (line.truncated ? ", truncated" : "")];
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
