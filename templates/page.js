"use strict";
// What both pages share. Texts become text, never markup: nothing that a host says is run.

const read = (name) => JSON.parse(document.getElementById(`data-${name}`).textContent);

const el = (tag, attributes, ...inside) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...inside.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== ""));
  return element;
};

const badge = (style, symbol, word) =>
  el("span", { class: `badge ${style}` }, el("span", { "aria-hidden": "true" }, symbol), ` ${word}`);

// What stands between backticks is a command.
const commands = (text) => {
  const parts = text.split("`");
  return parts.length % 2 ? parts.map((part, at) => (at % 2 ? el("code", null, part) : part)) : [text];
};

const pairs = (rows, head) =>
  el("table", { class: "pairs" },
    head ? el("thead", null, el("tr", null, head.map((word) => el("th", { scope: "col" }, word)))) : null,
    el("tbody", null, rows.map(([name, ...values]) =>
      el("tr", null, el("th", { scope: "row" }, name), values.map((value) => el("td", { class: "mono" }, value))))));

const list = (rows) =>
  el("dl", null, rows.filter(([, value]) => value.length).map(([name, value, style]) =>
    [el("dt", null, name), el("dd", style ? { class: style } : null, value)]));

// A table with one stop for the Tab key: arrows, Home and End move within it, Enter opens.
const grid = (table, open) => {
  const cells = (row) => [...row.cells].filter((cell) => cell.offsetParent !== null);
  const goTo = (cell) => {
    table.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
    cell.setAttribute("tabindex", "0");
    cell.focus();
  };
  table.addEventListener("keydown", (event) => {
    const cell = event.target.closest("td, th");
    if (!cell || event.altKey || event.metaKey) return;
    const rows = [...table.tBodies[0].rows];
    const row = rows.indexOf(cell.parentElement), column = cell.cellIndex;
    const beside = cells(cell.parentElement), at = beside.indexOf(cell);
    const inRow = (number) => {
      const other = rows[Math.max(0, Math.min(rows.length - 1, number))];
      const same = other.cells[Math.min(column, other.cells.length - 1)];
      return same.offsetParent === null ? cells(other)[0] : same;
    };
    const keys = {
      ArrowLeft: () => beside[at - 1], ArrowRight: () => beside[at + 1],
      ArrowUp: () => inRow(row - 1), ArrowDown: () => inRow(row + 1),
      PageUp: () => inRow(row - 10), PageDown: () => inRow(row + 10),
      Home: () => (event.ctrlKey ? cells(rows[0])[0] : beside[0]),
      End: () => (event.ctrlKey ? cells(rows.at(-1)).at(-1) : beside.at(-1)),
    };
    if (event.key in keys) {
      event.preventDefault();
      const next = keys[event.key]();
      if (next) goTo(next);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      open(cell);
    }
  });
  table.addEventListener("click", (event) => {
    const cell = event.target.closest("tbody td, tbody th");
    if (cell) {
      goTo(cell);
      open(cell);
    }
  });
};

// Rows of the table at a time, and hosts whose details are printed.
const ROWS = 100, PRINTED = 20;

