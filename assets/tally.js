// What happens at the box, with files and with edits, as events that the server answers.
window.addEventListener("chatcache-typed", () => trigger("typed"));
window.addEventListener("chatcache-told", ({ detail }) => trigger("told", detail));
