// Opens each page in a frame of a given width, and posts what is cut off there.
async function measure(pages, widths) {
  const found = [];
  const frame = document.createElement("iframe");
  document.body.append(frame);
  for (const width of widths) {
    frame.style.cssText = `width: ${width}px; height: 900px; border: 0`;
    for (const page of pages) {
      await new Promise((loaded) => {
        frame.onload = loaded;
        frame.src = page;
      });
      const { document, getComputedStyle } = frame.contentWindow;
      const note = (what, element) =>
        found.push(`${page} at ${width}: ${what}: ${element.textContent.trim().slice(0, 40)}`);
      const scrolls = (element) =>
        element && (/auto|scroll/.test(getComputedStyle(element).overflowX) ||
          scrolls(element.parentElement));
      document.querySelectorAll("details").forEach((each) => { each.open = true; });
      if (document.documentElement.scrollWidth > width)
        found.push(`${page} at ${width}: the page is wider than the window`);
      for (const element of document.querySelectorAll("article table, article pre, article img, article svg"))
        if (element.getBoundingClientRect().right > width + 1 && !scrolls(element.parentElement))
          note("clipped", element);
      for (const code of document.querySelectorAll(".doc-signature code"))
        if (code.scrollWidth > code.clientWidth + 1 && width > 1000)
          note("a signature that is cut off", code);
    }
  }
  await fetch("/found", { method: "POST", body: JSON.stringify(found) });
}
