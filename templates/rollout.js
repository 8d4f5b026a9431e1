{
  const [[symbols, styles]] = read("words"), texts = read("texts");
  // The columns after the host's; numbers stand at the right.
  const NAMES = ["outcome", "wave", "took", "expected", "out of work", "disruption", "kernel", "validated"];
  const NUMBERS = ["took", "expected", "out of work"];
  const heads = NAMES.map((name) => [name, NUMBERS.includes(name) ? "number" : ""]);
  const text = (number) => texts[number];
  const stateBadge = (state) => badge(styles[state], symbols[state], state);

  const hosts = read("hosts").map(([name, row, failed, cause, away, reason, labels, known, steps]) => ({
    name, row: row.map(text), bad: Boolean(failed), causes: new Set([cause]), away, reason: texts[reason], labels, known, steps,
    words() { return `${name} ${this.row.join(" ")} ${labels.map(text).join(" ")}`.toLowerCase(); },
  }));

  const cells = (host) => host.row.map((value, at) =>
    at === 0
      ? el("td", { role: "gridcell", class: "wide" }, stateBadge(value))
      : el("td", { role: "gridcell", class: heads[at][1] || "wide", "data-name": NAMES[at] }, value));

  const fill = (details, host) => {
    if (host.reason) details.append(el("p", null, host.reason));
    if (host.labels.length) {
      details.append(el("p", { class: "meta" }, host.labels.map((label) => el("span", null, texts[label]))));
    }
    if (host.steps.length) {
      const rows = host.steps.map((step) => step.map(text)).map(([step, took, end, hint]) =>
        [el("code", null, step), took,
          [el("span", { class: end.startsWith("✗") ? "why" : "" }, end), hint ? el("div", null, commands(hint)) : null]]);
      details.append(el("h3", null, "Steps"), pairs(rows, ["step", "took", "outcome"]));
    }
    const known = host.known.map(text);
    if (known.length) {
      const rows = known.flatMap((word, at) => (at % 2 ? [] : [[word, known[at + 1]]]));
      details.append(el("h3", null, "What was found"), pairs(rows));
    }
  };

  browse({
    label: "hosts", hosts, more: "longest out of work first", columns: () => heads, cells, fill,
    sort: (chosen, ticked) => (ticked ? [...chosen].sort((a, b) => b.away - a.away) : chosen),
    summary: (host) => [stateBadge(host.row[0]), " ", el("span", { class: "meta" }, host.row.slice(1, 3).map((word) => el("span", null, word)))],
    focus: () => null,
  });
}
