// Headings that have all words of what is typed, at most forty.
const field = document.getElementById("search");
const found = document.getElementById("found");
field.addEventListener("input", () => {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  found.replaceChildren();
  if (!words.length) return;
  let left = 40;
  for (const [file, title, headings] of PAGES) {
    for (const [anchor, text] of headings) {
      const where = (title + " " + text).toLowerCase();
      if (left === 0 || !words.every((word) => where.includes(word))) continue;
      left -= 1;
      const link = document.createElement("a");
      link.href = file + "#" + anchor;
      link.textContent = text === title ? title : title + ": " + text;
      const item = document.createElement("li");
      item.append(link);
      found.append(item);
    }
  }
});
// On a narrow screen the list of pages is folded away.
if (matchMedia("(max-width: 50rem)").matches) document.querySelector("details").open = false;
