// Gradio's accordions do not tell whether they are open, and open below the fold: one that has been opened comes into view,
// also as it grows, for some are filled by the server, until the person moves.
(() => {
  const GROWING_MS = 3000;
  let growing = null;
  const rest = () => growing?.disconnect();
  for (const kind of ["pointerdown", "wheel", "touchmove", "keydown"]) document.addEventListener(kind, rest, true);

  const reveal = (section) => {
    rest();
    growing = new ResizeObserver(() => section.scrollIntoView({ block: "nearest" }));
    growing.observe(section);
    setTimeout((observer) => observer.disconnect(), GROWING_MS, growing);
  };

  const start = () => {
    const panels = document.getElementById("panels");
    if (!panels) return setTimeout(start, 50);
    const tell = () => {
      for (const head of panels.querySelectorAll("button.label-wrap")) {
        const isOpen = head.classList.contains("open");
        const hasOpened = isOpen && head.getAttribute("aria-expanded") === "false";
        head.setAttribute("aria-expanded", String(isOpen));
        if (hasOpened) reveal(head.parentElement);
      }
    };
    new MutationObserver(tell).observe(panels, { attributes: true, attributeFilter: ["class"], subtree: true });
    tell();
  };
  start();
})();
