"use strict";
// A search that a request did not end goes on by itself, to a page of records or to the log start.
(async () => {
  const search = document.querySelector("#search");
  if (!search) return;
  const [bar, stop, rows] = [search.querySelector("progress"), search.querySelector("button"), document.querySelector(".records tbody")];
  let next = search.dataset.next;
  stop.hidden = false;
  stop.addEventListener("click", () => (next = null));
  while (next && rows.rows.length < 50) {
    const answer = await fetch(next);
    if (!answer.ok) break;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    rows.append(...page.querySelectorAll(".records tbody tr"));
    document.querySelector("#found").textContent = `${rows.rows.length} ${rows.rows.length === 1 ? "record" : "records"} found`;
    document.querySelector("#passed").textContent = page.querySelector("#passed").textContent;
    const further = page.querySelector("#search");
    bar.value = further ? further.querySelector("progress").value : 1;
    const links = page.querySelectorAll("nav.pages");
    document.querySelectorAll("nav.pages").forEach((nav, place) => nav.replaceChildren(...links[place].cloneNode(true).childNodes));
    next = next && further && further.dataset.next;
  }
  search.hidden = true;
})();
