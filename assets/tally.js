// Composer events that the server answers: what was typed is counted, and a file that was refused is a sentence.
window.addEventListener("chatcache-typed", () => trigger("typed"));
window.addEventListener("chatcache-refused", ({ detail }) => trigger("refused", detail));
