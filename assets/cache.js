// On a narrow screen the figures wait behind a button.
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-action='details']");
  if (!button) return;
  element.classList.toggle("show-details");
});
