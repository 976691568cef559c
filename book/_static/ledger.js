// The ledger page: filters over its tables.
(() => {
  "use strict";
  const tables = [...document.querySelectorAll("article table")].filter((table) =>
    ["reported", "ours", "verdict"].every((name) =>
      [...table.querySelectorAll("thead th")].some((head) => head.textContent.trim() === name)));
  const rows = [];
  for (const table of tables) {
    const heads = [...table.querySelectorAll("thead tr:first-child th")];
    const verdict = heads.findIndex((head) => head.textContent.trim() === "verdict");
    for (const row of table.querySelectorAll("tbody tr")) {
      const cell = row.cells[verdict];
      if (!cell) continue;
      const section = row.closest("section");
      row.dataset.verdict = cell.textContent.trim();
      rows.push({ row, section, verdict: row.dataset.verdict });
    }
  }
  if (!rows.length) return;

  const heading = (section) =>
    section.querySelector("h2, h3").childNodes[0].textContent.trim();
  const box = document.createElement("div");
  box.className = "ledger-filter";
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", "Filter the ledger");
  function chooser(id, text, all, values) {
    const label = document.createElement("label");
    label.textContent = text;
    label.htmlFor = id;
    const select = document.createElement("select");
    select.id = id;
    select.add(new Option(all, ""));
    for (const value of values) select.add(new Option(value, value));
    select.addEventListener("change", filter);
    const pair = document.createElement("div");
    pair.append(label, select);
    box.append(pair);
    return select;
  }
  const sections = [...new Set(rows.map((entry) => entry.section))];
  const verdicts = [...new Set(rows.map((entry) => entry.verdict))].sort();
  const byVerdict = chooser("ledger-verdict", "Verdict", "all verdicts", verdicts);
  const bySection = chooser("ledger-section", "Section", "all sections", sections.map(heading));
  const count = document.createElement("p");
  count.id = "ledger-count";
  count.setAttribute("role", "status");
  box.append(count);
  document.querySelector("article h1").after(box);

  function filter() {
    let left = 0;
    const open = new Set();
    for (const { row, section, verdict } of rows) {
      const kept = (!byVerdict.value || verdict === byVerdict.value) &&
        (!bySection.value || heading(section) === bySection.value);
      row.classList.toggle("filtered", !kept);
      if (kept) { left += 1; open.add(section); }
    }
    for (const section of sections) section.classList.toggle("filtered", !open.has(section));
    count.textContent = `${left} of ${rows.length} rows; each id leads to the cell that computes it.`;
  }
  filter();
})();
