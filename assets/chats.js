// A plain click on a chat opens it here; any other click is left to the browser, for the entries are real links.
element.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-session]");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  trigger("go", { session: link.dataset.session });
});
