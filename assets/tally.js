// What happens at the box and with files, as events that the server answers.
window.addEventListener("chatcache-typed", () => trigger("typed"));
window.addEventListener("chatcache-refused", ({ detail }) => trigger("refused", detail));
