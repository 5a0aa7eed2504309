// Files that cannot be chats are refused before they are sent, in the page's own words.
(() => {
  const MAX_FILE_BYTES = 64 * 1024 * 1024; // what the server lets in; below that it says itself what is too much
  document.addEventListener("change", (event) => {
    const input = event.target;
    if (!input.matches?.("#shelf-tools input[type=file]")) return;
    const faulty = (action, test) => {
      const names = [...input.files].filter(test).map((file) => file.name);
      return names.length && { action, message: names.join(", ") };
    };
    const refused =
      faulty("file-no-chat", (file) => !/\.json$/i.test(file.name)) ||
      faulty("file-chat-too-large", (file) => file.size > MAX_FILE_BYTES);
    if (!refused) return;
    event.stopImmediatePropagation();
    input.value = "";
    window.dispatchEvent(new CustomEvent("chatcache-refused", { detail: refused }));
  }, true);
})();
