// Opens each page in a frame, in each width, and posts what is cut off there.
async function measure(pages, widths) {
  const frame = document.createElement("iframe");
  document.body.append(frame);
  const found = [];
  for (const page of pages) {
    frame.style.cssText = `width: ${widths[0]}px; height: 900px; border: 0`;
    await new Promise((loaded) => {
      frame.onload = loaded;
      frame.src = page;
    });
    frame.contentDocument.querySelectorAll("details").forEach((each) => { each.open = true; });
    for (const width of widths) {
      frame.style.width = `${width}px`;
      found.push(...cutOff(frame.contentWindow, width).map((what) => `${page} at ${width}: ${what}`));
    }
  }
  return found;
}

// What of a page cannot be read in a window of this width. Asking for sizes lays it out.
function cutOff({ document, getComputedStyle }, width) {
  const scrolls = (element) =>
    element.localName !== "article" &&
    (/auto|scroll/.test(getComputedStyle(element).overflowX) || scrolls(element.parentElement));
  const found = [];
  const note = (what, element) => found.push(`${what}: ${element.textContent.trim().slice(0, 40)}`);
  if (document.documentElement.scrollWidth > width)
    found.push("the page is wider than the window");
  for (const element of document.querySelectorAll("article :is(table, pre, img, svg)"))
    if (element.getBoundingClientRect().right > width + 1 && !scrolls(element.parentElement))
      note("clipped", element);
  for (const code of document.querySelectorAll(".doc-signature code"))
    if (code.scrollWidth > code.clientWidth + 1 && width > 1000)
      note("a signature that is cut off", code);
  return found;
}

async function post(measured) {
  const found = await measured.catch((error) => [`${error}`]);
  await fetch("/found", { method: "POST", body: JSON.stringify(found) });
}
