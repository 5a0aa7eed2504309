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
