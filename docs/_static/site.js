// On a phone a table that is wider than the page is shown as cards: one cell below the other, each after its heading.
async function cards() {
  await window.MathJax?.startup?.promise;
  if (window.innerWidth > 600) return;
  for (const box of document.querySelectorAll(".bd-article .pst-scrollable-table-container")) {
    if (box.scrollWidth <= box.clientWidth + 1) continue;
    const heads = [...box.querySelectorAll("thead th")].map((head) => head.textContent.trim());
    for (const row of box.querySelectorAll("tbody tr"))
      [...row.children].forEach((cell, column) => {
        if (heads.length > 2 && column > 0 && heads[column] && cell.textContent.trim()) cell.dataset.head = heads[column];
      });
    box.classList.add("cards");
  }
}
window.addEventListener("load", cards);
window.addEventListener("resize", cards);
