// On a narrow screen the figures wait behind a button.
const panel = element.closest("#side");
const show = () => {
  const button = element.querySelector("button[data-action='details']");
  button?.setAttribute("aria-expanded", String(panel.hasAttribute("data-details")));
};
element.addEventListener("click", (event) => {
  if (!event.target.closest("button[data-action='details']")) return;
  panel.toggleAttribute("data-details");
  show();
});
watch("value", show);

// Gradio's accordions do not tell whether they are open.
const tell = () => {
  for (const head of panel.querySelectorAll("#panels button.label-wrap")) {
    head.setAttribute("aria-expanded", String(head.classList.contains("open")));
  }
};
new MutationObserver(tell).observe(panel, { attributes: true, attributeFilter: ["class"], subtree: true });
tell();
