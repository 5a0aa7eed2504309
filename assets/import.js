// Files that cannot be chats are not sent: the server is told their names, with the others or, where none is left, alone.
(() => {
  const MAX_FILE_BYTES = 64 * 1024 * 1024; // what the server lets in; below that it says itself what is too much
  const why = (file) => {
    if (!/\.json$/i.test(file.name)) return "no_chat";
    return file.size > MAX_FILE_BYTES ? "too_large" : null;
  };
  document.addEventListener("change", (event) => {
    const input = event.target;
    if (!input.matches?.("#shelf-tools input[type=file]")) return;
    const unfit = { no_chat: [], too_large: [] };
    const fit = new DataTransfer();
    for (const file of input.files) {
      const reason = why(file);
      if (reason) unfit[reason].push(file.name);
      else fit.items.add(file);
    }
    const isAlone = !fit.files.length;
    input.files = fit.files;
    if (isAlone) event.stopImmediatePropagation();
    window.dispatchEvent(new CustomEvent("chatcache-unfit", { detail: { unfit, isAlone } }));
  }, true);
})();
