{
  const [[symbols, words, order], checks] = read("words");
  const texts = read("texts"), findings = read("findings"), lists = read("lists");
  const CHECK = 0, VERDICT = 1, TITLE = 2, EXPECTED = 3, FOUND = 4, HINT = 5, EVIDENCE = 6, WAIVER = 7, CAUSE = 8;
  // The worst first; what is not applicable is never the worst.
  const ranks = Object.keys(words).filter((verdict) => !order.includes(verdict));
  const rank = (verdict) => [...order, ...ranks].indexOf(verdict);
  const verdictBadge = (verdict) => badge(verdict, symbols[verdict], words[verdict]);
  const family = (check) => check.split(":")[0];
  const verdictOf = (finding) => texts[finding[VERDICT]];

  // Many hosts have the same findings: what is known of a list is found once.
  const known = lists.map(() => null);
  const about = (number) => {
    if (!known[number]) {
      const sorted = lists[number].map((one) => findings[one]).sort((a, b) => rank(verdictOf(a)) - rank(verdictOf(b)));
      const worst = new Map();
      for (const finding of sorted) {
        const check = family(texts[finding[CHECK]]);
        if (!worst.has(check)) worst.set(check, verdictOf(finding));
      }
      const problems = sorted.filter((finding) => rank(verdictOf(finding)) < rank("waived"));
      known[number] = {
        sorted, worst,
        causes: new Set(problems.map((finding) => finding[CAUSE])),
        failed: new Set(problems.map((finding) => family(texts[finding[CHECK]]))),
        words: problems.map((finding) => texts[finding[CHECK]]).join(" "),
      };
    }
    return known[number];
  };

  const hosts = read("hosts").map(([name, verdict, profile, examined, list, seconds, boot, stack, gaps, topology, trouble]) => ({
    name, list, seconds, boot, stack, gaps, topology, trouble,
    verdict: texts[verdict], profile: texts[profile], examined: texts[examined],
    bad: texts[verdict] !== "pass",
    get causes() { return trouble ? new Set([trouble[3]]) : about(list).causes; },
    words() {
      return `${name} ${texts[profile]} ${words[texts[verdict]]} ${trouble ? texts[trouble[0]] : about(list).words}`.toLowerCase();
    },
  }));
  hosts.sort((a, b) => rank(a.verdict) - rank(b.verdict));

  const columns = (shown, everything) => {
    const failed = new Set(shown.flatMap((host) => [...about(host.list).failed]));
    const named = checks.filter((check) => everything || failed.has(check));
    const edge = (check, at) => (at === 0 || check.split(".")[0] !== named[at - 1].split(".")[0] ? " edge" : "");
    return [["verdict", ""], ...named.map((check, at) => [check, `name${edge(check, at)}`])];
  };

  const cells = (host, heads) => {
    const first = el("td", { role: "gridcell", class: "wide" }, verdictBadge(host.verdict));
    if (host.trouble) {
      const message = texts[host.trouble[1]].split("\n")[0];
      return [first, el("td", { role: "gridcell", class: "wide why", colspan: Math.max(1, heads.length - 1) }, message)];
    }
    const { worst } = about(host.list);
    return [first, ...heads.slice(1).map(([check, style]) => {
      const verdict = worst.get(check);
      const cell = el("td", { role: "gridcell", class: `${verdict ?? "none"}${style.slice(4)}`, "data-check": check },
        verdict
          ? el("span", { class: verdict, title: `${host.name}: ${check}: ${words[verdict]}` },
              el("span", { "aria-hidden": "true" }, symbols[verdict]), el("span", { class: "hidden" }, words[verdict]))
          : el("span", { title: "not run on this host" }, "·"));
      return cell;
    })];
  };

  const summary = (host) => [
    verdictBadge(host.verdict), " ",
    el("span", { class: "meta" }, [`profile ${host.profile}`, host.examined, `${host.seconds.toFixed(1)} s`]
      .filter((word) => word).map((word) => el("span", null, word))),
  ];

  const findingOf = (finding) => {
    const [check, verdict, title, expected, found, hint] = finding.slice(0, EVIDENCE).map((text) => texts[text]);
    const waiver = finding[WAIVER].map((text) => texts[text]);
    const one = el("details", { class: "finding", "data-check": family(check) },
      el("summary", null, verdictBadge(verdict), " ", el("code", null, check), " ", el("span", { class: "soft" }, title)),
      list([
        ["expected", expected], ["found", found], ["what to do", commands(hint).filter((part) => part), "hint"],
        ["waived", waiver.length ? `until ${waiver[0]}: ${waiver[1]} (the check said: ${waiver[2]})` : "", "hint"],
      ]),
      finding[EVIDENCE].length
        ? el("pre", { tabindex: 0, role: "group", "aria-label": `evidence of ${check}` },
            finding[EVIDENCE].map((line) => texts[line]).join("\n"))
        : null);
    one.open = verdict === "fail";
    return one;
  };

  const fill = (details, host) => {
    const { sorted } = about(host.list);
    const part = (head, inside) => el("div", null, el("h3", null, head), inside);
    const stack = host.stack.map((pair) => pair.map((text) => texts[text]));
    const mounts = sorted.filter((finding) => family(texts[finding[CHECK]]) === "storage.path");
    if (host.trouble) {
      const [kind, message, hint] = host.trouble.map((text) => texts[text]);
      details.append(list([[kind, message], ["what to do", commands(hint), "hint"]]));
    }
    details.append(el("div", { class: "columns" },
      stack.length ? part("What runs", pairs(host.boot ? [...stack, ["boot id", host.boot]] : stack)) : null,
      mounts.length
        ? part("Storage paths", pairs(
            mounts.map((one) => [texts[one[CHECK]].split(":").slice(1).join(":"), texts[one[EXPECTED]], texts[one[FOUND]],
              verdictBadge(verdictOf(one))]), ["mount", "wanted", "takes", "verdict"]))
        : null));
    if (host.topology >= 0) details.append(document.getElementById(`topology-${host.topology}`).content.cloneNode(true));
    if (host.topology === -2) {
      details.append(el("p", { class: "soft" }, "The page has no room for this host's topology: ", el("code", null, "gdsdeploy topology"), " shows it."));
    }
    if (host.gaps.length) {
      details.append(el("h3", null, "Evidence is incomplete"), el("ul", null, host.gaps.map((gap) => el("li", null, texts[gap]))));
    }
    const problems = sorted.filter((finding) => rank(verdictOf(finding)) < rank("pass"));
    const rest = sorted.filter((finding) => !problems.includes(finding));
    if (sorted.length) details.append(el("h3", null, "Checks"), ...problems.map(findingOf));
    if (rest.length) {
      details.append(el("details", { class: "rest" }, el("summary", null, `${rest.length} checks without a problem`), rest.map(findingOf)));
    }
  };

  browse({
    label: "hosts and their checks", hosts, more: "all checks", columns, cells, summary, fill,
    focus: (details, cell) =>
      cell.dataset.check ? details.querySelector(`.finding[data-check="${CSS.escape(cell.dataset.check)}"]`) : null,
  });
}
