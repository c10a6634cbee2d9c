"use strict";
// Find, sort, and a card for the segment under the pointer. The page says all it has to say without this.
(() => {
  const form = document.querySelector(".controls");
  const main = document.querySelector("main");
  // A page of one partition has nothing to find. On a phone the log comes first.
  if (form && matchMedia("(max-width: 40rem)").matches) document.querySelector(".filters").open = false;
  const value = (element, name) => Number(element.querySelector(`data.${name}`).value);
  const partitions = new Map();
  const topics = [...document.querySelectorAll(".topic")].map((element, place) => {
    const rows = [...element.querySelectorAll("details.row")].map((row, number) => {
      const ratio = row.querySelector("data.dirty_ratio");
      const one = {
        row, number, name: row.id.toLowerCase(), due: "due" in row.dataset,
        size: value(row, "size_bytes"), records: value(row, "records"),
        segments: value(row, "segments") + value(row, "chunks"),
        ratio: ratio ? Number(ratio.value) : -1,
        next: "due" in row.dataset ? 0 : row.dataset.next ? -Number(row.dataset.next) : -Infinity,
      };
      partitions.set(row, one);
      return one;
    });
    return { element, place, rows, list: element.querySelector(".partitions"), policy: element.dataset.policy.split(",") };
  });
  // The table of topics; where no partition is on the page, it is what is counted.
  const lines = [...document.querySelectorAll(".topics tbody tr")].map((row, place) => ({
    row, place, name: row.dataset.topic.toLowerCase(), policy: row.dataset.policy.split(","), due: "due" in row.dataset,
    size: Number(row.dataset.size), records: Number(row.dataset.records), segments: Number(row.dataset.segments),
    ratio: Number(row.dataset.ratio),
    next: "due" in row.dataset ? 0 : row.dataset.next ? -Number(row.dataset.next) : -Infinity,
  }));
  const count = topics.reduce((sum, topic) => sum + topic.rows.length, 0);

  function find() {
    const text = form.find.value.trim().toLowerCase();
    const policy = form.policy ? form.policy.value : ""; // the page of one topic has no policy to choose
    let shown = 0;
    for (const topic of topics) {
      const fits = !policy || topic.policy.includes(policy);
      let any = false;
      for (const one of topic.rows) {
        const there = fits && one.name.includes(text) && (!form.due.checked || one.due);
        one.row.hidden = !there;
        any ||= there;
        shown += there;
      }
      topic.element.hidden = !any;
    }
    let linesShown = 0;
    for (const line of lines) {
      const fits = !policy || line.policy.includes(policy);
      const shownBelow = topics[line.place] && !topics[line.place].element.hidden;
      const there = topics.length ? shownBelow : fits && line.name.includes(text) && (!form.due.checked || line.due);
      line.row.hidden = !there;
      linesShown += there;
    }
    if (!topics.length) {
      form.shown.value = `${linesShown.toLocaleString("en")} of ${lines.length.toLocaleString("en")} topics`;
      return;
    }
    if (text || form.due.checked) for (const fold of document.querySelectorAll(".fold")) fold.open = true;
    form.shown.value = `${shown.toLocaleString("en")} of ${count.toLocaleString("en")} partitions`;
  }

  function sort() {
    const by = form.sort.value;
    // Largest first, what is due before what comes later; a topic stands where its first partition does.
    const order = (one, other) => (by === "name" ? 0 : other[by] - one[by] || 0) || one.number - other.number;
    for (const topic of topics) {
      topic.rows.sort(order);
      topic.list.append(...topic.rows.map((one) => one.row));
    }
    const top = (topic) => (by === "name" || !topic.rows.length ? 0 : topic.rows[0][by]);
    const sorted = [...topics].sort((one, other) => top(other) - top(one) || one.place - other.place);
    main.append(...sorted.map((topic) => topic.element));
    const body = document.querySelector(".topics tbody");
    const byName = (line, other) => line.place - other.place;
    if (body) {
      const ordered = [...lines].sort((line, other) => (by === "name" ? 0 : other[by] - line[by] || 0) || byName(line, other));
      body.append(...ordered.map((line) => line.row));
    }
  }

  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true");
  document.body.append(tip);
  let marked = [];

  function leave() {
    for (const element of marked) element.classList.remove("at");
    marked = [];
    tip.hidden = true;
  }

  function enter(block, x, y) {
    leave();
    const partition = block.closest("details.row");
    const row = partition.querySelectorAll("tbody tr")[[...block.parentNode.children].indexOf(block)];
    const list = document.createElement("dl");
    partition.querySelectorAll("th").forEach((head, place) => {
      const name = document.createElement("dt");
      const text = document.createElement("dd");
      name.textContent = head.textContent;
      text.textContent = row.cells[place].textContent;
      if (text.textContent) list.append(name, text);
    });
    tip.replaceChildren(list);
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x - width / 2, innerWidth - width - 4))}px`;
    tip.style.top = `${y + 24 + height < innerHeight ? y + 24 : Math.max(4, y - height - 16)}px`;
    marked = [block, row];
    for (const element of marked) element.classList.add("at");
  }

  document.addEventListener("pointermove", (event) => {
    const block = event.target.closest?.(".strip i");
    if (block) enter(block, event.clientX, event.clientY);
    else if (marked.length) leave();
  });
  const unfold = () => {
    const topic = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const fold = topic && (topic.closest(".fold") || topic.querySelector(".fold"));
    if (fold) fold.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();
  addEventListener("scroll", leave, { passive: true });

  if (form) {
    form.addEventListener("input", (event) => (event.target.name === "sort" ? sort() : find()));
    form.addEventListener("submit", (event) => event.preventDefault());
    form.hidden = false;
    find();
  }
})();