// The hosts: a filter, a table of one row each, and details that are made when they are opened.
//   hosts      each has name, bad, cause (a set), words (what the filter looks at)
//   more       words of a further box to tick, or null
//   sort       (hosts, ticked) → the same in another order; optional
//   columns    (hosts, ticked) → heads of the columns after the host's
//   cells      (host, columns) → a td for each of them
//   summary    host → what stands beside its name;  fill: (details, host) → adds its details
//   focus      (details, cell) → the part of the details that the cell is about, or null
const browse = ({ label, hosts, more, sort, columns, cells, summary, fill, focus }) => {
  const place = document.getElementById("browser");
  const bad = hosts.filter((host) => host.bad).length;
  let cause = null, rows = ROWS, opener = null;
  const filter = el("input", { type: "search", id: "filter", autocomplete: "off", spellcheck: "false" });
  const all = el("input", { type: "checkbox", id: "all-hosts" });
  const ticked = el("input", { type: "checkbox", id: "more" });
  const reset = el("button", { type: "button", hidden: true }, "Hosts of all causes");
  const next = el("button", { type: "button", class: "next" });
  const count = el("span", { role: "status", class: "soft" });
  const box = el("div", { class: "card scroll" });
  const details = el("div", { id: "details" });
  all.checked = !bad;

  const add = (host, before) => {
    const one = el("details", { class: "card host" }, el("summary", null, el("b", null, host.name), " ", summary(host)));
    one.host = host;
    one.addEventListener("toggle", () => one.open && complete(one));
    if (before) details.prepend(one);
    else details.append(one);
    return one;
  };
  const complete = (one) => {
    if (one.childElementCount === 1) fill(one, one.host);
  };
  const open = (host, cell) => {
    const one = [...details.children].find((other) => other.host === host) ?? add(host, true);
    complete(one);
    one.open = true;
    opener = cell;
    const part = (cell && focus(one, cell)) ?? one;
    for (let up = part; up && up !== details; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
    part.scrollIntoView({ block: "start" });
    part.firstElementChild.focus({ preventScroll: true });
  };
  const draw = () => {
    const text = filter.value.trim().toLowerCase();
    const chosen = hosts.filter((host) =>
      (cause === null ? all.checked || host.bad : host.causes.has(cause)) && (!text || host.words().includes(text)));
    const matches = sort ? sort(chosen, ticked.checked) : chosen;
    const shown = matches.slice(0, rows), heads = columns(shown, ticked.checked);
    const table = el("table", { class: "grid", role: "grid", "aria-label": label, "aria-rowcount": matches.length + 1 },
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" },
        [["host", ""], ...heads].map(([head, style]) =>
          el("th", { scope: "col", role: "columnheader", class: style }, el("span", null, head))))),
      el("tbody", { role: "rowgroup" }, shown.map((host, at) => {
        const row = el("tr", { role: "row", "aria-rowindex": at + 2 },
          el("th", { scope: "row", role: "rowheader" }, host.name), cells(host, heads));
        row.host = host;
        for (const cell of row.cells) cell.setAttribute("tabindex", "-1");
        return row;
      })));
    table.tBodies[0].rows[0]?.cells[0].setAttribute("tabindex", "0");
    grid(table, (cell) => open(cell.parentElement.host, cell));
    box.replaceChildren(table);
    box.hidden = !matches.length;
    details.replaceChildren();
    for (const host of shown) add(host);
    const rest = matches.length - shown.length;
    count.textContent = `${matches.length} of ${hosts.length} hosts` +
      (all.checked || cause !== null ? "" : `; ${hosts.length - bad} without a problem are left out`) +
      (rest ? `; the first ${shown.length} are shown` : "");
    next.textContent = `Show ${Math.min(rest, ROWS)} more`;
    next.hidden = !rest;
    reset.hidden = cause === null;
  };
  const redraw = () => {
    rows = ROWS;
    draw();
  };
  const choose = (number) => {
    cause = number;
    redraw();
  };

  let timer = 0;
  filter.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(redraw, 120);
  });
  all.addEventListener("change", () => choose(null));
  ticked.addEventListener("change", draw);
  reset.addEventListener("click", () => {
    choose(null);
    filter.focus();
  });
  next.addEventListener("click", () => {
    rows += ROWS;
    draw();
  });
  details.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && opener?.isConnected) opener.focus();
  });
  place.replaceChildren(
    el("div", { class: "tools" },
      el("label", { for: "filter" }, "Filter ", filter),
      el("label", { for: "all-hosts" }, all, " all hosts"),
      more ? el("label", { for: "more" }, ticked, ` ${more}`) : null,
      reset, count),
    box, next, details);
  draw();

  for (const card of document.querySelectorAll("[data-cause]")) {
    const button = el("button", { type: "button" }, "Show these hosts");
    button.addEventListener("click", () => {
      choose(Number(card.dataset.cause));
      document.getElementById("matrix").scrollIntoView();
      box.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
    });
    const buttons = el("div", { class: "buttons" }, button);
    const command = card.querySelector(".hint code")?.textContent;
    // Where the hosts are too many for a command, it has HOST in place of their names.
    if (command && !/\bHOST\b/.test(command) && navigator.clipboard) {
      const copy = el("button", { type: "button" }, "Copy the command");
      copy.addEventListener("click", async () => {
        await navigator.clipboard.writeText(command);
        copy.textContent = "Copied";
      });
      buttons.prepend(copy);
    }
    card.append(buttons);
  }

  // The address page.html#host=NAME opens a host.
  const follow = () => {
    const host = hosts.find((one) => location.hash === `#host=${encodeURIComponent(one.name)}`);
    if (host) open(host, null);
  };
  addEventListener("hashchange", follow);
  follow();
  // On paper nothing can be opened: where the hosts with problems are few, their details are printed.
  addEventListener("beforeprint", () => {
    const printed = [...details.children].filter((one) => one.host.bad);
    for (const one of printed.length <= PRINTED ? printed : []) {
      complete(one);
      one.open = true;
    }
  });
  document.documentElement.dataset.ready = "yes";
};
